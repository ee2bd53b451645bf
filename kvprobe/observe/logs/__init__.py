"""Engine logs: files of any packing -> clean lines -> typed events."""
