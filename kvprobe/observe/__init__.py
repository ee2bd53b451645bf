"""What we see: metrics, GPU, host, sampled on a clock beside the load."""
