"""What fits: budget, engines, length distributions, concurrency, flags."""
