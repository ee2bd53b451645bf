"""The paged allocator: blocks on demand, shared by equal prefixes, evicted by LRU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from reference_server.errors import IntegrityError
from reference_server.kv.allocator import TABLE_ENTRY_BYTES, Shortage, Usage, slots
from reference_server.kv.pool import Block, BlockPool
from reference_server.sequence import Sequence


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens."""
    return -(-num_tokens // block_size)


class PagedAllocator:
    """One block table per sequence, over one pool."""

    name = "paged"

    def __init__(
        self, num_blocks: int, block_size: int, *, prefix_caching: bool, most_cached: int | None = None
    ) -> None:
        self.pool = BlockPool(num_blocks, most_cached=most_cached)
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self.last_shortage: Shortage | None = None
        self._failures = 0

    @property
    def capacity_tokens(self) -> int:
        return self.pool.total * self.block_size

    def begin(self, sequence: Sequence) -> int:
        if sequence.block_table:
            raise IntegrityError(f"{sequence.request_id} already holds blocks")
        if not self.prefix_caching:
            return 0
        hit = self._longest_hit(sequence)
        for block in hit:
            self.pool.share(block)
        sequence.block_table = [block.block_id for block in hit]
        sequence.num_committed_blocks = len(hit)
        return len(hit) * self.block_size

    def _longest_hit(self, sequence: Sequence) -> list[Block]:
        most = (len(sequence.tokens) - 1) // self.block_size
        hit: list[Block] = []
        for digest in sequence.chain.grow(sequence.tokens)[:most]:
            block = self.pool.find(digest)
            if block is None:
                break
            hit.append(block)
        return hit

    def extend(self, sequence: Sequence, num_tokens: int) -> bool:
        wanted = blocks_for(num_tokens, self.block_size) - len(sequence.block_table)
        if wanted > self.pool.available:
            self.last_shortage = Shortage(wanted, self.pool.available, self.pool.available)
            self._failures += 1
            return False
        if wanted > 0:
            taken = [block.block_id for block in self.pool.take(wanted)]
            sequence.block_table = [*sequence.block_table, *taken]
        return True

    def commit(self, sequence: Sequence) -> None:
        if not self.prefix_caching:
            return
        full = sequence.num_computed // self.block_size
        if full <= sequence.num_committed_blocks:
            return
        digests = sequence.chain.grow(sequence.tokens)
        for index in range(sequence.num_committed_blocks, full):
            block = self.pool.block(sequence.block_table[index])
            if block.hash is None:
                self.pool.remember(block, digests[index], digests[index - 1] if index else None)
        sequence.num_committed_blocks = full

    def release(self, sequence: Sequence) -> None:
        self.pool.release(self.pool.block(block_id) for block_id in reversed(sequence.block_table))
        sequence.block_table = []
        sequence.num_committed_blocks = 0

    def usage(self, holders: Iterable[Sequence]) -> Usage:
        stored = tail = reserved = entries = 0
        for sequence in holders:
            end, beyond = slots(sequence, self.block_size)
            stored += sequence.num_computed
            tail, reserved = tail + end, reserved + beyond
            entries += len(sequence.block_table)
        return Usage(
            blocks_total=self.pool.total,
            blocks_used=self.pool.used,
            blocks_cached=self.pool.cached,
            blocks_free=self.pool.free,
            blocks_evicted_total=self.pool.evicted_total,
            table_blocks=entries,
            stored_tokens=stored,
            tail_slots=tail,
            reserved_slots=reserved,
            largest_free_blocks=self.pool.available,
            table_bytes=entries * TABLE_ENTRY_BYTES,
            metadata_bytes=self.pool.metadata_bytes,
            failures_total=self._failures,
        )

    def unreachable_blocks(self) -> int:
        return self.pool.unreachable()

    def check(self, holders: Iterable[Sequence]) -> None:
        owners: Counter[int] = Counter()
        for sequence in holders:
            ids = sequence.block_table
            if len(set(ids)) != len(ids):
                raise IntegrityError(f"{sequence.request_id} lists a block twice")
            if sequence.num_computed > len(ids) * self.block_size:
                raise IntegrityError(f"{sequence.request_id} has computed tokens without a slot")
            owners.update(ids)
        self.pool.check(owners)
