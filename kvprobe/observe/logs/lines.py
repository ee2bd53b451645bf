"""What a reader gets and gives: the protocol between the intake and the engines' readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvprobe.evidence.events import Event, Provenance


@dataclass(slots=True, kw_only=True)
class Line:
    """A line without its prefixes, colours and line end.

    `number` counts from 1 in `source`. `raw` is the line as it stood (capped at 64 KiB, invalid UTF-8
    replaced). `logger` is the name of the engine logger or file (`worker.py:267`) when the prefix
    named one, `level` its level.
    """

    source: str
    number: int
    text: str
    raw: str
    time_s: float | None = None
    rank: str | None = None
    pid: int | None = None
    logger: str | None = None
    level: str | None = None
    provenance: Provenance = "bare"


class Around(Protocol):
    """The neighbours of a line, of the same source and, where known, the same rank or pid."""

    def before(self, n: int) -> Sequence[Line]:
        """Up to `n` lines before, nearest last. `n` is at most 32."""

    def after(self, n: int) -> Sequence[Line]:
        """Up to `n` lines after, nearest first. `n` is at most 32."""


Read = Callable[[Line, Around], Iterable[Event]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One kind of line. `anchors` are literal, case-sensitive substrings: a line that contains none
    of them is never shown to `read`. Each should be at least six characters and rare in ordinary
    logs; `read` decides with a linear-time pattern and gives no event for a false hit."""

    name: str
    engine: str | None
    anchors: tuple[str, ...]
    read: Read
