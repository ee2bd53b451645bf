"""Classic mistakes in numbers, and settings that work against each other."""

from __future__ import annotations

from typing import Any

import pytest

import kvprobe
from tests.plan.configs import DEEPSEEK_V3, GPT_OSS_20B, LLAMA_8B, LLAMA_70B, QWEN35_35B

plan: Any = kvprobe.plan


def codes(document: dict[str, Any]) -> list[str]:
    return [warning["code"] for warning in document["warnings"]]


@pytest.mark.parametrize(
    ("config", "settings", "claim", "code"),
    [
        (LLAMA_70B, {}, 8 * 327_680, "query_heads"),
        (LLAMA_8B, {"tokens": 8192}, "1GB", "gb_for_gib"),
        (LLAMA_70B, {}, 327_680 // 4, "weight_bits"),
        (LLAMA_70B, {}, 327_680 // 2, "k_or_v_left_out"),
        (LLAMA_70B, {}, 327_680 * 2, "doubled"),
        (DEEPSEEK_V3, {"tp": 8}, 70_272 // 8, "latent_split"),
        (DEEPSEEK_V3, {}, 61 * 128 * (192 + 128) * 2, "mla_as_heads"),
        (QWEN35_35B, {}, 81_920, "all_layers_full"),
        (LLAMA_8B, {}, 77_777, "claim_differs"),
    ],
)
def test_a_claimed_number_is_explained(
    config: dict[str, Any], settings: dict[str, Any], claim: Any, code: str
) -> None:
    found = codes(plan(config, claim=claim, **settings))
    assert found[0] == code


def test_a_right_number_is_left_alone() -> None:
    assert codes(plan(LLAMA_8B, claim=131_072)) == []


def test_four_bit_weights_leave_the_cache_at_16_bit() -> None:
    assert "cache_keeps_its_format" in codes(plan(GPT_OSS_20B))
    asked = plan(GPT_OSS_20B, kv_dtype="q4_0")
    assert "weight_bits" in codes(asked)
    assert "cache_keeps_its_format" not in codes(plan(GPT_OSS_20B, kv_dtype="fp8"))


def test_weights_in_the_wrong_unit() -> None:
    import dataclasses

    from kvprobe.plan.pool import ByteRange
    from kvprobe.plan.request import PlanRequest
    from kvprobe.plan.solve import solve
    from kvprobe.plan.warnings import warnings_of
    from tests.plan.configs import spec

    known = dataclasses.replace(spec(LLAMA_8B), weight_bytes=16 * 10**9, weight_bytes_source="files")
    found = solve(PlanRequest(spec=known, total=ByteRange.of(80 * 2**30), weights=ByteRange.of(16 * 2**30)))
    assert next(w.code for w in warnings_of(found)) == "gb_for_gib"


def test_heads_are_repeated_beyond_their_number() -> None:
    assert "heads_repeated" in codes(plan(QWEN35_35B, tp=4))
    assert "heads_repeated" not in codes(plan(QWEN35_35B, tp=2))


def test_requests_beyond_the_context_limit() -> None:
    found = plan(LLAMA_8B, available_kv="4GiB", max_model_len=2048, lengths="p50=1000,p95=8000,max=9000")
    assert "lengths_above_context" in codes(found)
    assert "context_above_model" in codes(plan(LLAMA_8B, available_kv="4GiB", max_model_len=9000))


def test_options_without_a_part_in_the_budget_are_named() -> None:
    found = plan(LLAMA_8B, gpu="80GiB", weights="14GiB", gpu_memory_utilization=0.9, mem_fraction_static=0.8)
    texts = " ".join(w["text"] for w in found["warnings"] if w["code"] == "not_used")
    assert "--gpu-memory-utilization" in texts
    assert "--mem-fraction-static" in texts


def test_k_and_v_are_both_stored() -> None:
    assert "k_and_v_both_stored" in codes(plan({**LLAMA_8B, "attention_k_eq_v": True}))
