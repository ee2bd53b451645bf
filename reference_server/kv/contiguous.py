"""Allocators that keep each sequence in one piece, cut to the token.

A "block" here is one token's slot, and a block table is a `range` of slots. Slot 0 is the null
slot. Nothing is shared between sequences, so there is no prefix caching.

- `contiguous`, the classic: a region for the longest request the server takes, reserved at
  admission. A sequence that runs never lacks room; what it does not use nobody else can.
- `contiguous-exact`: as many slots as there are tokens, rounded up to a quantum. A region grows into
  the free slots behind it, or by moving to a hole that is large enough. Nothing is reserved, and
  memory falls into pieces.
"""

from __future__ import annotations

from collections.abc import Iterable

from reference_server.errors import IntegrityError
from reference_server.kv.allocator import RANGE_BYTES, Mover, Shortage, Usage, slots
from reference_server.kv.backed import BackedRegions
from reference_server.kv.pool import NULL_BLOCK_ID
from reference_server.kv.regions import RegionList
from reference_server.sequence import Sequence


class _Regions:
    """What both have in common."""

    name = ""
    block_size = 1

    def __init__(self, num_slots: int, *, joining: bool = True, regions: BackedRegions | None = None) -> None:
        """`num_slots` counts the null slot. `regions` is a line to take instead of one of so many."""
        self._regions = regions or RegionList(NULL_BLOCK_ID + 1, num_slots - 1, joining=joining)
        self.last_shortage: Shortage | None = None
        self._failures = self._fragmented = self._moved = 0

    @property
    def capacity_tokens(self) -> int:
        return self._regions.total

    def begin(self, sequence: Sequence) -> int:
        if sequence.block_table:
            raise IntegrityError(f"{sequence.request_id} already holds a region")
        return 0

    def commit(self, sequence: Sequence) -> None:
        """Nothing is shared."""

    def release(self, sequence: Sequence) -> None:
        region = sequence.block_table
        if region:
            self._regions.give(region[0], len(region))
        sequence.block_table = []

    def unreachable_blocks(self) -> int:
        return 0

    def usage(self, holders: Iterable[Sequence]) -> Usage:
        stored = tail = reserved = regions = 0
        for sequence in holders:
            one, more = slots(sequence, 1)
            stored += sequence.num_computed
            tail, reserved = tail + one, reserved + more
            regions += 1
        return Usage(
            blocks_total=self._regions.total,
            blocks_used=self._regions.total - self._regions.free,
            blocks_cached=0,
            blocks_free=self._regions.free,
            blocks_backed=self._regions.backed,
            table_blocks=self._regions.total - self._regions.free,
            stored_tokens=stored,
            tail_slots=tail,
            reserved_slots=reserved,
            largest_free_blocks=self._regions.largest,
            table_bytes=regions * RANGE_BYTES,
            metadata_bytes=self._regions.metadata_bytes,
            moved_blocks_total=self._moved,
            failures_total=self._failures,
            fragmented_failures_total=self._fragmented,
        )

    def check(self, holders: Iterable[Sequence]) -> None:
        held = []
        for sequence in holders:
            region = sequence.block_table
            if not isinstance(region, range) or region.step != 1:
                raise IntegrityError(f"{sequence.request_id} does not lie in one piece")
            if sequence.num_computed > len(region):
                raise IntegrityError(f"{sequence.request_id} has computed tokens without a slot")
            held.append((region.start, len(region)))
        self._regions.check(held)

    def _refuse(self, asked: int) -> None:
        self.last_shortage = Shortage(asked, *self._regions.available)
        self._failures += 1
        self._fragmented += self.last_shortage.fragmented


class ContiguousAllocator(_Regions):
    """One region of `region_tokens` for each sequence, whatever it will need of it."""

    name = "contiguous"

    def __init__(self, num_slots: int, region_tokens: int, *, regions: BackedRegions | None = None) -> None:
        super().__init__(num_slots, regions=regions)
        self._region_tokens = min(region_tokens, self._regions.total)

    @property
    def capacity_tokens(self) -> int:
        return self._region_tokens

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        if num_tokens <= len(sequence.block_table):
            return True
        too_long = num_tokens > self._region_tokens
        start = None if too_long else self._regions.take(self._region_tokens)
        if start is None:
            self._refuse(num_tokens if too_long else self._region_tokens)
            return False
        sequence.block_table = range(start, start + self._region_tokens)
        return True


class ExactAllocator(_Regions):
    """Regions as long as they are needed, which grow in place or by moving."""

    name = "contiguous-exact"

    def __init__(
        self,
        num_slots: int,
        quantum: int,
        move: Mover,
        *,
        joining: bool = True,
        regions: BackedRegions | None = None,
    ) -> None:
        """`move` copies KV data between slots; a region's size is a multiple of `quantum` tokens
        (but for one that takes the last slots there are)."""
        super().__init__(num_slots, joining=joining, regions=regions)
        self._quantum = quantum
        self._move = move

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        region = sequence.block_table
        if num_tokens <= len(region):
            return True
        if num_tokens > self._regions.total:
            self._refuse(num_tokens)
            return False
        wanted = min(-(-num_tokens // self._quantum) * self._quantum, self._regions.total)
        if region and self._regions.take_at(region[-1] + 1, wanted - len(region)):
            sequence.block_table = range(region[0], region[0] + wanted)
            return True
        start = self._regions.take(wanted)
        if start is None:
            self._refuse(wanted)
            return False
        target = range(start, start + wanted)
        if region:
            self._move(region[: sequence.num_computed], target[: sequence.num_computed])
            self._moved += sequence.num_computed
            self._regions.give(region[0], len(region))
        sequence.block_table = target
        return True
