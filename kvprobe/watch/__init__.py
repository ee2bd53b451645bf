"""`kvprobe watch`: what a server's KV cache does now, in numbers and in words."""
