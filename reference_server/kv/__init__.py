"""The KV cache: who owns which memory."""
