"""One small file per command: parse, call, print. Heavy imports stay inside the commands."""
