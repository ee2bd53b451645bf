"""Most log lines need one pattern and a few numbers: a table of signatures instead of code.

A signature's pattern names its groups `value__unit`, for example `(?P<free__GiB>[\\d.]+)`: the value is
called `free` and is stored in bytes. Where the unit is printed in the line, `size` reads `4.0 GiB` or
`512 MiB` as a whole. A group that did not take part gives no value (missing is not 0).

Engines of this field print powers of 1024 and call them GB or GiB alike, so both are read as 2^30.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvprobe.evidence.events import Event, Phase, Value
from kvprobe.observe.logs.lines import Around, Line, Reader

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
_VLLM_PREFIX = re.compile(
    r"\((?:EngineCore|APIServer|VllmWorker|RayWorkerWrapper|Worker_)|(?:INFO|WARNING|ERROR|CRITICAL) "
    r"\d\d-\d\d \d\d:\d\d:\d\d (?:\[[\w./ ]{1,80}\.py:|\w{1,40}\.py:)"
)
"""Who prints before a message: vLLM's processes and the form of its logger are its own."""
_PREFIX_CHARS = 400
_SIZE = re.compile(r"([\d.]+) ?(bytes|[KMGT]i?B|B|[kK]B|[KMGT]i?)?")
_FACTOR = {"b": 1, "bytes": 1, "": 1, "k": KIB, "m": MIB, "g": GIB, "t": TIB}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """One kind of line: it holds `anchor`, and `pattern` (searched) gives the values.

    `fixed` are values that the wording itself tells. `phase` is what the engine is doing from this
    line on.
    """

    event: str
    anchor: str
    pattern: re.Pattern[str]
    phase: Phase | None = None
    engine: str | None = None
    fixed: Mapping[str, Value] = field(default_factory=dict)


def signature(
    event: str,
    anchor: str,
    pattern: str,
    *,
    phase: Phase | None = None,
    engine: str | None = None,
    **fixed: str | float,
) -> Signature:
    """A row of a table; `fixed` are texts or counts without a unit."""
    return Signature(
        event=event,
        anchor=anchor,
        pattern=re.compile(pattern),
        phase=phase,
        engine=engine,
        fixed={name: Value(value) for name, value in fixed.items()},
    )


def table_reader(name: str, engine: str | None, rows: tuple[Signature, ...]) -> Reader:
    """A reader that tries each row whose anchor stands in the line."""

    def read(line: Line, around: Around) -> Iterable[Event]:
        for row in rows:
            if row.anchor in line.text:
                found = row.pattern.search(line.text)
                if found is not None:
                    yield event_of(line, row.event, values_of(found), row, engine)

    return Reader(name=name, engine=engine, anchors=tuple(dict.fromkeys(r.anchor for r in rows)), read=read)


def event_of(
    line: Line,
    name: str,
    values: dict[str, Value],
    row: Signature | None = None,
    engine: str | None = None,
    phase: Phase | None = None,
) -> Event:
    """An event at this line; a row adds its phase and its fixed values."""
    if row is not None:
        values = {**row.fixed, **values}
        engine = row.engine or engine
        phase = row.phase
    if engine is None and _VLLM_PREFIX.search(line.raw, 0, _PREFIX_CHARS) is not None:
        engine = "vllm"
    return Event(
        name=name,
        source=line.source,
        line=line.number,
        text=line.text.strip(),
        values=values,
        engine=engine,
        phase=phase,
        time_s=line.time_s,
        rank=line.rank,
        pid=line.pid,
        provenance=line.provenance,
    )


def values_of(found: re.Match[str]) -> dict[str, Value]:
    """The named groups of a match as values with units; unreadable numbers are left out."""
    values: dict[str, Value] = {}
    for group, text in found.groupdict().items():
        if text is None:
            continue
        name, _, unit = group.partition("__")
        value = _CONVERT[unit or "text"](text.strip())
        if value is not None:
            values[name] = value
    return values


def size_bytes(text: str) -> int | None:
    """Bytes of a printed size such as `4.0 GiB`, `512MiB`, `64Gi` or `1024`; None when it is no size."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    unit = (found[2] or "").lower()
    factor = _FACTOR.get(unit) or _FACTOR.get(unit[:1])
    number = _number(found[1])
    return None if factor is None or number is None else round(number * factor)


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _times(factor: float, unit: str | None, *, whole: bool) -> Callable[[str], Value | None]:
    def convert(text: str) -> Value | None:
        number = _number(text)
        if number is None:
            return None
        return Value(round(number * factor) if whole else number * factor, unit)

    return convert


def _text(text: str) -> Value | None:
    return Value(text)


def _size(text: str) -> Value | None:
    size = size_bytes(text)
    return None if size is None else Value(size, "B")


def _flag(text: str) -> Value | None:
    return Value(text.lower() in {"true", "1", "yes", "on"})


_CONVERT: dict[str, Callable[[str], Value | None]] = {
    "text": _text,
    "flag": _flag,
    "size": _size,
    "B": _times(1, "B", whole=True),
    "kB": _times(KIB, "B", whole=True),
    "MiB": _times(MIB, "B", whole=True),
    "GiB": _times(GIB, "B", whole=True),
    "tokens": _times(1, "tokens", whole=True),
    "blocks": _times(1, "blocks", whole=True),
    "count": _times(1, "count", whole=True),
    "int": _times(1, None, whole=True),
    "num": _times(1, None, whole=False),
    "ratio": _times(1, "ratio", whole=False),
    "pct": _times(0.01, "ratio", whole=False),
    "rate": _times(1, "tokens/s", whole=False),
    "s": _times(1, "s", whole=False),
    "ms": _times(0.001, "s", whole=False),
}


def number(value: Any) -> float | None:
    """A value as a number, None for text and for what is missing."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
