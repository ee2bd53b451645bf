"""Every allocator, with both ways of preemption, against a memory that knows what was written where."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reference_server.kv.prefix import PrefixHasher
from reference_server.sequence import Sequence
from tests.reference_server.memory_model import (
    ALLOCATORS,
    Memory,
    check_usage,
    make_allocator,
    make_manager,
    make_sequence,
)
from tests.reference_server.server_rig import Rig

REGIONS = ("contiguous", "contiguous-exact", "pieces")


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_the_pools_bytes_are_bytes_a_token_times_slots(block_size: int) -> None:
    rig = Rig(blocks=9, block_size=block_size)
    slots = 10 * block_size
    assert rig.core.state.pool_bytes == slots * rig.core.state.bytes_per_token
    assert f'kv_cache_memory_bytes="{slots * rig.core.state.bytes_per_token}"' in rig.metrics.page().decode()


class AllocatorAgainstMemory(RuleBasedStateMachine):
    """Admit, grow, evict and drop at random, the test being the scheduler."""

    @initialize(
        kind=st.sampled_from(ALLOCATORS),
        size=st.sampled_from([1, 2, 4]),
        blocks=st.integers(1, 9),
        caching=st.booleans(),
        host_blocks=st.sampled_from([None, 0, 3, 100]),
    )
    def start(self, kind: str, size: int, blocks: int, caching: bool, host_blocks: int | None) -> None:
        self.kind, self.size = kind, size
        self.memory = Memory(1 if kind in REGIONS else size)
        self.allocator = make_allocator(kind, blocks * size, size, self.memory, caching=caching)
        self.manager = make_manager(self.allocator, self.memory, host_blocks)
        self.hasher = PrefixHasher(self.allocator.block_size)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.names = itertools.count()

    def compute(self, sequence: Sequence, count: int) -> None:
        for index in range(sequence.num_computed, sequence.num_computed + count):
            self.memory.write(sequence, index)
        sequence.num_computed += count
        self.allocator.commit(sequence)

    # Few tokens and few lengths, so that prefixes are shared often.
    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=14), salt=st.sampled_from([None, "tenant"]))
    def arrive(self, tokens: list[int], salt: str | None) -> None:
        self.waiting.append(make_sequence(f"s{next(self.names)}", tokens, self.hasher, salt))

    @precondition(lambda self: self.waiting)
    @rule(budget=st.integers(1, 16), data=st.data())
    def admit(self, budget: int, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.waiting))
        before = self.allocator.usage(self.running)
        if self.manager.admit(sequence, budget):
            assert sequence.num_computed < len(sequence.tokens), "the last token is always computed"
            self.waiting.remove(sequence)
            self.running.append(sequence)
            self.compute(sequence, min(budget, sequence.num_pending))
        else:
            after = self.allocator.usage(self.running)
            assert (before.blocks_used, before.blocks_cached) == (after.blocks_used, after.blocks_cached)
            assert len(sequence.block_table) == 0
            assert sequence.num_computed == 0
            shortage = self.allocator.last_shortage
            assert shortage is not None
            if len(sequence.tokens) <= self.allocator.capacity_tokens:
                assert shortage.asked > shortage.largest_free

    @precondition(lambda self: self.running)
    @rule(token=st.integers(0, 1), data=st.data())
    def grow(self, token: int, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        if not sequence.num_pending:
            sequence.tokens.append(token)
        wanted = sequence.num_computed + 1
        need = -(-wanted // self.allocator.block_size) - len(sequence.block_table)
        usage = self.allocator.usage(self.running)
        fits = self.allocator.extend(sequence, wanted)
        if self.kind == "paged" or need <= 0:
            assert fits == (need <= usage.blocks_free + usage.blocks_cached), "cached blocks are room"
        if fits:
            self.compute(sequence, 1)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        self.running.remove(sequence)
        self.manager.evict(sequence)
        self.waiting.append(sequence)

    @precondition(lambda self: self.running or self.waiting)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.running + self.waiting))
        (self.running if sequence in self.running else self.waiting).remove(sequence)
        self.manager.drop(sequence)

    @invariant()
    def everyone_finds_their_own_prefix(self) -> None:
        if not hasattr(self, "allocator"):
            return
        self.allocator.check(self.running)
        self.manager.check()
        for sequence in self.running:
            self.memory.check(sequence)
        check_usage(self.allocator, self.running)
        if not self.running and not self.waiting:
            assert self.manager.usage().blocks_used == 0


TestAllocatorAgainstMemory = AllocatorAgainstMemory.TestCase
TestAllocatorAgainstMemory.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
