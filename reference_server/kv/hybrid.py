"""Blocks for models whose layers look back over different lengths.

The layers are cut into groups of equal size; a block serves one group at a time, so that one pool
holds for all. Each group has a block table of its own. In a group with a window, blocks that the next
query sees no longer are given back while the sequence runs, and their entries point to the null
block.

Slots are counted by group: a token takes one in each group that still holds it. Prefixes are not
reused here: a hit would need the blocks of the last window of every group as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Sequences

from reference_server.errors import IntegrityError
from reference_server.kv.allocator import TABLE_ENTRY_BYTES, Shortage, Usage
from reference_server.kv.paged import blocks_for
from reference_server.kv.pool import NULL_BLOCK_ID, BlockPool
from reference_server.sequence import Sequence


class HybridAllocator:
    """One table a sequence and group, over one pool."""

    name = "paged"
    prefix_caching = False

    def __init__(
        self, num_blocks: int, block_size: int, windows: Sequences[int | None], *, chunk_tokens: int
    ) -> None:
        """`windows` has an entry a group; `chunk_tokens` is the most that one step computes."""
        self.pool = BlockPool(num_blocks)
        self.block_size = block_size
        self.last_shortage: Shortage | None = None
        self._windows = tuple(windows)
        self._chunk_tokens = chunk_tokens
        self._failures = 0

    @property
    def capacity_tokens(self) -> int:
        """By bisection: what a sequence needs at most while it grows to so many tokens."""
        low, high = 0, self.pool.total * self.block_size
        while low < high:
            middle = -(-(low + high) // 2)
            low, high = (middle, high) if self.most_blocks(middle) <= self.pool.total else (low, middle - 1)
        return low

    def most_blocks(self, num_tokens: int) -> int:
        """Blocks that a sequence of so many tokens holds at most at any one time."""
        return sum(
            blocks_for(num_tokens, self.block_size)
            if window is None
            # One block more: the window need not begin where a block does.
            else min(
                blocks_for(window - 1 + self._chunk_tokens, self.block_size) + 1,
                blocks_for(num_tokens, self.block_size),
            )
            for window in self._windows
        )

    def begin(self, sequence: Sequence) -> int:
        if any(self._tables(sequence)):
            raise IntegrityError(f"{sequence.request_id} already holds blocks")
        return 0

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        total = blocks_for(num_tokens, self.block_size)
        tables = self._tables(sequence)
        missing = [
            range(max(len(table), self._first_seen(sequence, window)), total)
            for table, window in zip(tables, self._windows, strict=True)
        ]
        wanted = sum(map(len, missing))
        if wanted > self.pool.available:
            self.last_shortage = Shortage(wanted, self.pool.available, self.pool.available)
            self._failures += 1
            return False
        for table, new in zip(tables, missing, strict=True):
            table.extend([NULL_BLOCK_ID] * (min(new.start, total) - len(table)))
            table.extend(block.block_id for block in self.pool.take(len(new)))
        sequence.block_table, sequence.extra_tables = tables[0], tables[1:]
        return True

    def commit(self, sequence: Sequence) -> None:
        """Give back what no later query sees."""
        tables = self._tables(sequence)
        for table, window in zip(tables, self._windows, strict=True):
            passed = min(self._first_seen(sequence, window), len(table))
            # Blocks are freed from the front on, so that the first one that is gone ends the walk.
            index = passed - 1
            while index >= 0 and table[index] != NULL_BLOCK_ID:
                self.pool.release([self.pool.block(table[index])])
                table[index] = NULL_BLOCK_ID
                index -= 1
        sequence.block_table, sequence.extra_tables = tables[0], tables[1:]

    def release(self, sequence: Sequence) -> None:
        for table in self._tables(sequence):
            self.pool.release(self.pool.block(block_id) for block_id in reversed(list(_held(table))))
        sequence.block_table, sequence.extra_tables = [], []

    def usage(self, holders: Iterable[Sequence]) -> Usage:
        held = entries = stored = reserved = 0
        for sequence in holders:
            started = blocks_for(sequence.num_computed, self.block_size)
            for table in self._tables(sequence):
                here = [index for index, block_id in enumerate(table) if block_id != NULL_BLOCK_ID]
                entries += len(table)
                held += len(here)
                reserved += sum(index >= started for index in here) * self.block_size
                stored += sum(
                    min(self.block_size, max(sequence.num_computed - index * self.block_size, 0))
                    for index in here
                )
        return Usage(
            blocks_total=self.pool.total,
            blocks_used=self.pool.used,
            blocks_cached=0,
            blocks_free=self.pool.free,
            table_blocks=held,
            stored_tokens=stored,
            tail_slots=held * self.block_size - stored - reserved,
            reserved_slots=reserved,
            largest_free_blocks=self.pool.available,
            table_bytes=entries * TABLE_ENTRY_BYTES,
            metadata_bytes=self.pool.metadata_bytes,
            failures_total=self._failures,
        )

    def unreachable_blocks(self) -> int:
        return 0

    def check(self, holders: Iterable[Sequence]) -> None:
        owners: Counter[int] = Counter()
        for sequence in holders:
            for table, window in zip(self._tables(sequence), self._windows, strict=True):
                if sequence.num_computed > len(table) * self.block_size:
                    raise IntegrityError(f"{sequence.request_id} has computed tokens without a slot")
                if NULL_BLOCK_ID in table[self._first_seen(sequence, window) :]:
                    raise IntegrityError(f"{sequence.request_id} gave up a block within its window")
                owners.update(_held(table))
        if any(count > 1 for count in owners.values()):
            raise IntegrityError("a block stands in two tables")
        self.pool.check(owners)

    def _tables(self, sequence: Sequence) -> list[list[int]]:
        extra = sequence.extra_tables or [[] for _ in self._windows[1:]]
        return [list(sequence.block_table), *extra]

    def _first_seen(self, sequence: Sequence, window: int | None) -> int:
        """Index of the first block that the query at `num_computed` sees a token of."""
        return 0 if window is None else max(sequence.num_computed - window + 1, 0) // self.block_size


def _held(table: list[int]) -> Iterator[int]:
    return (block_id for block_id in table if block_id != NULL_BLOCK_ID)
