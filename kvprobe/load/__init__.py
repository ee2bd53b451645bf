"""What we send: workloads, prompts, arrivals, and the one place that stamps time."""
