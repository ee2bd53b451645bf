"""One thing that was read or measured once, with where it came from."""

from __future__ import annotations

from typing import Any

import msgspec


class Fact(msgspec.Struct, kw_only=True):
    """A line of `facts.jsonl`.

    `value` is any JSON value; `unit` is one of `B`, `tokens`, `blocks`, `s`, `ns`, `ratio`,
    `count` or null where a unit makes no sense; `source` is a path, a metric name, a URL path or
    the name of the analysis that produced it; `line` is the line of a log, from 1.
    """

    name: str
    value: Any
    unit: str | None = None
    source: str
    line: int | None = None
    text: str | None = None
