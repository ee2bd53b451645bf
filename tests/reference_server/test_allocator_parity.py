"""One text, whoever owns the memory: every allocator, preemption and prefix cache, on a real model."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from reference_server.attention.formats import KV_FORMATS
from tests.reference_server.server_rig import SMALL, Rig
from tests.reference_server.test_core import words

ALLOCATORS = ("paged", "paged-reserve", "contiguous", "contiguous-exact")
PROMPTS = tuple(words(seed // 2, 40) + words(seed, 10 + 7 * seed) for seed in range(7))


@cache
def roomy() -> tuple[str, ...]:
    return tuple(Rig(blocks=200).generate(PROMPTS, 40))


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_no_allocator_changes_a_text(allocator: str, preemption: str, prefix_caching: bool) -> None:
    rig = Rig(
        blocks=22,
        allocator=allocator,
        preemption=preemption,
        prefix_caching=prefix_caching,
        max_num_batched_tokens=64,
        max_model_len=170,
    )
    assert tuple(rig.generate(PROMPTS, 40)) == roomy()
    usage, swap = rig.core.state.usage, rig.core.state.swap
    assert (usage.blocks_used, swap.blocks_used) == (0, 0)
    if allocator in ("paged", "contiguous-exact"):
        assert rig.value("num_preemptions_total") > 0
        assert (swap.out_total > 0) == (preemption == "swap")
    else:
        assert rig.value("num_preemptions_total") == 0, "what is reserved is never taken away"


@pytest.mark.parametrize("block_size", [1, 8, 64])
@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_nor_do_other_quanta(allocator: str, block_size: int) -> None:
    rig = Rig(blocks=352 // block_size, block_size=block_size, allocator=allocator, max_model_len=170)
    assert tuple(rig.generate(PROMPTS, 40)) == roomy()


def test_regions_that_overlap_break_the_text() -> None:
    """Attention reads where the allocator says, and nowhere else."""
    rig = Rig(blocks=64, allocator="contiguous-exact")
    rig.core._check_integrity = False
    one, other = rig.add(PROMPTS[0], 40), rig.add(PROMPTS[1], 40)
    rig.step()
    assert isinstance(one.block_table, range)
    true_table = other.block_table
    other.block_table = range(one.block_table.start + 8, one.block_table.start + 8 + len(true_table))
    for _ in range(6):
        rig.step()
    assert (rig.text(one), rig.text(other)) != (roomy()[0][:7], roomy()[1][:7])


def test_a_region_moves_with_its_data_and_makes_holes() -> None:
    rig = Rig(blocks=16, allocator="contiguous-exact")
    sequences = [rig.add(words(seed, 30), 60) for seed in range(3)]
    rig.step()
    starts = [sequence.block_table[0] for sequence in sequences]
    assert starts == [1, 33, 65]
    while sequences[0].block_table[0] == 1:
        rig.step()
    assert sequences[0].block_table[0] > 65, "the first had no room behind it and went to the end"
    usage = rig.core.state.usage
    assert usage.largest_free_blocks < usage.blocks_free
    assert usage.moved_blocks_total > 0
    rig.drain()
    assert [rig.text(s) for s in sequences] == Rig().generate([words(seed, 30) for seed in range(3)], 60)


def test_enough_in_pieces_is_told_from_too_little() -> None:
    rig = Rig(blocks=12, allocator="contiguous-exact")
    sequences = [rig.add(words(seed, 63), 1 if seed == 1 else 20) for seed in range(3)]
    rig.step()
    assert sequences[1].finished is not None, "the middle one is gone: a hole of 64 slots"
    rig.add(words(4, 100), 2)
    rig.step()
    shortage = rig.core.allocator.last_shortage
    assert shortage is not None
    assert not shortage.fragmented, "64 free slots are too few for 112"
    rig.drain()
    tight = Rig(blocks=16, allocator="contiguous-exact", max_num_batched_tokens=512)
    for seed, tokens in enumerate((200, 1, 200)):
        tight.add(words(seed, 47), tokens)
    tight.step()
    tight.add(words(9, 120), 2)
    tight.step()
    shortage = tight.core.allocator.last_shortage
    assert shortage is not None
    assert shortage.fragmented
    assert tight.core.state.usage.fragmented_failures_total > 0


def _page(rig: Rig) -> dict[str, float]:
    families = text_string_to_metric_families(rig.metrics.page().decode())
    return {s.name.removeprefix("kvprobe:"): s.value for family in families for s in family.samples}


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_the_three_layers_can_be_read_off_the_page(allocator: str) -> None:
    """Logical (what tokens cost), physical (what is held for them), and what the pool has."""
    rig = Rig(blocks=64, allocator=allocator, max_model_len=128)
    sequences = [rig.add(words(5, 48) + words(seed, 6), 30) for seed in range(2)]
    for _ in range(3):
        rig.step()
    page, each = _page(rig), SMALL.kv_bytes_per_token()
    stored = sum(sequence.num_computed for sequence in sequences)
    held = {"paged": 128, "paged-reserve": 192, "contiguous": 256, "contiguous-exact": 128}[allocator]
    assert page["kv_bytes_per_token"] == each
    assert page["kv_stored_bytes"] == stored * each
    assert page["kv_used_bytes"] == held * each
    empty = page["kv_tail_empty_bytes"] + page["kv_reserved_empty_bytes"]
    assert page["kv_used_bytes"] == page["kv_stored_bytes"] + empty - page["kv_shared_bytes"]
    free = page["kv_free_bytes"] + page["kv_cached_bytes"]
    assert page["kv_used_bytes"] + free + page["kv_null_block_bytes"] == page["kv_pool_bytes"]
    assert 0 < page["kv_largest_free_region_bytes"] <= free
    assert page["kv_block_table_bytes"] > 0
    assert page["kv_metadata_bytes"] > 0
    if allocator == "contiguous":
        assert page["kv_reserved_empty_bytes"] == (256 - stored) * each


def test_sharing_shows_as_memory_not_held() -> None:
    rig = Rig(blocks=64)
    rig.add(words(5, 63) + "A", 30)
    rig.step()
    rig.add(words(5, 63) + "B", 30)
    rig.step()
    page = _page(rig)
    assert page["kv_shared_bytes"] == 64 * SMALL.kv_bytes_per_token()
    assert page["kv_used_bytes"] == (5 + 1) * 16 * SMALL.kv_bytes_per_token()


def test_cached_blocks_behind_an_evicted_one_are_unreachable() -> None:
    rig = Rig(blocks=10)
    prompt = words(1, 79)
    rig.add(prompt, 1)
    rig.drain()
    allocator: Any = rig.core.allocator
    assert (allocator.usage(()).blocks_cached, allocator.unreachable_blocks()) == (5, 0)
    head = allocator.pool.find(rig.core.chain(None).grow([256, *prompt.encode()])[0])
    allocator.pool._queue.remove(head)
    allocator.pool._forget(head)
    allocator.pool._queue.push_front(head)
    allocator.pool.cached -= 1
    assert allocator.unreachable_blocks() == 4
    rig.add(prompt[:40], 1)
    rig.drain()
    assert allocator.unreachable_blocks() == 0, "the head was computed anew, so the rest is found again"


@pytest.mark.parametrize(
    ("name", "per_head"), [("fp32", 4), ("bf16", 2), ("fp16", 2), ("fp8", 1), ("int8", 1)]
)
@pytest.mark.parametrize("allocator", ["paged", "contiguous-exact"])
def test_bytes_a_token_are_those_of_the_layout(name: str, per_head: int, allocator: str) -> None:
    """2 x layers x KV heads x head dim x bytes, and for int8 two fp32 scales a head and layer."""
    scales = 2 * 4 * SMALL.layers * SMALL.kv_heads if name == "int8" else 0
    wanted = 2 * SMALL.layers * SMALL.kv_heads * SMALL.head_dim * per_head + scales
    rig = Rig(blocks=40, kv_dtype=name, allocator=allocator, preemption="swap")
    page = _page(rig)
    assert page["kv_bytes_per_token"] == wanted
    assert page["kv_pool_bytes"] == wanted * 41 * 16
    assert f'cache_dtype="{name}"' in rig.metrics.page().decode()
    form = KV_FORMATS[name]
    assert (
        form.bytes_per_token(layers=32, kv_heads=8, head_dim=128)
        == {
            "fp32": 262_144,
            "bf16": 131_072,
            "fp16": 131_072,
            "fp8": 65_536,
            "int8": 65_536 + 32 * 8 * 8,
        }[name]
    )
    texts = rig.generate(PROMPTS[:3], 8)
    if name == "fp32":
        assert texts == [text[:8] for text in roomy()[:3]]


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8", "int8"])
def test_preemption_changes_no_text_of_a_quantised_cache_that_is_swapped(name: str) -> None:
    """Swapping keeps the very bytes. (Recomputing in other chunks rounds the same way too.)"""
    wide = Rig(blocks=200, kv_dtype=name, prefix_caching=False).generate(PROMPTS, 40)
    tight = Rig(blocks=22, kv_dtype=name, prefix_caching=False, preemption="swap")
    assert tight.generate(PROMPTS, 40) == wide
    assert tight.core.state.swap.out_total > 0


def test_contiguous_regions_share_no_prefix_and_say_so() -> None:
    rig = Rig(allocator="contiguous", max_model_len=200)
    for _ in range(2):
        rig.add(words(1, 80), 2)
        rig.drain()
    assert rig.value("prefix_cache_queries_total") == 0
    assert 'enable_prefix_caching="False"' in rig.metrics.page().decode()
