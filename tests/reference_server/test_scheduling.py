"""Who gets on when there is little: tiny pools, small budgets, long prompts, hostile orders."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_server.sequence import FinishReason
from tests.reference_server.server_rig import Rig
from tests.reference_server.test_core import words


def test_the_oldest_gets_on_in_every_step_however_small_the_pool() -> None:
    """Two that preempt each other in turn would never end: here one of them always advances."""
    rig = Rig(blocks=6, block_size=4, max_num_batched_tokens=8)
    sequences = [rig.add(words(seed, 12), 8) for seed in range(5)]
    while rig.core.has_work:
        oldest = next(s for s in sequences if s.finished is None)
        before = (oldest.num_output_tokens, oldest.num_computed)
        rig.step()
        assert (oldest.num_output_tokens, oldest.num_computed) > before
    assert sum(s.num_preemptions for s in sequences) > 0
    assert [s.num_output_tokens for s in sequences] == [8] * 5


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("block_size", [1, 16])
def test_a_pool_of_one_or_two_blocks_serves_one_after_the_other(blocks: int, block_size: int) -> None:
    rig = Rig(blocks=blocks, block_size=block_size)
    length = blocks * block_size
    sequences = [rig.add([65 + i] * length, 1) for i in range(3)]
    rig.drain()
    assert [s.finished for s in sequences] == [FinishReason.LENGTH] * 3
    assert rig.core.state.usage_ratio_max == 1.0
    assert rig.core.state.usage.blocks_used == 0


def test_a_request_that_fills_the_pool_to_its_last_slot_runs_alone() -> None:
    rig = Rig(blocks=8)
    small = rig.add(words(1, 20), 20)
    rig.step()
    large = rig.add([66] * 100, 8 * 16 + 1 - 100)
    rig.drain()
    assert large.finished is small.finished is FinishReason.LENGTH
    assert len(large.tokens) == 8 * 16 + 1
    assert small.num_preemptions == 0


def test_a_head_that_does_not_fit_holds_the_queue_and_is_served_in_its_turn() -> None:
    """First come, first served: later, smaller ones do not starve it."""
    rig = Rig(blocks=8)
    rig.add(words(1, 60), 30)
    rig.step()
    head, small = rig.add(words(2, 100), 2), rig.add(words(3, 5), 2)
    rig.drain()
    assert head.timeline.scheduled is not None
    assert small.timeline.scheduled is not None
    assert head.timeline.scheduled <= small.timeline.scheduled
    assert head.num_output_tokens == small.num_output_tokens == 2


def test_tokens_are_counted_once_however_often_a_request_is_preempted() -> None:
    rig = Rig(blocks=12)
    sequences = [rig.add(words(seed, 40), 40) for seed in range(3)]
    rig.drain()
    assert rig.value("num_preemptions_total") > 0
    assert rig.value("prompt_tokens_total") == sum(s.num_prompt_tokens for s in sequences)
    assert rig.value("generation_tokens_total") == 120
    assert rig.value("prefix_cache_queries_total") == rig.value("prompt_tokens_total")
    assert rig.value("prefix_cache_hits_total") == sum(s.cached_tokens for s in sequences)
    assert (
        rig.value("request_queue_time_seconds_count") == rig.value("time_to_first_token_seconds_count") == 3
    )
    assert rig.value("inter_token_latency_seconds_count") == 120 - 3


def test_histograms_are_sums_of_the_requests_own_times() -> None:
    rig = Rig()
    sequences = [rig.add(words(seed, 40), 5) for seed in range(4)]
    rig.drain()
    lines = [s.timeline for s in sequences]
    scheduled = [t.scheduled or 0.0 for t in lines]
    first, last = [t.first_token or 0.0 for t in lines], [t.last_token or 0.0 for t in lines]
    arrived = [t.arrived for t in lines]
    for name, ends, starts in (
        ("request_queue_time", scheduled, arrived),
        ("request_prefill_time", first, scheduled),
        ("time_to_first_token", first, arrived),
        ("request_decode_time", last, first),
        ("inter_token_latency", last, first),
        ("e2e_request_latency", last, arrived),
    ):
        wanted = sum(e - s for e, s in zip(ends, starts, strict=True))
        assert rig.value(name + "_seconds_sum") == pytest.approx(wanted)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), data=st.data())
def test_no_shape_of_engine_changes_a_text(seed: int, data: st.DataObject) -> None:
    """Block sizes, budgets, limits, pools just large enough, repeats and aborts, at random."""
    rng = random.Random(seed)
    block_size = 2 ** data.draw(st.integers(0, 6))
    need = -(-120 // block_size)
    rig = Rig(
        blocks=need + data.draw(st.sampled_from([0, 1, 2, need])),
        block_size=block_size,
        prefix_caching=data.draw(st.booleans()),
        max_num_seqs=data.draw(st.sampled_from([1, 2, 64])),
        max_num_batched_tokens=data.draw(st.sampled_from([1, 3, 16, 33, 512])),
    )
    sequences, prompts = [], []
    for _ in range(data.draw(st.integers(1, 8))):
        prompts.append(words(rng.randint(0, 2), rng.randint(1, 100)))
        sequences.append(rig.add(prompts[-1], 20))
        for _ in range(rng.randint(0, 3)):
            rig.step()
        if rng.random() < 0.15:
            rig.core.abort(rng.choice(sequences).request_id)
    rig.drain(60_000)
    assert rig.core.state.usage.blocks_used == 0
    cold = Rig(blocks=64, prefix_caching=False, max_num_batched_tokens=512)
    for prompt, sequence in zip(prompts, sequences, strict=True):
        if sequence.finished is not FinishReason.ABORT:
            assert rig.text(sequence) == cold.generate([prompt], 20)[0]
