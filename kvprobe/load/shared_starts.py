"""How long the start is that a prompt shares with any earlier one.

Hashes of starts stand in a table, one every `STEP` pieces. A prompt whose start of n pieces was there
before shares all shorter ones too, so the longest is found by halving.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

STEP = 8
_MIX = np.uint64(0xBF58476D1CE4E5B9)
_BASE = np.uint64(0x9E3779B97F4A7C15)

Ids = npt.NDArray[np.int64]


class SharedStarts:
    """Takes prompts in, in order, as rows of piece numbers."""

    def __init__(self) -> None:
        self._first_with: dict[int, int] = {}
        self._rows: list[Ids] = []

    def admit(self, ids: Ids) -> int:
        """How many pieces at its start this prompt shares with the earlier one that shares most.

        Exact to within `STEP` pieces; less than `STEP` counts as none.
        """
        hashes = _start_hashes(ids)
        low, high = 0, len(hashes)
        while low < high:
            middle = (low + high + 1) // 2
            if hashes[middle - 1] in self._first_with:
                low = middle
            else:
                high = middle - 1
        shared = 0
        if low:
            other = self._rows[self._first_with[hashes[low - 1]]]
            length = min(len(other), len(ids))
            different = np.flatnonzero(other[:length] != ids[:length])
            shared = int(different[0]) if len(different) else length
        for number in hashes[low:]:
            self._first_with.setdefault(number, len(self._rows))
        self._rows.append(ids)
        return shared


def _start_hashes(ids: Ids) -> list[int]:
    """Hashes of the first `STEP`, 2 `STEP`, ... pieces (a polynomial in wrapping 64-bit arithmetic)."""
    count = len(ids) // STEP * STEP
    values = ids[:count].astype(np.uint64) + np.uint64(1)
    with np.errstate(over="ignore"):
        values = (values ^ (values << np.uint64(31))) * _MIX
        values ^= values >> np.uint64(29)
        powers = np.cumprod(np.full(count, _BASE, np.uint64))
        sums = np.cumsum(values * powers)
    return [int(h) for h in sums[STEP - 1 :: STEP]]
