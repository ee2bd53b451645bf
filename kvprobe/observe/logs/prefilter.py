"""Which lines are worth reading: a search for all readers' anchors at once over big blocks of bytes.

In a file, an anchor can be written otherwise than a reader knows it: a JSON string escapes quotes, a
paste has HTML entities or typographic quotes. So blocks are searched for the longest part of each
anchor that no such writing changes, and the cleaned line for the anchor itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from ahocorasick_rs import AhoCorasick, BytesAhoCorasick, Implementation

from kvprobe.observe.logs.lines import Reader

_CHANGEABLE = re.compile(r"[^\x21\x23-\x25\x28-\x3b\x3d\x3f-\x5b\x5d-\x7e ]+")
"""What writings change: quotes, `<`, `>`, `&`, the backslash, and all that is not ASCII."""
_SHORTEST_CORE = 5


class Prefilter:
    """Finds anchors of `readers` in bytes, and the readers of a cleaned line."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        owners: dict[str, list[int]] = {}
        for i, reader in enumerate(readers):
            for anchor in reader.anchors:
                if i not in owners.setdefault(anchor, []):
                    owners[anchor].append(i)
        self._owners = list(owners.values())
        self.needles = needles(list(owners))
        self._lines = AhoCorasick(list(owners), implementation=Implementation.DFA) if owners else None
        self._blocks = (
            BytesAhoCorasick(list(self.needles), implementation=Implementation.DFA) if self.needles else None
        )

    def hits(self, block: bytes | memoryview) -> list[tuple[int, int, int]]:
        """(needle, start, end) of every anchor's core in a block, in order."""
        return self._blocks.find_matches_as_indexes(block) if self._blocks is not None else []

    def readers_of(self, text: str) -> dict[int, int]:
        """Index of each reader with an anchor in `text` -> where its first anchor stands."""
        if self._lines is None:
            return {}
        found: dict[int, int] = {}
        for pattern, start, _ in self._lines.find_matches_as_indexes(text, overlapping=True):
            for reader in self._owners[pattern]:
                found.setdefault(reader, start)
        return found


@lru_cache(maxsize=4)
def prefilter_of(readers: tuple[Reader, ...]) -> Prefilter:
    """The search for these readers; building it takes longer than reading a short log."""
    return Prefilter(readers)


def needles(anchors: Sequence[str]) -> tuple[bytes, ...]:
    """What to search bytes for, so that no line with one of the anchors is missed."""
    cores = {max(_CHANGEABLE.split(anchor), key=len).strip() for anchor in anchors}
    long = {core for core in cores if len(core) >= _SHORTEST_CORE}
    short = {a for a in anchors if len(max(_CHANGEABLE.split(a), key=len).strip()) < _SHORTEST_CORE}
    wanted = long | short
    # What another needle is a part of is found by it.
    kept = [n for n in wanted if not any(n != other and other in n for other in wanted)]
    return tuple(sorted(n.encode() for n in kept))
