"""Scheduling, sharing and preemption, on the real engine core with a small real model."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_server.kv.paged import PagedAllocator
from reference_server.sampler import SamplingParams
from reference_server.sequence import FinishReason
from tests.reference_server.server_rig import SMALL, Rig, count_ties

WORDS = ["cache", "block", "token", "prefix", "memory", "queue", "page", "table", "chunk", "decode"]


def words(seed: int, length: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(WORDS) for _ in range(length))[:length]


def allocator_of(rig: Rig) -> PagedAllocator:
    assert isinstance(rig.core.allocator, PagedAllocator)
    return rig.core.allocator


def test_greedy_text_is_that_of_a_full_recompute_without_cache() -> None:
    rig = Rig(max_num_batched_tokens=48)
    sequences = [rig.add(words(seed, 20 + 17 * seed), 12) for seed in range(8)]
    rig.drain()
    assert sum(count_ties(SMALL, sequence) for sequence in sequences) <= 1
    assert all(sequence.num_output_tokens == 12 for sequence in sequences)


def test_a_long_prompt_is_computed_in_chunks_while_others_decode() -> None:
    rig = Rig(max_num_batched_tokens=32)
    short = rig.add("hi", 30)
    rig.step()
    long = rig.add(words(1, 150), 2)
    computed, generated = [], []
    while long.num_output_tokens == 0:
        rig.step()
        computed.append(long.num_computed)
        generated.append(short.num_output_tokens)
    assert computed[:4] == [31, 62, 93, 124]
    assert generated == list(range(2, 2 + len(generated))), "decode went on in every step"


def test_the_token_budget_and_sequence_limit_hold() -> None:
    rig = Rig(max_num_batched_tokens=20, max_num_seqs=3)
    sequences = [rig.add(words(seed, 30), 4) for seed in range(6)]
    while rig.core.has_work:
        before = sum(s.num_computed for s in sequences)
        rig.step()
        assert sum(s.num_computed for s in sequences) - before <= 20
        assert rig.core.state.running <= 3
    assert rig.core.state.running_max == 3


def test_a_full_hit_still_computes_its_last_token() -> None:
    rig = Rig()
    prompt = words(3, 63)
    first = rig.add(prompt, 4)
    rig.drain()
    again = rig.add(prompt, 4)
    rig.step()
    assert len(again.tokens) - again.num_output_tokens == 64
    assert again.cached_tokens == 48, "of 4 full blocks the last is computed for its last token"
    assert again.num_output_tokens == 1
    rig.drain()
    assert rig.text(again) == rig.text(first)


def test_two_equal_prompts_in_one_step_keep_both_copies() -> None:
    rig = Rig(max_num_batched_tokens=256)
    one, other = rig.add(words(4, 80), 3), rig.add(words(4, 80), 3)
    rig.step()
    assert one.cached_tokens == other.cached_tokens == 0
    ids = [set(sequence.block_table) for sequence in (one, other)]
    assert not ids[0] & ids[1]
    rig.drain()
    assert rig.text(one) == rig.text(other)
    third = rig.add(words(4, 80), 3)
    rig.drain()
    assert third.cached_tokens == 80
    assert rig.text(third) == rig.text(one)


def test_a_running_request_shares_its_blocks() -> None:
    rig = Rig()
    prompt = words(5, 70)
    holder = rig.add(prompt + "A", 20)
    rig.step()
    guest = rig.add(prompt + "B", 20)
    rig.step()
    assert guest.block_table[:4] == holder.block_table[:4]
    assert all(block.refcount == 2 for block in map(allocator_of(rig).pool.block, guest.block_table[:4]))
    assert rig.core.state.usage.blocks_used < len(holder.block_table) + len(guest.block_table)
    rig.drain()
    assert rig.core.state.usage.blocks_used == 0


def test_the_newest_is_preempted_and_texts_do_not_change() -> None:
    prompts = [words(seed, 40) for seed in range(3)]
    roomy = Rig(blocks=64).generate(prompts, 40)
    rig = Rig(blocks=12)
    sequences = [rig.add(prompt, 40) for prompt in prompts]
    rig.drain()
    assert [rig.text(sequence) for sequence in sequences] == roomy
    assert sequences[0].num_preemptions == 0
    assert sequences[-1].num_preemptions > 0
    assert rig.value("num_preemptions_total") == sum(s.num_preemptions for s in sequences)
    assert rig.value("request_success_total", finished_reason="length") == 3


def test_a_block_shared_by_two_survives_the_preemption_of_one() -> None:
    prompt = words(6, 64)
    expected = Rig(blocks=64).generate([prompt + "A", prompt + "B"], 60)
    rig = Rig(blocks=10)
    old = rig.add(prompt + "A", 60)
    rig.step()
    new = rig.add(prompt + "B", 60)
    while not new.num_preemptions:
        assert rig.core.has_work
        rig.step()
    assert new.block_table == []
    assert all(block.refcount == 1 for block in map(allocator_of(rig).pool.block, old.block_table))
    rig.drain()
    assert [rig.text(old), rig.text(new)] == expected


def test_sampled_text_does_not_change_with_preemption() -> None:
    sampling = SamplingParams(temperature=0.9, top_p=0.9, seed=7)
    texts = []
    for blocks in (64, 11):
        rig = Rig(blocks=blocks)
        sequences = [rig.add(words(seed, 40), 40, sampling=sampling) for seed in range(3)]
        rig.drain()
        texts.append([rig.text(sequence) for sequence in sequences])
    assert texts[0] == texts[1]
    assert rig.value("num_preemptions_total") > 0


def test_a_waiting_request_is_not_hashed_again() -> None:
    rig = Rig(blocks=8, max_num_seqs=4)
    rig.add(words(7, 60), 60)
    rig.step()
    waiting = rig.add(words(8, 120), 1)
    rig.step()
    hashed = len(waiting.chain.digests)
    assert hashed == 7
    hasher = rig.core._hasher
    others = hasher.hashed_blocks_total
    for _ in range(5):
        rig.step()
    assert waiting.num_output_tokens == 0
    assert hasher.hashed_blocks_total - others <= 1, "only the running request grew by a block"
    rig.drain()


def test_a_sequence_alone_that_finds_no_room_fails_instead_of_spinning() -> None:
    rig = Rig(blocks=4)
    hoard = allocator_of(rig).pool.take(2)
    rig.core._check_integrity = False
    sequence = rig.add(words(9, 30), 30)
    rig.drain(most_steps=200)
    assert sequence.finished is FinishReason.ERROR
    assert rig.events[sequence.request_id][-1].error is not None
    allocator_of(rig).pool.release(hoard)
    rig.core.check()
    assert rig.generate(["next"], 3)[0], "the engine serves on"


def test_abort_frees_blocks_at_once_running_or_waiting() -> None:
    rig = Rig(blocks=8)
    running = rig.add(words(1, 60), 60)
    rig.step()
    waiting = rig.add(words(2, 120), 4)
    rig.step()
    assert rig.core.state.waiting == 1
    rig.core.abort(waiting.request_id)
    assert rig.core.state.waiting == 0
    rig.core.abort(running.request_id)
    usage = rig.core.state.usage
    assert usage.blocks_used == 0
    assert usage.blocks_free + usage.blocks_cached == usage.blocks_total
    rig.core.abort(running.request_id)
    assert not rig.core.has_work
    assert rig.value("request_success_total", finished_reason="abort") == 2


def test_without_prefix_caching_nothing_is_cached_or_counted() -> None:
    rig = Rig(prefix_caching=False)
    sequences = [rig.add(words(1, 80), 4)]
    rig.drain()
    sequences.append(rig.add(words(1, 80), 4))
    rig.drain()
    assert rig.text(sequences[0]) == rig.text(sequences[1])
    assert [s.cached_tokens for s in sequences] == [0, 0]
    assert rig.value("prefix_cache_queries_total") == 0
    assert rig.core.state.usage.blocks_cached == 0


def test_prefix_counters_count_tokens() -> None:
    rig = Rig()
    for _ in range(2):
        rig.add(words(1, 80), 2)
        rig.drain()
    assert rig.value("prefix_cache_queries_total") == 2 * 81
    assert rig.value("prefix_cache_hits_total") == 80
    assert rig.value("prompt_tokens_total") == 2 * 81
    assert rig.value("generation_tokens_total") == 4


def test_a_cache_salt_keeps_tenants_apart() -> None:
    rig = Rig()
    rig.add(words(1, 80), 1, cache_salt="one")
    rig.drain()
    other = rig.add(words(1, 80), 1, cache_salt="other")
    same = rig.add(words(1, 80), 1, cache_salt="one")
    rig.drain()
    assert (other.cached_tokens, same.cached_tokens) == (0, 80)


def test_tail_slots_are_the_empty_ones_of_last_blocks() -> None:
    rig = Rig()
    for length in (34, 16, 47):
        rig.add(words(1, length), 5)
    rig.step()
    assert rig.core.state.usage.blocks_used == 3 + 2 + 3
    assert rig.core.state.usage.tail_slots == 8 * 16 - (35 + 17 + 48)
    rig.drain()


def test_a_stop_string_ends_the_request_and_is_not_sent() -> None:
    rig = Rig()
    whole = rig.generate([words(2, 30)], 30)[0]
    stop = whole[11:13]
    sequence = rig.add(words(2, 30), 30, stops=[stop])
    rig.drain()
    assert sequence.finished is FinishReason.STOP
    assert rig.text(sequence) == whole[: whole.index(stop)]


def test_eos_ends_a_request_unless_it_is_ignored() -> None:
    finished = set()
    rig = Rig()
    sampling = SamplingParams(temperature=2.0, seed=3)
    sequences = [rig.add(words(s, 20), 150, ignore_eos=False, sampling=sampling) for s in range(8)]
    rig.drain()
    finished = {sequence.finished for sequence in sequences}
    assert FinishReason.STOP in finished
    stopped = next(s for s in sequences if s.finished is FinishReason.STOP)
    assert stopped.tokens[-1] == 257
    assert len(rig.text(stopped)) == stopped.num_output_tokens - 1


@pytest.mark.parametrize("block_size", [1, 8, 32, 512])
def test_other_block_sizes_give_the_same_text(block_size: int) -> None:
    prompts = [words(seed, 50) for seed in range(3)]
    expected = Rig().generate(prompts, 6)
    rig = Rig(block_size=block_size, blocks=2048 // block_size)
    assert rig.generate(prompts, 6) == expected
    assert rig.generate(prompts, 6) == expected


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_load_keeps_the_books_and_the_texts(data: st.DataObject) -> None:
    """Random arrivals, aborts and a pool that is too small: each text is that of a quiet server."""
    families = data.draw(st.lists(st.integers(0, 2), min_size=2, max_size=6))
    prompts = [words(f, 40) + words(10 + i, 1 + 7 * i) for i, f in enumerate(families)]
    rig = Rig(blocks=data.draw(st.integers(9, 14)), max_num_batched_tokens=data.draw(st.integers(5, 64)))
    sequences = []
    for prompt in prompts:
        sequences.append(rig.add(prompt, 24))
        for _ in range(data.draw(st.integers(0, 4))):
            rig.step()
        if data.draw(st.integers(0, 4)) == 0:
            rig.core.abort(data.draw(st.sampled_from(sequences)).request_id)
    rig.drain()
    rig.core.check()
    assert rig.core.state.usage.blocks_used == 0
    quiet = Rig(blocks=64, prefix_caching=False)
    for prompt, sequence in zip(prompts, sequences, strict=True):
        if sequence.finished is FinishReason.LENGTH:
            assert rig.text(sequence) == quiet.generate([prompt], 24)[0]


def test_eviction_takes_the_tail_of_a_finished_prompt_before_its_head() -> None:
    rig = Rig(blocks=10)
    prompt = words(1, 100)
    rig.add(prompt, 1)
    rig.drain()
    assert rig.core.state.usage.blocks_cached == 6
    rig.add(words(2, 100), 1)
    rig.drain()
    assert rig.core.state.usage.blocks_evicted_total == 3
    again = rig.add(prompt, 1)
    rig.step()
    assert again.cached_tokens == 3 * 16, "the head of the old prompt is still there"


def test_a_prompt_that_fills_its_last_block_is_found_whole() -> None:
    rig = Rig()
    prompt = words(1, 63)
    rig.add(prompt, 1)
    rig.drain()
    longer = rig.add(prompt + "more", 1)
    rig.drain()
    assert longer.cached_tokens == 64


def test_a_step_that_preempts_admits_nobody() -> None:
    rig = Rig(blocks=8)
    old, new = rig.add(words(1, 40), 60), rig.add(words(2, 60), 60)
    while not new.num_preemptions:
        rig.step()
    assert rig.core.scheduler.running == [old]
    assert list(rig.core.scheduler.waiting) == [new]
    assert rig.core.state.usage.blocks_cached + rig.core.state.usage.blocks_free > 0
    rig.drain()
    assert old.num_output_tokens == new.num_output_tokens == 60


@pytest.mark.parametrize("threads", [1, 2])
def test_text_does_not_depend_on_the_batch(threads: int) -> None:
    prompts = [words(seed, 30 + 11 * seed) for seed in range(9)]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        together = Rig(max_num_batched_tokens=50).generate(prompts, 20)
        alone = Rig(prefix_caching=False)
        assert together == [alone.generate([prompt], 20)[0] for prompt in prompts]
    finally:
        torch.set_num_threads(before)
