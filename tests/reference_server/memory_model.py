"""KV memory as a dictionary: what stands in a slot is the whole prefix up to its token.

KV data depends on all tokens before it, so what a sequence finds in its slots must be its own
prefix: a block handed to two, overwritten while it is shared, found by a wrong hash, moved or
swapped to the wrong place shows at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Sequences

from reference_server.detokenizer import TextStream
from reference_server.kv.allocator import Allocator
from reference_server.kv.backed import BackedRegions
from reference_server.kv.contiguous import ContiguousAllocator, ExactAllocator
from reference_server.kv.paged import PagedAllocator
from reference_server.kv.preemption import PreemptionManager, RecomputePreemption
from reference_server.kv.prefix import HashChain, PrefixHasher
from reference_server.kv.reserve import ReservingAllocator
from reference_server.kv.swap import SwapPreemption
from reference_server.models.tokenizer import ByteTokenizer
from reference_server.sampler import SamplingParams, TokenChooser
from reference_server.sequence import Sequence, Timeline

ALLOCATORS = ("paged", "paged-reserve", "contiguous", "contiguous-exact", "pieces")
"""`pieces` is contiguous-exact that never joins free regions."""
BACKED = ("contiguous-backed", "contiguous-exact-backed")
"""Regions of a line whose memory comes in segments, which a device has a few of."""
SEGMENT_SLOTS = 3


class FewSegments:
    """A device with room for so many segments at once."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.present: set[int] = set()

    def allocate(self, index: int) -> bool:
        assert index not in self.present
        if len(self.present) >= self.count:
            return False
        self.present.add(index)
        return True

    def release(self, index: int) -> None:
        self.present.remove(index)

    def room(self) -> int:
        return self.count - len(self.present)


def backed_regions(slots: int, segment_slots: int) -> BackedRegions:
    """For at least `slots` slots at once."""
    count = -(-slots // segment_slots)
    return BackedRegions(FewSegments(count), segment_slots=segment_slots, count=count, most=64 * count)


Content = tuple[object, ...]
_TOKENIZER = ByteTokenizer()


class Memory:
    """Stands in for the KV store."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._slots: dict[tuple[int, int], Content] = {}

    def copy_blocks(self, source_ids: Sequences[int], target_ids: Sequences[int]) -> None:
        self.import_blocks(target_ids, self.export_blocks(source_ids))

    def export_blocks(self, ids: Sequences[int]) -> list[list[Content]]:
        return [[self._slots.get((i, at), ()) for at in range(self.block_size)] for i in ids]

    def import_blocks(
        self, ids: Sequences[int], host: list[list[Content]], rows: Sequences[int] | None = None
    ) -> None:
        for block, row in zip(ids, range(len(host)) if rows is None else rows, strict=True):
            for at, content in enumerate(host[row]):
                self._slots[block, at] = content

    def write(self, sequence: Sequence, index: int) -> None:
        """Compute token `index`: its KV data is made of all tokens up to it."""
        self._slots[self._slot(sequence, index)] = _prefix(sequence, index + 1)

    def check(self, sequence: Sequence) -> None:
        """Each computed token of the sequence is found where its table says."""
        for index in range(sequence.num_computed):
            assert self._slots[self._slot(sequence, index)] == _prefix(sequence, index + 1)

    def _slot(self, sequence: Sequence, index: int) -> tuple[int, int]:
        block = sequence.block_table[index // self.block_size]
        assert block != 0, "the null block holds nothing"
        return block, index % self.block_size


def _prefix(sequence: Sequence, end: int) -> Content:
    return (sequence.chain._root, *sequence.tokens[:end])


def make_allocator(kind: str, slots: int, block_size: int, memory: Memory, *, caching: bool) -> Allocator:
    """`slots` usable token slots; blocks of `block_size` where the kind has blocks."""
    if kind == "contiguous":
        return ContiguousAllocator(slots + 1, max(slots // 2, 1))
    if kind == "contiguous-backed":
        region = max(slots // 2, 1)
        return ContiguousAllocator(slots + 1, region, regions=backed_regions(2 * region, region))
    if kind == "contiguous-exact-backed":
        regions = backed_regions(slots, SEGMENT_SLOTS)
        return ExactAllocator(slots + 1, block_size, memory.copy_blocks, regions=regions)
    if kind in ("contiguous-exact", "pieces"):
        return ExactAllocator(slots + 1, block_size, memory.copy_blocks, joining=kind != "pieces")
    blocks = slots // block_size + 1
    if kind == "paged-reserve":
        return ReservingAllocator(blocks, block_size, prefix_caching=caching)
    return PagedAllocator(blocks, block_size, prefix_caching=caching)


def make_manager(allocator: Allocator, memory: Memory, host_blocks: int | None) -> PreemptionManager:
    """Recompute, or swap to so many blocks."""
    if host_blocks is None:
        return RecomputePreemption(allocator)
    return SwapPreemption(allocator, memory, host_blocks)


def make_sequence(
    name: str, tokens: list[int], hasher: PrefixHasher, salt: str | None = None, max_tokens: int = 6
) -> Sequence:
    return Sequence(
        request_id=name,
        tokens=tokens,
        num_prompt_tokens=len(tokens),
        max_tokens=max_tokens,
        chooser=TokenChooser(SamplingParams()),
        text=TextStream(_TOKENIZER),
        chain=HashChain(hasher, salt),
        timeline=Timeline(arrived=time.monotonic()),
        stop_tokens=frozenset(),
    )


def check_usage(allocator: Allocator, holders: list[Sequence]) -> None:
    """The identities that `Usage` promises."""
    usage = allocator.usage(holders)
    assert usage.blocks_used + usage.blocks_cached + usage.blocks_free == usage.blocks_total
    table = sum(len(sequence.block_table) for sequence in holders)
    assert usage.table_blocks == table
    held = usage.stored_tokens + usage.tail_slots + usage.reserved_slots
    assert table * allocator.block_size == held
    assert usage.blocks_used == len({block for s in holders for block in s.block_table})
    assert usage.shared_blocks == table - usage.blocks_used
    assert usage.largest_free_blocks <= usage.blocks_free + usage.blocks_cached
    assert allocator.unreachable_blocks() <= usage.blocks_cached
