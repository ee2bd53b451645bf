"""Request traces: what came when, how long it was, what it shared. One row form for all formats.

`read.open_trace` reads the public formats and our own JSONL, `write` writes the latter; `docs/traces.md`
lists columns and limits. Files are foreign and may be of any size: reading streams, lines are bounded.
"""
