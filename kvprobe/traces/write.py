"""Rows -> our own JSONL: one object a line, `t`, `in`, `out` and what else is known."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TextIO

import msgspec

from kvprobe.traces.rows import TraceRow

_TIME_DIGITS = 6
"""Microseconds: no trace is finer in truth."""
_encode = msgspec.json.Encoder().encode


def as_line(row: TraceRow) -> str:
    """A row as a line of JSON without its end; `read.open_trace` reads it back to an equal row."""
    found: dict[str, Any] = {
        "t": round(row.t_s, _TIME_DIGITS),
        "in": row.in_tokens,
        "out": row.out_tokens,
        "hash_ids": row.hash_ids,
        "block": row.block_tokens,
        "session": row.session,
        "turn": row.turn,
    }
    return _encode({key: value for key, value in found.items() if value is not None}).decode()


def write_rows(rows: Iterable[TraceRow], out: TextIO) -> int:
    """Writes all rows, one after another as they come; returns how many."""
    written = 0
    for row in rows:
        out.write(as_line(row) + "\n")
        written += 1
    return written
