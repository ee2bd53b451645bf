"""One run from start to end: target, bundled server, load, sampling, run directory, meaning."""
