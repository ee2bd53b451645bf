"""A line of slots whose memory is allocated when a region needs it, and freed when none does.

The line is far longer than the device's memory and cut into segments of equal size; a region may reach
over several. Taking a region allocates, really, those of its segments that are not in memory yet. Where
the device refuses, the next free region is tried, and then the request is told no: the shortage that
is logged is that of an allocation that failed.

What falls into pieces is real too: a segment is freed when the last region leaves it, so that a small
region may hold memory that a large one cannot have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from reference_server.errors import IntegrityError
from reference_server.kv.regions import RegionList


class Segments(Protocol):
    """Memory by the segment; numbered from 1."""

    @property
    def present(self) -> set[int]:
        """Those in memory."""

    def allocate(self, index: int) -> bool:
        """Put a segment into memory; False when the device has no room for it."""

    def release(self, index: int) -> None:
        """Free it."""

    def room(self) -> int:
        """For how many more the device has room now; said of the device, not of the budget."""


class BackedRegions:
    """`RegionList`'s interface over segments; sizes in slots."""

    def __init__(
        self, segments: Segments, *, segment_slots: int, count: int, most: int, joining: bool = True
    ) -> None:
        """`count` segments fit into the budget at once; the line has `most`, numbered from 1."""
        self._segments = segments
        self._slots = segment_slots
        self._count = count
        self.total = count * segment_slots
        self._line = RegionList(segment_slots, most * segment_slots, joining=joining)
        self._held: Counter[int] = Counter()
        self._room: int | None = None
        """Segments that the device had room for at the last failure; None after a success."""

    @property
    def free(self) -> int:
        """Of the budget, held by no region."""
        return self.total - (self._line.total - self._line.free)

    @property
    def backed(self) -> int:
        """Slots that lie in memory now."""
        return len(self._held) * self._slots

    @property
    def largest(self) -> int:
        """The longest region that could be taken, from the start of a free one on."""
        left = self._segments_left()
        return max((self._reach(start, size, left) for start, size in self._line.regions), default=0)

    @property
    def available(self) -> tuple[int, int]:
        """Free slots and the largest region, as far as the device has memory for them."""
        missing = self._count - len(self._held) - self._segments_left()
        return max(self.free - missing * self._slots, 0), self.largest

    @property
    def metadata_bytes(self) -> int:
        return self._line.metadata_bytes

    def take(self, size: int) -> int | None:
        """The start of the first free region that is large enough and can be in memory."""
        for start, room in list(self._line.regions):
            if room >= size and self.take_at(start, size):
                return start
        return None

    def take_at(self, start: int, size: int) -> bool:
        """Take exactly `start .. start + size`, where a free region begins at `start`."""
        if not self._line.take_at(start, size):
            return False
        allocated: list[int] = []
        for index, _ in self._overlaps(start, size):
            if index in self._held:
                continue
            if not self._segments.allocate(index):
                self._room = self._segments.room()
                for back in allocated:
                    self._segments.release(back)
                self._line.give(start, size)
                return False
            allocated.append(index)
        for index, slots in self._overlaps(start, size):
            self._held[index] += slots
        self._room = None
        return True

    def give(self, start: int, size: int) -> None:
        """Take a region back, and free the segments that nobody is in any more."""
        self._line.give(start, size)
        for index, slots in self._overlaps(start, size):
            self._held[index] -= slots
            if not self._held[index]:
                del self._held[index]
                self._segments.release(index)
                self._room = None

    def check(self, held: list[tuple[int, int]]) -> None:
        """Raise `IntegrityError` unless the line is tiled, and held segments are those in memory."""
        self._line.check(held)
        wanted: Counter[int] = Counter()
        for start, size in held:
            wanted.update(dict(self._overlaps(start, size)))
        if wanted != self._held or set(wanted) != self._segments.present:
            raise IntegrityError("the segments in memory are not those that regions lie in")

    def _segments_left(self) -> int:
        left = self._count - len(self._held)
        return left if self._room is None else min(left, self._room)

    def _reach(self, start: int, size: int, left: int) -> int:
        """How far a region from `start` on could reach with `left` more segments."""
        end = start
        while end < start + size:
            if end // self._slots not in self._held:
                if not left:
                    break
                left -= 1
            end = min((end // self._slots + 1) * self._slots, start + size)
        return end - start

    def _overlaps(self, start: int, size: int) -> Iterator[tuple[int, int]]:
        """Segments that a region lies in, and how many slots it has in each."""
        at, end = start, start + size
        while at < end:
            index = at // self._slots
            upto = min((index + 1) * self._slots, end)
            yield index, upto - at
            at = upto
