"""Blocks of models whose layers look back over different lengths."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_server.detokenizer import TextStream
from reference_server.kv.hybrid import HybridAllocator
from reference_server.kv.prefix import HashChain, PrefixHasher
from reference_server.models.tokenizer import ByteTokenizer
from reference_server.sampler import SamplingParams, TokenChooser
from reference_server.sequence import Sequence, Timeline

BLOCK = 4


def sequence(name: str, length: int) -> Sequence:
    return Sequence(
        request_id=name,
        tokens=[1] * length,
        num_prompt_tokens=length,
        max_tokens=1,
        chooser=TokenChooser(SamplingParams()),
        text=TextStream(ByteTokenizer()),
        chain=HashChain(PrefixHasher(BLOCK)),
        timeline=Timeline(arrived=0.0),
    )


def test_a_window_needs_no_more_than_itself_and_a_step() -> None:
    allocator = HybridAllocator(101, BLOCK, [None, 8, 8], chunk_tokens=16)
    # Full attention: 25 blocks of 100 tokens; a window: ceil((8 - 1 + 16) / 4) + 1 = 7 at most.
    assert allocator.most_blocks(100) == 25 + 7 + 7
    assert allocator.most_blocks(5) == 2 + 2 + 2
    assert allocator.capacity_tokens == (100 - 14) * BLOCK


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_any_chunks_keep_the_books_and_the_bound(seed: int) -> None:
    rng = random.Random(seed)
    window, chunk = rng.randint(1, 20), rng.randint(1, 24)
    allocator = HybridAllocator(rng.randint(20, 80), BLOCK, [None, window], chunk_tokens=chunk)
    running = [sequence(f"s{i}", rng.randint(1, 90)) for i in range(4)]
    for _ in range(120):
        one = rng.choice(running)
        count = min(one.num_pending, rng.randint(1, chunk))
        if count == 0 or not allocator.extend(one, one.num_computed + count):
            allocator.release(one)
            one.num_computed = 0
            continue
        held = sum(block != 0 for table in (one.block_table, *one.extra_tables) for block in table)
        assert held <= allocator.most_blocks(one.num_computed + count)
        one.num_computed += count
        allocator.commit(one)
        allocator.check(running)
        usage = allocator.usage(running)
        assert usage.table_blocks * BLOCK == usage.stored_tokens + usage.tail_slots + usage.reserved_slots
    for one in running:
        allocator.release(one)
    allocator.check(())
    assert allocator.pool.used == 0


def test_a_refusal_changes_nothing() -> None:
    allocator = HybridAllocator(6, BLOCK, [None, 8], chunk_tokens=8)
    one = sequence("one", 30)
    assert allocator.extend(one, 8)
    before = list(one.block_table), [list(table) for table in one.extra_tables]
    assert not allocator.extend(one, 16)
    assert (list(one.block_table), one.extra_tables) == before
    assert allocator.last_shortage is not None
    assert (allocator.last_shortage.asked, allocator.last_shortage.free) == (4, 1)


@pytest.mark.parametrize("length", [1, 40])
def test_capacity_is_what_fits_alone(length: int) -> None:
    allocator = HybridAllocator(9, BLOCK, [None, 8], chunk_tokens=8)
    one = sequence("one", length)
    most = min(allocator.capacity_tokens, length)
    while one.num_computed < most:
        step = min(8, most - one.num_computed)
        assert allocator.extend(one, one.num_computed + step)
        one.num_computed += step
        allocator.commit(one)
