"""Preemption by swapping: the corners."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reference_server.errors import ConfigError
from reference_server.kv.swap import SwapPreemption
from reference_server.sampler import SamplingParams
from tests.reference_server.server_rig import SMALL, Rig
from tests.reference_server.test_core import words

BLOCK_BYTES = 16 * SMALL.kv_bytes_per_token()
PROMPTS = [words(seed, 40) for seed in range(3)]


def test_the_newest_is_swapped_out_and_not_computed_again() -> None:
    expected = Rig(blocks=64).generate(PROMPTS, 40)
    rig = Rig(blocks=12, preemption="swap")
    sequences = [rig.add(prompt, 40) for prompt in PROMPTS]
    computed = 0
    while rig.core.has_work:
        before = [s.num_computed for s in sequences]
        rig.step()
        computed += sum(max(s.num_computed - b, 0) for s, b in zip(sequences, before, strict=True))
    assert [rig.text(sequence) for sequence in sequences] == expected
    assert sequences[0].num_preemptions == 0
    assert sequences[-1].num_preemptions > 0
    swap = rig.core.state.swap
    assert swap.out_total > 0
    assert (swap.requests, swap.blocks_used) == (0, 0)
    assert rig.value("num_preemptions_total") == sum(s.num_preemptions for s in sequences)


def test_a_restore_waits_while_the_pool_is_full_and_the_state_is_shown() -> None:
    rig = Rig(blocks=8, preemption="swap")
    old, new = rig.add(words(1, 40), 60), rig.add(words(2, 60), 60)
    while not new.num_preemptions:
        rig.step()
    for _ in range(3):
        rig.step()
        assert new in rig.core.scheduler.waiting
        assert rig.core.state.swap.requests == 1
        assert rig.core.state.swap.blocks_used > 0
    assert "kvprobe:num_requests_swapped" in rig.metrics.page().decode()
    rig.drain()
    assert old.num_output_tokens == new.num_output_tokens == 60
    assert [rig.text(old), rig.text(new)] == Rig().generate([words(1, 40), words(2, 60)], 60)


def test_a_full_host_pool_falls_back_to_recompute() -> None:
    expected = Rig(blocks=64).generate(PROMPTS, 40)
    for host_blocks in (1, 4, 6):
        rig = Rig(blocks=12, preemption="swap", swap_space_bytes=host_blocks * BLOCK_BYTES)
        assert rig.generate(PROMPTS, 40) == expected
        assert rig.core.state.swap.blocks_used == 0
    assert rig.value("num_preemptions_total") > 0


def test_an_abort_while_swapped_out_frees_the_host_pool() -> None:
    rig = Rig(blocks=8, preemption="swap")
    rig.add(words(1, 40), 60)
    new = rig.add(words(2, 60), 60)
    while not new.num_preemptions:
        rig.step()
    assert rig.core.state.swap.requests == 1
    rig.core.abort(new.request_id)
    assert (rig.core.state.swap.requests, rig.core.state.swap.blocks_used) == (0, 0)
    rig.drain()


def test_a_shared_prefix_is_shared_again_after_a_restore() -> None:
    prompt = words(6, 64)
    expected = Rig(blocks=64).generate([prompt + "A", prompt + "B"], 60)
    rig = Rig(blocks=10, preemption="swap")
    old = rig.add(prompt + "A", 60)
    rig.step()
    new = rig.add(prompt + "B", 60)
    while not new.num_preemptions:
        rig.step()
    while not new.block_table:
        rig.step()
    swap = rig.core.state.swap
    assert 0 < swap.in_total < swap.out_total, "blocks of the prefix were in the cache and not copied"
    rig.drain()
    assert [rig.text(old), rig.text(new)] == expected


def test_sampling_is_not_disturbed() -> None:
    sampling = SamplingParams(temperature=0.9, top_p=0.9, seed=7)
    texts = []
    for blocks in (64, 11):
        rig = Rig(blocks=blocks, preemption="swap")
        sequences = [rig.add(prompt, 40, sampling=sampling) for prompt in PROMPTS]
        rig.drain()
        texts.append([rig.text(sequence) for sequence in sequences])
    assert texts[0] == texts[1]
    assert rig.core.state.swap.out_total > 0


def test_the_scheduler_does_not_know_how_memory_is_given_up() -> None:
    rig = Rig(preemption="swap")
    assert isinstance(rig.core.scheduler.preemption, SwapPreemption)
    names = set(Rig().core.scheduler.__dict__)
    assert names == set(rig.core.scheduler.__dict__)


def test_a_model_of_two_kinds_of_layers_is_swapped_with_all_its_tables() -> None:
    shape = replace(SMALL, layers=4, windows=(24, None, 24, None))
    expected = Rig(blocks=200, shape=shape).generate(PROMPTS, 40)
    for preemption in ("recompute", "swap"):
        rig = Rig(blocks=7, shape=shape, preemption=preemption)
        assert rig.generate(PROMPTS, 40) == expected
        assert rig.value("num_preemptions_total") > 0
        assert rig.core.state.usage.blocks_used == rig.core.state.swap.blocks_used == 0
    assert rig.core.state.swap.out_total > 0


@pytest.mark.parametrize("allocator", ["paged-reserve", "contiguous", "contiguous-exact"])
def test_such_a_model_needs_pages(allocator: str) -> None:
    with pytest.raises(ConfigError, match="use --allocator paged"):
        Rig(shape=replace(SMALL, windows=(24, None)), allocator=allocator)
