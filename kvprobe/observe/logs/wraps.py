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
    """A message put together again: one line for each way of joining, the likelier first (none when nothing
    was broken), and its other pieces above and below. `certain`: several lines of one width, so a screen's
    edge broke it and the first way is right. The number is that of the piece in question."""

    lines: list[Line]
    above: list[Line]
    below: list[Line]
    certain: bool = False


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
        return Whole([], [], [])
    first = pieces[0].line
    at_words = " ".join(p.line.text for p in pieces)
    at_edge = "".join(_with_blanks(p.line) for p in pieces).strip()
    texts = (at_edge, at_words) if _hard_breaks(pieces) else (at_words, at_edge)
    at = pieces.index(entry)
    lines = [
        Line(
            source=first.source,
            number=entry.line.number,
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
    certain = len(pieces) > 2 and _hard_breaks(pieces)
    return Whole(lines, [p.line for p in pieces[:at]], [p.line for p in pieces[at + 1 :]], certain)


def richest(alone: list[Event], wholes: list[list[Event]], *, certain: bool) -> list[Event]:
    """The events of the line alone, or those of the way of joining that says the same and the most more.

    Where the way of joining is certain, it corrects what the line alone seems to say.
    """
    if certain and wholes and wholes[0]:
        return wholes[0]
    best = alone
    for whole in wholes:
        if _richer(best, whole):
            best = whole
    return best


def _richer(alone: list[Event], whole: list[Event]) -> bool:
    if not alone:
        return bool(whole)
    if len(alone) != 1 or len(whole) != 1 or alone[0].name != whole[0].name:
        return False
    short, long = alone[0].values, whole[0].values
    return len(long) > len(short) and all(long.get(k) == v for k, v in short.items())


def _with_blanks(line: Line) -> str:
    """The message with the blanks around it, which are a part of it where the screen's edge broke it."""
    at = line.raw.find(line.text)
    before, after = line.raw[:at], line.raw[at + len(line.text) :]
    if at < 0:
        return line.text
    return (before if before.isspace() else "") + line.text + (after if after.isspace() else "")


def _own_prefix(entry: Entry) -> bool:
    return entry.head.stamped or entry.head.rank is not None


def _breakable(entry: Entry) -> bool:
    return len(entry.line.raw.rstrip()) >= _SHORTEST_BROKEN


def _hard_breaks(pieces: list[Entry]) -> bool:
    widths = {len(p.line.raw) for p in pieces[:-1]}
    return len(widths) == 1 and widths.pop() >= len(pieces[-1].line.raw)
