"""The paged allocator against a model that remembers what was written where, token by token."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reference_server.detokenizer import TextStream
from reference_server.kv.paged import PagedAllocator
from reference_server.kv.preemption import RecomputePreemption
from reference_server.kv.prefix import HashChain, PrefixHasher
from reference_server.models.tokenizer import ByteTokenizer
from reference_server.sampler import SamplingParams, TokenChooser
from reference_server.sequence import Sequence, Timeline
from tests.reference_server.server_rig import Rig

TOKENIZER = ByteTokenizer()


def make_sequence(name: str, tokens: list[int], hasher: PrefixHasher, salt: str | None = None) -> Sequence:
    return Sequence(
        request_id=name,
        tokens=tokens,
        num_prompt_tokens=len(tokens),
        max_tokens=1000,
        chooser=TokenChooser(SamplingParams()),
        text=TextStream(TOKENIZER),
        chain=HashChain(hasher, salt),
        timeline=Timeline(arrived=time.monotonic()),
        stop_token=None,
    )


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_the_pools_bytes_are_bytes_a_token_times_slots(block_size: int) -> None:
    rig = Rig(blocks=9, block_size=block_size)
    slots = 10 * block_size
    assert rig.core.runner._model.attention.cache_bytes == slots * rig.core.state.bytes_per_token
    assert f'kv_cache_memory_bytes="{slots * rig.core.state.bytes_per_token}"' in rig.metrics.page().decode()


class AllocatorAgainstMemory(RuleBasedStateMachine):
    """Each block's slots hold the whole prefix up to their token, as KV data does.

    What a sequence finds in its blocks must be its own prefix: a block handed to two, overwritten
    while it is shared, or found by a wrong hash shows at once.
    """

    @initialize(size=st.sampled_from([1, 2, 4]), blocks=st.integers(1, 9), caching=st.booleans())
    def start(self, size: int, blocks: int, caching: bool) -> None:
        self.size = size
        self.allocator = PagedAllocator(blocks + 1, size, prefix_caching=caching)
        self.manager = RecomputePreemption(self.allocator)
        self.hasher = PrefixHasher(size)
        self.memory: dict[tuple[int, int], tuple[object, ...]] = {}
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.names = itertools.count()

    def prefix(self, sequence: Sequence, end: int) -> tuple[object, ...]:
        return (sequence.chain._root, *sequence.tokens[:end])

    def slot(self, sequence: Sequence, index: int) -> tuple[int, int]:
        return sequence.block_table[index // self.size], index % self.size

    def compute(self, sequence: Sequence, count: int) -> None:
        for index in range(sequence.num_computed, sequence.num_computed + count):
            self.memory[self.slot(sequence, index)] = self.prefix(sequence, index + 1)
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
            assert sequence.block_table == []
            assert sequence.num_computed == 0

    @precondition(lambda self: self.running)
    @rule(token=st.integers(0, 1), data=st.data())
    def grow(self, token: int, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.running))
        if not sequence.num_pending:
            sequence.tokens.append(token)
        wanted = sequence.num_computed + 1
        need = -(-wanted // self.size) - len(sequence.block_table)
        usage = self.allocator.usage(self.running)
        fits = self.allocator.extend(sequence, wanted)
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
        for sequence in self.running:
            for index in range(sequence.num_computed):
                assert self.memory[self.slot(sequence, index)] == self.prefix(sequence, index + 1)
        usage = self.allocator.usage(self.running)
        assert usage.blocks_used == len({b for s in self.running for b in s.block_table})
        assert usage.blocks_used + usage.blocks_cached + usage.blocks_free == usage.blocks_total


TestAllocatorAgainstMemory = AllocatorAgainstMemory.TestCase
TestAllocatorAgainstMemory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
