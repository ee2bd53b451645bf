"""Cells of a trace as numbers: exact, bounded, or a reason why not."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from kvprobe.traces.rows import MAX_TIME_S, MAX_TOKENS

_COUNT = re.compile(r"[0-9]{1,13}(?:\.0{1,9})?\Z", re.ASCII)
_NUMBER = re.compile(r"[-+]?[0-9]{1,18}(?:\.[0-9]{1,18})?(?:[eE][-+]?[0-9]{1,3})?\Z", re.ASCII)
_STAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(Z|[-+][0-9]{2}:?[0-9]{2})?\Z",
    re.ASCII,
)


class BadCell(ValueError):
    """What is wrong with a cell, as the end of a sentence about the row."""


def shown(value: object) -> str:
    """A value for a message, short and on one line."""
    text = value if isinstance(value, str) else repr(value)
    return "nothing" if text == "" or value is None else f"`{text[:40]}{'…' if len(text) > 40 else ''}`"


def count(value: object, name: str, most: int = MAX_TOKENS) -> int:
    """A whole number from 0 to `most`, from JSON or from the text of a CSV cell."""
    if isinstance(value, str) and _COUNT.match(value.strip()):
        number = int(value.strip().partition(".")[0])
    elif isinstance(value, float) and value.is_integer() and abs(value) <= most:
        number = int(value)
    elif type(value) is int:
        number = value
    else:
        raise BadCell(f"has {shown(value)} for `{name}`, which is no whole number of 0 or more")
    if not 0 <= number <= most:
        raise BadCell(f"has {shown(value)} for `{name}`, which is not between 0 and {most:,}")
    return number


def seconds(value: object, name: str, unit_s: float = 1.0) -> float:
    """A time as a number in units of `unit_s` seconds, from 0 on."""
    text = value.strip() if isinstance(value, str) else None
    if text is not None and _NUMBER.match(text):
        number = float(text)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = float(value)
    else:
        raise BadCell(f"has {shown(value)} for `{name}`, which is no time in {_unit_name(unit_s)}")
    found = number * unit_s
    if not (math.isfinite(found) and 0 <= found <= MAX_TIME_S):
        most = f"{MAX_TIME_S:,.0f} s"
        raise BadCell(f"has {shown(value)} for `{name}`, which is no time from 0 to {most}")
    return found


def stamp(value: object, name: str) -> float:
    """A date and time as seconds; fractions down to nanoseconds, UTC where no zone is given."""
    match = _STAMP.match(value.strip()) if isinstance(value, str) else None
    try:
        if match is None:
            raise ValueError("no match")
        zone = (match[4] or "Z").replace("Z", "+00:00")
        whole = datetime.fromisoformat(f"{match[1]}T{match[2]}{zone}")
        since = whole - datetime(1970, 1, 1, tzinfo=UTC)
    except (ValueError, OverflowError) as error:
        why = f"has {shown(value)} for `{name}`, which is no date and time (2023-11-16 18:17:03.979)"
        raise BadCell(why) from error
    found = since.days * 86_400 + since.seconds + (int(match[3]) / 10 ** len(match[3]) if match[3] else 0.0)
    if found < 0:
        raise BadCell(f"has {shown(value)} for `{name}`, which lies before 1970")
    return found


def _unit_name(unit_s: float) -> str:
    return "milliseconds" if unit_s == 0.001 else "seconds"
