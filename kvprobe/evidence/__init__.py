"""The nouns that everything shares: requests, samples, facts, and the directory that keeps them.

This package knows nobody: it imports nothing else of kvprobe but `errors`.
"""
