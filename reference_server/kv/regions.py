"""Free regions of a line of slots: first fit, and joining neighbours when one comes back."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from reference_server.errors import IntegrityError

RECORD_BYTES = 120
"""Of one free region: a tuple of two numbers and its place in the list."""


class RegionList:
    """Slots `first .. first + total`, of which some are free. Free regions are kept by address."""

    def __init__(self, first: int, total: int, *, joining: bool = True) -> None:
        """`joining` False never joins a region that comes back with its neighbours."""
        self.first, self.total = first, total
        self._joining = joining
        self._free: list[tuple[int, int]] = [(first, total)] if total else []
        self.free = total

    @property
    def largest(self) -> int:
        """Slots of the largest free region."""
        return max((size for _, size in self._free), default=0)

    @property
    def regions(self) -> Iterable[tuple[int, int]]:
        """Start and size of each free region, by address."""
        return self._free

    @property
    def backed(self) -> int:
        """Slots that lie in memory: all."""
        return self.total

    @property
    def available(self) -> tuple[int, int]:
        """Free slots, and those of the largest region."""
        return self.free, self.largest

    @property
    def metadata_bytes(self) -> int:
        return len(self._free) * RECORD_BYTES

    def take(self, size: int) -> int | None:
        """The start of the first free region that is large enough, cut to `size`; None when none is."""
        for index, (start, room) in enumerate(self._free):
            if room >= size:
                self._shrink(index, size)
                return start
        return None

    def take_at(self, start: int, size: int) -> bool:
        """Take exactly `start .. start + size`, where a free region begins at `start`."""
        index = bisect_left(self._free, (start, 0))
        if index == len(self._free) or self._free[index][0] != start or self._free[index][1] < size:
            return False
        self._shrink(index, size)
        return True

    def give(self, start: int, size: int) -> None:
        """Take a region back."""
        self.free += size
        if not self._joining:
            insort(self._free, (start, size))
            return
        index = bisect_left(self._free, (start, 0))
        if index < len(self._free) and self._free[index][0] == start + size:
            size += self._free.pop(index)[1]
        if index and sum(self._free[index - 1]) == start:
            before, room = self._free.pop(index - 1)
            start, size = before, room + size
            index -= 1
        self._free.insert(index, (start, size))

    def _shrink(self, index: int, size: int) -> None:
        start, room = self._free[index]
        if room == size:
            del self._free[index]
        else:
            self._free[index] = (start + size, room - size)
        self.free -= size

    def check(self, held: list[tuple[int, int]]) -> None:
        """Raise `IntegrityError` unless free and held regions tile the line without overlap."""
        if sum(size for _, size in self._free) != self.free:
            raise IntegrityError("free regions do not add up to what is free")
        at = self.first
        for start, size in sorted([*self._free, *held]):
            if start != at or size <= 0:
                raise IntegrityError(f"region {start} + {size}: expected to start at {at}")
            at += size
        if at != self.first + self.total:
            raise IntegrityError(f"regions end at {at} of {self.first + self.total}")
