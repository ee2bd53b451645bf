"""Predictions against real logs: what was printed lies in the range that the printed input leaves open."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kvprobe.errors import UsageError
from kvprobe.model.spec import Affine
from kvprobe.plan.engines import pool_for
from kvprobe.plan.pool import ByteRange, EngineOptions, Pool
from kvprobe.plan.sizes import parse_size
from tests.plan.engines.rows import GIB, MIB, Row, capacity_pool, capacity_rows, pool_of, read_rows, spec_of

ROWS = capacity_rows()
MORE = {row["id"]: row for row in read_rows("more.jsonl")}


@dataclass(frozen=True)
class Asked:
    """What a row says outside of its fields: options from its notes, and the memory where it is implied."""

    options: dict[str, Any] = field(default_factory=dict)
    available: ByteRange | None = None


FROM_NOTES = {
    "v1-qwen3coder30b-pp2": Asked({"layer_partition": (16, 32)}),
    "v1-qwen35-2b": Asked({"mamba_cache_mode": "none"}),
    "v1-qwen35-27b-h20": Asked(
        {"mamba_cache_mode": "none", "max_num_batched_tokens": 16384}, ByteRange.of(1487 * 16 * 3211264)
    ),
    "v1-gemma4-26b-thor": Asked({"max_num_batched_tokens": 2048}),
    "lc-gptoss20b-128k": Asked({"ubatch": 2048}),
    "lc-gptoss120b-64k": Asked({"parallel": 4}),
    "lc-gemma4-12b-q8": Asked({"parallel": 4}),
    "lc-qwen35-9b": Asked({"parallel": 4}),
    "lc-dscoder-v2-lite-nomla": Asked({"parallel": 8, "kv_unified": False}),
    "trt-qwen15-7b-2268": Asked({"block_size": 64}, parse_size("21.89GiB", "").scaled(0.9)),
    "trt-kimi-k25-fp8": Asked({"block_size": 32}),
    "sg-dsv32-with-indexer": Asked(available=parse_size("43.67GiB", "")),
    "sg-dsv32-before-fix": Asked(available=parse_size("54.52GiB", "")),
    "sg-nemotron-nano-9b-v2": Asked(
        {"state_slots": 48}, ByteRange.of(2618868 * 16384 + 48 * 27 * (5 * 2**20 + 73728))
    ),
}


def planned(row: Row) -> Pool:
    asked = FROM_NOTES.get(row["id"], Asked())
    return capacity_pool(row, available=asked.available, **asked.options)


def within(value: float, bounds: tuple[float, float] | None) -> bool:
    assert bounds is not None
    return bounds[0] <= value <= bounds[1]


def prints_as(bounds: tuple[float, float] | None, printed: float, decimals: int = 2) -> bool:
    """Does some value of the range print as this?"""
    assert bounds is not None
    step = 10.0**-decimals / 2
    return bounds[0] <= printed + step and bounds[1] >= printed - step


CHECKED = sorted(row["id"] for row in ROWS.values() if row["checks"])


def test_all_checked_rows_are_here() -> None:
    assert len(CHECKED) == 24


@pytest.mark.parametrize("name", [name for name in CHECKED if name.startswith(("v0", "v1", "trt"))])
def test_printed_counts_lie_in_the_range(name: str) -> None:
    row = ROWS[name]
    pool = planned(row)
    if row["num_gpu_blocks"] is not None:
        assert within(row["num_gpu_blocks"], pool.num_blocks_range)
    if row["kv_cache_tokens"] is not None:
        assert within(row["kv_cache_tokens"], pool.log_line_tokens_range)
    if row["max_concurrency_reported"] is not None:
        assert prints_as(pool.max_concurrency_range, row["max_concurrency_reported"])
    if row.get("estimated_max_model_len") is not None:
        assert within(row["estimated_max_model_len"], pool.estimated_max_model_len_range)
        assert not pool.fits
    if row.get("kv_needed_gib") is not None:
        assert pool.needed_bytes is not None
        assert round(pool.needed_bytes / GIB, 2) == row["kv_needed_gib"]
    if row.get("num_cpu_blocks") is not None:
        assert pool.num_cpu_blocks == row["num_cpu_blocks"]


@pytest.mark.parametrize("name", [name for name in CHECKED if "groups" in str(ROWS[name]["expected"])])
def test_hybrid_layout_is_exact(name: str) -> None:
    expected = ROWS[name]["expected"]
    pool = planned(ROWS[name])
    assert pool.page_bytes == expected["page_bytes"]
    assert pool.group_size == expected["group_size"]
    assert pool.padding_layers == expected["padding_layers"]
    assert pool.blocks_per_request == expected["blocks_per_request"]
    assert pool.num_groups == expected.get("num_groups", sum(expected.get("groups", [pool.num_groups])))
    if "real_token_capacity_one_seq" in expected and ROWS[name]["available_kv_gib"] is None:
        assert pool.tokens == expected["real_token_capacity_one_seq"]
    if "block_size" in expected:
        assert pool.block_size == expected["block_size"]


@pytest.mark.parametrize("name", [name for name in CHECKED if name.startswith("lc")])
def test_llama_cpp_parts_are_exact(name: str) -> None:
    row = ROWS[name]
    parts = planned(row).parts_bytes
    assert parts is not None
    observed = row["kv_parts_observed_mib"]
    if name == "lc-qwen35-9b":
        observed = [observed[0], observed[1] + observed[2]]
    assert [round(size / MIB, 2) for size in parts.values()] == observed


@pytest.mark.parametrize("name", ["sg-dsv32-with-indexer", "sg-dsv32-before-fix"])
def test_sglang_latent_pools(name: str) -> None:
    row = ROWS[name]
    pool = planned(row)
    assert within(row["kv_cache_tokens"], pool.tokens_range)
    assert pool.parts_bytes is not None
    assert prints_as((pool.parts_bytes["kv"] / GIB,) * 2, row["kv_observed_gib"])


def test_sglang_states_and_tokens() -> None:
    row = ROWS["sg-nemotron-nano-9b-v2"]
    pool = planned(row)
    assert pool.tokens == row["kv_cache_tokens"]
    assert pool.state_slots == 48
    assert pool.parts_bytes is not None
    sizes = [round(pool.parts_bytes[name] / GIB, 2) for name in ("k", "v", "conv", "ssm")]
    assert sizes == row["kv_parts_observed_gib"]


def test_an_affine_layout_is_refused_by_name() -> None:
    affine = Affine(fixed_bytes=1, per_token_bytes=1.0, source="test")
    spec = replace(spec_of(MORE["smollm2-cpu-1g"]["config"]), affine=affine, name="DeepSeek-V4")
    with pytest.raises(UsageError, match="DeepSeek-V4"):
        pool_for("vllm", None, spec, EngineOptions(), ByteRange.of(GIB))


def test_llama_cpp_wants_a_context() -> None:
    spec = replace(spec_of(MORE["smollm2-cpu-1g"]["config"]), max_position_tokens=None)
    with pytest.raises(UsageError, match="context"):
        pool_for("llama.cpp", None, spec, EngineOptions(), None)


@pytest.mark.parametrize("name", sorted(MORE))
def test_rows_of_our_own(name: str) -> None:
    row = MORE[name]
    printed, pool = dict(row["printed"]), pool_of(row)
    for key in ("num_blocks", "tokens", "log_line_tokens", "estimated_max_model_len"):
        if key in printed:
            assert within(printed.pop(key), getattr(pool, key + "_range")), key
    if "max_concurrency" in printed:
        assert prints_as(pool.max_concurrency_range, printed.pop("max_concurrency"))
    if "needed_gib" in printed:
        assert pool.needed_bytes is not None
        assert round(pool.needed_bytes / GIB, 2) == printed.pop("needed_gib")
    parts = pool.parts_bytes or {}
    if "total_mib" in printed:
        assert sum(parts.values()) / MIB == printed.pop("total_mib")
    for key, unit in (("parts_mib", MIB), ("parts_gib", GIB)):
        for part, size in printed.pop(key, {}).items():
            assert round(parts[part] / unit, 2) == size
    for key, value in printed.items():
        assert getattr(pool, key) == value, key


def test_exact_input_gives_the_printed_digit() -> None:
    """With the pool known to the byte, nothing is left open."""
    for name in ("qwen36-27b-2x3090-mtp", "qwen36-35b-5090", "qwen38-27b-2x3090"):
        row = dict(MORE[name])
        pool = pool_of(row)
        assert pool.num_blocks_range is not None
        assert pool.block_bytes is not None
        exact = {
            pool_of({**row, "available": f"{blocks * pool.block_bytes}B"}).log_line_tokens
            for blocks in range(pool.num_blocks_range[0], pool.num_blocks_range[1] + 1)
        }
        assert row["printed"]["log_line_tokens"] in exact
