"""Preemption by swapping: a sequence's KV data waits in host memory.

The scheduler does not know: it evicts and admits as ever. What does not fit into the host pool is
forgotten and computed again.

On the way back, blocks of the prefix that are still (or again) in the cache are shared and not
copied: they may belong to others.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Sequences
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from reference_server.errors import IntegrityError
from reference_server.kv.allocator import Allocator
from reference_server.kv.pool import NULL_BLOCK_ID
from reference_server.kv.preemption import RecomputePreemption, SwapUsage
from reference_server.sequence import Sequence

HostT = TypeVar("HostT")
Place = tuple[int, int]
"""Which of a sequence's tables, and which of its entries."""


class BlockCopier(Protocol[HostT]):
    """The KV storage, as far as swapping needs it."""

    def export_blocks(self, ids: Sequences[int]) -> HostT:
        """A copy of blocks in host memory."""

    def import_blocks(self, ids: Sequences[int], host: HostT, rows: Sequences[int] | None = None) -> None:
        """Write `rows` of a copy (all, when None) into the blocks `ids`."""


@dataclass(frozen=True, slots=True)
class _Parked(Generic[HostT]):
    data: HostT
    places: list[Place]
    num_computed: int


class SwapPreemption(Generic[HostT]):
    """Keeps up to `host_blocks` blocks."""

    name = "swap"

    def __init__(self, allocator: Allocator, store: BlockCopier[HostT], host_blocks: int) -> None:
        self._allocator = allocator
        self._store = store
        self._host_blocks = host_blocks
        self._recompute = RecomputePreemption(allocator)
        self._parked: dict[str, _Parked[HostT]] = {}
        self._used = self._out_total = self._in_total = 0

    def admit(self, sequence: Sequence, most_new: int) -> bool:
        parked = self._parked.get(sequence.request_id)
        if parked is None:
            return self._recompute.admit(sequence, most_new)
        found = self._allocator.begin(sequence)
        # Set before room is made: an allocator that leaves out what lies behind a window must know.
        sequence.num_computed = max(found, min(parked.num_computed, len(sequence.tokens) - 1))
        if not self._allocator.extend(sequence, min(len(sequence.tokens), sequence.num_computed + most_new)):
            self._allocator.release(sequence)
            sequence.num_computed = 0
            return False
        self._restore(sequence, parked, found // self._allocator.block_size)
        self._allocator.commit(sequence)
        return True

    def evict(self, sequence: Sequence) -> int:
        places = list(self._places(sequence))
        if not places or self._used + len(places) > self._host_blocks:
            return self._recompute.evict(sequence)
        tables = tables_of(sequence)
        data = self._store.export_blocks([tables[table][index] for table, index in places])
        self._parked[sequence.request_id] = _Parked(data, places, sequence.num_computed)
        self._used += len(places)
        self._out_total += len(places)
        self._recompute.evict(sequence)
        return len(places)

    def drop(self, sequence: Sequence) -> None:
        self._forget(sequence)
        self._recompute.drop(sequence)

    def usage(self) -> SwapUsage:
        return SwapUsage(
            blocks_total=self._host_blocks,
            blocks_used=self._used,
            requests=len(self._parked),
            out_total=self._out_total,
            in_total=self._in_total,
        )

    def check(self) -> None:
        if self._used != sum(len(parked.places) for parked in self._parked.values()):
            raise IntegrityError("the swap pool's blocks do not add up")

    def _restore(self, sequence: Sequence, parked: _Parked[HostT], shared_blocks: int) -> None:
        tables = tables_of(sequence)
        rows, ids = [], []
        for row, (table, index) in enumerate(parked.places):
            block = tables[table][index]
            if index >= shared_blocks and block != NULL_BLOCK_ID:
                rows.append(row)
                ids.append(block)
        if ids:
            self._store.import_blocks(ids, parked.data, rows)
        self._in_total += len(ids)
        self._forget(sequence)

    def _forget(self, sequence: Sequence) -> None:
        parked = self._parked.pop(sequence.request_id, None)
        if parked is not None:
            self._used -= len(parked.places)

    def _places(self, sequence: Sequence) -> Iterator[Place]:
        """Entries of the tables that hold computed tokens."""
        started = -(-sequence.num_computed // self._allocator.block_size)
        for number, table in enumerate(tables_of(sequence)):
            for index, block in enumerate(table[:started]):
                if block != NULL_BLOCK_ID:
                    yield number, index


def tables_of(sequence: Sequence) -> list[Sequences[int]]:
    """All block tables; a model with one kind of layer has one."""
    return [sequence.block_table, *sequence.extra_tables]
