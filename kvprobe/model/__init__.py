"""What a token costs: reading a model's description, KV layouts, weight bytes, devices."""
