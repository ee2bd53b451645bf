"""Kernels in C for a CPU: compiled when first wanted, never required."""
