"""The ground-truth rows through the front door: `plan` prints what the engine's log printed."""

from __future__ import annotations

from typing import Any

import pytest

import kvprobe
from tests.plan.engines import rows

plan: Any = kvprobe.plan
CAPACITY = rows.capacity_rows()
PREDICTED = [
    name
    for name, row in CAPACITY.items()
    if row["strength"] == "predicted" and row["checks"] and row["available_kv_gib"]
]


def asked(row: dict[str, Any]) -> dict[str, Any]:
    k, v = rows.kv_dtypes(row["kv_cache_dtype"])
    settings = {
        "engine": row["engine"],
        "engine_version": row["engine_version"],
        "available_kv": f"{row['available_kv_gib']:.2f}GiB",
        "tp": row["tp"],
        "pp": row["pp"],
        "max_model_len": row["max_model_len"],
        "kv_dtype_k": k,
        "kv_dtype_v": v,
        "draft_layers": row["extra_config"].get("draft_layers", 0),
    }
    if row.get("swap_space_gib"):
        settings["swap_space"] = f"{row['swap_space_gib']}GiB"
    return {name: value for name, value in settings.items() if value is not None}


@pytest.mark.parametrize("name", [n for n in PREDICTED if CAPACITY[n]["engine"] == "vllm"])
def test_what_the_log_printed_lies_in_the_range(name: str) -> None:
    row = CAPACITY[name]
    document = plan(rows.config_of(row), **asked(row))
    pool = document["pool"]
    for printed, field in (("num_gpu_blocks", "num_blocks"), ("kv_cache_tokens", "log_line_tokens")):
        if row[printed] is not None:
            low, high = pool[f"{field}_range"]
            assert low <= row[printed] <= high, field
            assert low <= pool[field] <= high
    if row["max_concurrency_reported"] is not None:
        low, high = pool["max_concurrency_range"]
        assert round(low, 2) <= row["max_concurrency_reported"] <= round(high, 2)
    if row.get("num_cpu_blocks"):
        assert pool["num_cpu_blocks"] == row["num_cpu_blocks"]


@pytest.mark.parametrize(
    "name", [n for n, r in CAPACITY.items() if r["expected"].get("bytes_per_token_per_gpu") and r["checks"]]
)
def test_bytes_per_token(name: str) -> None:
    row = CAPACITY[name]
    settings = {
        k: v
        for k, v in asked({**row, "available_kv_gib": 1.0}).items()
        if k in ("tp", "kv_dtype_k", "kv_dtype_v", "draft_layers")
    }
    document = plan(rows.config_of(row), **settings)
    assert document["kv"]["bytes_per_token_per_gpu"] == row["expected"]["bytes_per_token_per_gpu"]


@pytest.mark.parametrize("row", rows.read_rows("more.jsonl"), ids=lambda row: str(row["id"]))
def test_rows_that_we_found_ourselves(row: dict[str, Any]) -> None:
    names = {
        "kv_dtype_k",
        "kv_dtype_v",
        "tp",
        "pp",
        "max_model_len",
        "max_num_batched_tokens",
        "max_num_seqs",
        "block_size",
    }
    names |= {
        "prefix_caching",
        "mamba_cache_mode",
        "speculative_tokens",
        "draft_layers",
        "ctx",
        "parallel",
        "ubatch",
    }
    names |= {
        "kv_unified",
        "swa_full",
        "swa_full_tokens_ratio",
        "mamba_full_memory_ratio",
        "max_running_requests",
    }
    options = row.get("options", {})
    if set(options) - names:
        pytest.skip(f"options of the allocator alone: {sorted(set(options) - names)}")
    settings = {**options, "engine": row["engine"], "engine_version": row["version"]}
    if row.get("available"):
        settings["available_kv"] = row["available"]
    document = plan(row["config"], **settings)
    pool, expected = document["pool"], rows.pool_of(row)
    assert pool["num_blocks"] == expected.num_blocks
    assert pool["log_line_tokens"] == expected.log_line_tokens
    assert pool["parts_bytes"] == expected.parts_bytes
    if expected.log_line_tokens_range is not None:
        assert tuple(pool["log_line_tokens_range"]) == expected.log_line_tokens_range
    if "fits" in row["printed"]:
        assert document["fits"] == row["printed"]["fits"]
