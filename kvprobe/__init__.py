"""kvprobe: what the KV cache of an LLM server costs, how it behaves under load, and why it ran out."""

__version__ = "0.1.0"
