"""How much else is used between two uses of a prefix: what a cache must hold to serve it again.

The distance of a reuse is the number of tokens of distinct blocks that were touched since the reused
block was touched last (LRU stack distance, Mattson et al., 1970): a cache that drops the block unused
for longest serves the reuse if, and only if, it holds more than that. Taken over the prompts in the
order sent, one after another; prompts that are computed at the same time hold memory besides, so a
real server needs somewhat more.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

POINTS = 20
"""Quantiles that are kept: 5 %, 10 %, ... 100 % of the reused tokens."""


class ReuseDistances:
    """Takes prompts in, in order; `quantiles` then says how far apart the reuses were."""

    def __init__(self, block_tokens: int, prompts: int) -> None:
        self._block = block_tokens
        self._last: dict[bytes, int] = {}
        self._touched: npt.NDArray[np.int64] = np.zeros(prompts, np.int64)
        """How many blocks were touched last by each prompt."""
        self._seen = 0
        self._distances: list[int] = []

    def admit(self, tokens: Sequence[int], *, counted: bool) -> None:
        """A prompt as stand-in tokens; one that is not `counted` (warm-up) only fills the cache."""
        row = tokens if isinstance(tokens, array) else array("q", tokens)
        now, chain = self._seen, self._chain(row)
        # The last token of a prompt is always computed: a block that ends with it is not reused.
        usable = max(len(row) - 1, 0) // self._block
        # Blocks touched by prompt j and not since, summed from the latest prompt backwards.
        since = np.concatenate((np.cumsum(self._touched[:now][::-1])[::-1], [0]))
        for index, digest in enumerate(chain):
            last = self._last.get(digest)
            if last is None:
                break
            if counted and index < usable:
                self._distances.append(int(since[last + 1]) * self._block)
        for digest in chain:
            if (last := self._last.get(digest)) is not None:
                self._touched[last] -= 1
            self._last[digest] = now
            self._touched[now] += 1
        self._seen += 1

    def _chain(self, row: array[int]) -> list[bytes]:
        digests, digest = [], b""
        for index in range(len(row) // self._block):
            block = row[index * self._block : (index + 1) * self._block]
            digest = hashlib.blake2b(digest + block.tobytes(), digest_size=16).digest()
            digests.append(digest)
        return digests

    def quantiles(self) -> list[int] | None:
        """`POINTS` distances in tokens, smallest first: entry i bounds (i + 1) / POINTS of the reused
        tokens. Null when nothing was reused."""
        if not self._distances:
            return None
        ordered = np.sort(np.asarray(self._distances, dtype=np.int64))
        ranks = [-(-(i + 1) * len(ordered) // POINTS) - 1 for i in range(POINTS)]
        return [int(ordered[rank]) for rank in ranks]
