"""Recommended flags: which an engine version has, which number each comes from, and how to write them."""
