"""The what-if table and the ladder: every row is solved anew, by the engine's own rule."""

from __future__ import annotations

from typing import Any

import pytest

import kvprobe
from tests.plan.configs import GPT_OSS_20B, LLAMA_8B, QWEN35_35B

plan: Any = kvprobe.plan
MEMORY = {"gpu": "80GiB", "weights": "14GiB", "overhead": "6GiB"}


def rows(config: dict[str, Any], **settings: Any) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in plan(config, **settings)["what_if"]}


def test_all_that_was_asked_for_is_in_the_table() -> None:
    found = rows(LLAMA_8B, **MEMORY, engine="vllm", max_model_len=8192, lengths="p50=1000,p95=4000,max=8000")
    expected = {
        "as_planned",
        "weights_half",
        "kv_fp8",
        "kv_int8_per_token_head",
        "block_32",
        "context_half",
        "tp_2",
        "tp_4",
        "tp_8",
        "next_gpu",
        "shared_prefix",
        "window",
        "dedicated_short",
        "dedicated_long",
    }
    assert expected <= set(found)
    for row in found.values():
        assert row["reason"] or row["max_num_seqs"] is not None, row


def test_each_row_is_the_plan_with_that_change() -> None:
    asked = {**MEMORY, "lengths": "fixed:4000"}
    found = rows(LLAMA_8B, **asked)
    fp8 = plan(LLAMA_8B, **asked, kv_dtype="fp8")
    assert found["kv_fp8"]["pool_tokens"] == fp8["pool"]["tokens"]
    assert found["kv_fp8"]["mean"] == fp8["concurrency"]["mean"]
    tp2 = plan(LLAMA_8B, gpu="80GiB", weights="7GiB", overhead="6GiB", tp=2, lengths="fixed:4000")
    assert found["tp_2"]["pool_tokens"] == tp2["pool"]["tokens"]


def test_beyond_the_kv_heads_a_split_frees_weights_only() -> None:
    found = rows(QWEN35_35B, gpu="80GiB", weights="40GiB", overhead="4GiB", lengths="fixed:4000")
    assert "repeated" in found["tp_4"]["note"]
    assert found["tp_2"]["note"] is None


def test_a_shared_prefix_is_held_once() -> None:
    asked = {
        "available_kv": 1000 * 16 * 131_072,
        "engine": "vllm",
        "engine_version": "V0",
        "lengths": "fixed:1000",
    }
    alone = plan(LLAMA_8B, **asked, max_model_len=2048)
    shared = plan(LLAMA_8B, **asked, max_model_len=2048, shared_prefix=512)
    assert alone["concurrency"]["mean"] == 1000 // 63
    assert shared["concurrency"]["mean"] == (1000 - 32) // (63 - 32)
    off = plan(LLAMA_8B, **asked, max_model_len=2048, shared_prefix=512, prefix_caching="off")
    assert off["concurrency"]["mean"] == alone["concurrency"]["mean"]


def test_a_dedicated_instance_for_the_long_ones_holds_more_short_ones() -> None:
    found = rows(LLAMA_8B, **MEMORY, lengths="p50=1000,p95=8000,max=32000")
    assert found["dedicated_short"]["max_num_seqs"] > 1.5 * found["as_planned"]["max_num_seqs"]
    assert "5.0 %" in found["dedicated_long"]["note"]


def test_a_window_bounds_what_a_request_holds() -> None:
    found = rows(LLAMA_8B, **MEMORY, lengths="fixed:8000")
    assert found["window"]["mean"] == pytest.approx(2 * found["as_planned"]["mean"], rel=0.03)


def test_rows_that_cannot_be_worked_out_say_why() -> None:
    found = rows(LLAMA_8B, available_kv="8GiB", lengths="fixed:1000")
    assert found["tp_2"]["reason"]
    assert "next_gpu" not in found
    unknown = rows(LLAMA_8B, gpu="80GiB", overhead="6GiB")
    assert "--weights" in unknown["weights_half"]["reason"]


def test_the_ladder_climbs_with_a_check_after_each_step() -> None:
    document = plan(
        LLAMA_8B, gpu="24GiB", weights="15GiB", engine="vllm", gpu_memory_utilization=0.8, max_model_len=4096
    )
    ladder = document["ladder"]
    assert [rung["value"] for rung in ladder] == sorted(rung["value"] for rung in ladder)
    assert len({rung["kv_bytes"] for rung in ladder}) == len(ladder)
    assert all(rung["check"] for rung in ladder)
    assert plan(LLAMA_8B, available_kv="4GiB", engine="vllm")["ladder"] == []


def test_the_ladder_begins_where_a_request_fits() -> None:
    document = plan(
        LLAMA_8B,
        gpu="24GiB",
        weights="15GiB",
        non_torch="0.1GiB",
        activation_peak="2.0GiB",
        engine="vllm",
        engine_version="0.9",
        gpu_memory_utilization=0.7,
        max_model_len=4096,
    )
    assert document["ladder"][0]["value"] == 0.74


def test_hybrids_and_windows_have_a_table_too() -> None:
    for config in (QWEN35_35B, GPT_OSS_20B):
        for engine in (None, "vllm", "sglang"):
            found = rows(
                config, available_kv="20GiB", engine=engine, max_model_len=16384, lengths="fixed:4000"
            )
            assert found["as_planned"]["mean"] > 0
