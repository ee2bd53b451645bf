"""Prompts that hold the same lines in another order: what one fixed order would let a cache reuse.

A line is known when an earlier prompt had it, whatever the order of its words (the keys of a JSON object
may have changed places). Where known lines follow each other, they are put into the order in which they
first came, as they first stood; all else stays where it is. Lines of a few pieces belong to the line
above them, for a closing bracket says nothing. A definition that is spread over several lines is told
only if the lines themselves stay together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kvprobe.load.prompt_pairs import Prompt

MIN_PIECES = 8
"""A line of fewer pieces is no line of its own."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """A prompt in the fixed order. `start` is the first piece that moved, null where none did; `lines`
    how many lines of it are not where, or not what, they first were."""

    pieces: list[str]
    start: int | None = None
    lines: int = 0


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    end: int
    bag: bytes


class FirstOrder:
    """Takes prompts in, in order; each comes back with its known lines in the order of their first use."""

    def __init__(self) -> None:
        self._rank: dict[bytes, int] = {}
        self._first: dict[bytes, list[str]] = {}

    def admit(self, prompt: Prompt) -> Ordered:
        """The prompt in the order that the prompts before it had; one of the warm-up sets no order."""
        if prompt.warmup:
            return Ordered(prompt.pieces)
        lines = _lines(prompt)
        known = [line.bag in self._rank for line in lines]
        found = self._put_in_order(prompt, lines, known)
        for line, seen in zip(lines, known, strict=True):
            if not seen and line.bag not in self._rank:
                self._rank[line.bag] = len(self._rank)
                self._first[line.bag] = prompt.pieces[line.start : line.end]
        return found

    def _put_in_order(self, prompt: Prompt, lines: list[_Line], known: Sequence[bool]) -> Ordered:
        places = list(range(len(lines)))
        start = 0
        while start < len(lines):
            end = start
            while end < len(lines) and known[end]:
                end += 1
            places[start:end] = sorted(range(start, end), key=lambda at: self._rank[lines[at].bag])
            start = end + 1
        changed = [
            at
            for at, place in enumerate(places)
            if place != at
            or (known[at] and self._first[lines[at].bag] != prompt.pieces[lines[at].start : lines[at].end])
        ]
        if not changed:
            return Ordered(prompt.pieces)
        pieces: list[str] = prompt.pieces[: lines[0].start]
        for at, place in enumerate(places):
            line = lines[place]
            pieces += self._first[line.bag] if known[place] else prompt.pieces[line.start : line.end]
            # What stood between two lines stays where it stood.
            following = lines[at + 1].start if at + 1 < len(lines) else len(prompt.pieces)
            pieces += prompt.pieces[lines[at].end : following]
        return Ordered(pieces, lines[changed[0]].start, len(changed))


def _lines(prompt: Prompt) -> list[_Line]:
    """Lines of at least `MIN_PIECES` pieces, without the break that ends them."""
    breaks = [at for at, piece in enumerate(prompt.pieces) if piece == "\n"]
    starts = [0]
    for at in breaks:
        if at + 1 - starts[-1] > MIN_PIECES:
            starts.append(at + 1)
    if len(starts) > 1 and len(prompt.pieces) - starts[-1] < MIN_PIECES:
        starts.pop()
    found: list[_Line] = []
    for start, following in pairwise([*starts, len(prompt.pieces)]):
        end = following
        while end > start and prompt.pieces[end - 1] == "\n":
            end -= 1
        if end > start:
            found.append(_Line(start, end, np.sort(prompt.ids[start:end]).tobytes()))
    return found
