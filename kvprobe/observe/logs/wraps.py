"""Lines that a terminal or a paste broke: the whole message, put together again.

A piece of a broken line has no prefix of its own and follows a line that is long enough to have been
broken. Hard breaks at a screen's edge lose nothing between the pieces; breaks at a word lose a blank.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvprobe.evidence.events import Event
from kvprobe.observe.logs.entries import Entry
from kvprobe.observe.logs.lines import Line
from kvprobe.observe.logs.page import Neighbours

_MOST_BEFORE = 4
_MOST_AFTER = 9
_MOST_CHARS = 8192
_SHORTEST_BROKEN = 50
"""Nobody breaks lines at fewer columns."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A message put together again: one line for each way of joining (none when nothing was broken), and
    the texts of its other pieces: what stands whole in one of them is read there, in its own turn."""

    lines: list[Line]
    others: list[str]


def joined(around: Neighbours, entry: Entry) -> Whole:
    """The line with the pieces that were broken off it."""
    pieces = [entry]
    if not _own_prefix(entry):
        for above in around.above():
            if len(pieces) > _MOST_BEFORE or not _breakable(above):
                break
            pieces.insert(0, above)
            if _own_prefix(above):
                break
    for count, below in enumerate(around.below()):
        if count >= _MOST_AFTER or _own_prefix(below) or not below.line.text or not _breakable(pieces[-1]):
            break
        pieces.append(below)
    if len(pieces) == 1 or sum(len(p.line.text) for p in pieces) > _MOST_CHARS:
        return Whole([], [])
    first = pieces[0].line
    glues = ("", " ") if _hard_breaks(pieces) else (" ", "")
    texts = [glue.join(p.line.text for p in pieces) for glue in glues]
    other_texts = [p.line.text for p in pieces if p is not entry]
    lines = [
        Line(
            source=first.source,
            number=first.number,
            text=text,
            raw=text,
            time_s=first.time_s,
            rank=first.rank,
            pid=first.pid,
            logger=first.logger,
            level=first.level,
            provenance=entry.line.provenance,
        )
        for text in texts
    ]
    return Whole(lines, other_texts)


def richer(alone: list[Event], whole: list[Event]) -> bool:
    """Whether the joined line says the same as the line alone, and more."""
    if not alone:
        return bool(whole)
    if len(alone) != 1 or len(whole) != 1 or alone[0].name != whole[0].name:
        return False
    short, long = alone[0].values, whole[0].values
    return len(long) > len(short) and all(long.get(k) == v for k, v in short.items())


def _own_prefix(entry: Entry) -> bool:
    return entry.head.stamped or entry.head.rank is not None


def _breakable(entry: Entry) -> bool:
    return len(entry.line.raw.rstrip()) >= _SHORTEST_BROKEN


def _hard_breaks(pieces: list[Entry]) -> bool:
    widths = {len(p.line.raw) for p in pieces[:-1]}
    return len(widths) == 1 and widths.pop() >= len(pieces[-1].line.raw)
