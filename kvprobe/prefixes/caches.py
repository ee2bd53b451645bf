"""What a prefix cache takes from itself, request by request: whole blocks, least recently used out first."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence


def chain(row: array[int], block: int, key: Sequence[str] = ()) -> list[bytes]:
    """Digest of each full block with all before it; `key` parts prompts that must not share."""
    digest = "\0".join(key).encode("utf-8", "replace")
    out = []
    for index in range(len(row) // block):
        piece = row[index * block : (index + 1) * block]
        digest = hashlib.blake2b(digest + piece.tobytes(), digest_size=16).digest()
        out.append(digest)
    return out


class LruCache:
    """Blocks of finished prompts, dropped when there are more than `capacity` (null: never).

    Prompts come one after another: those that are computed at the same time hold memory besides, so that
    a real pool of this size serves somewhat less.
    """

    def __init__(self, capacity: int | None) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def admit(self, digests: Sequence[bytes], usable: int) -> int:
        """Takes a prompt in; blocks that it finds, at most `usable` (the last token is always computed)."""
        hits = 0
        for digest in digests:
            if digest not in self._blocks:
                break
            hits += 1
        # The end first, so that the start of a prompt is dropped last.
        for digest in reversed(digests):
            self._blocks[digest] = None
            self._blocks.move_to_end(digest)
        if self._capacity is not None:
            while len(self._blocks) > self._capacity:
                self._blocks.popitem(last=False)
        return min(hits, usable)
