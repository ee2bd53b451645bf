"""Numbers that a plan must print: the arithmetic it exists for, and situations that users report."""

from __future__ import annotations

from typing import Any

import pytest

import kvprobe
from kvprobe.plan.price import per_million
from tests.plan.configs import LLAMA_8B, LLAMA_70B, MHA_7B, QWEN25_7B, llama

GIB = 2**30
plan: Any = kvprobe.plan


def test_a_token_of_32_layers_8_heads_128_wide_at_16_bit() -> None:
    assert kvprobe.kv_cache_bytes(LLAMA_8B, 1) == 131_072
    assert kvprobe.kv_cache_bytes(llama(32, 32, 32, 4096), 1) == 4 * 131_072  # query heads for KV heads


@pytest.mark.parametrize(
    ("sequences", "tokens", "gib"),
    [
        (1, 8192, 1),
        (16, 8192, 16),
        (1, 4096, 0.5),
        (8, 4096, 4),
        (32, 4096, 16),
        (8, 16384, 16),
        (32, 16384, 64),
    ],
)
def test_concurrency_times_context(sequences: int, tokens: int, gib: float) -> None:
    assert sequences * kvprobe.kv_cache_bytes(LLAMA_8B, tokens) == gib * GIB


def test_128k_tokens_are_16_gib() -> None:
    assert kvprobe.kv_cache_bytes(LLAMA_8B, 131_072) == 16 * GIB


def test_unequal_lengths_are_a_sum() -> None:
    each = [kvprobe.kv_cache_bytes(LLAMA_8B, n) for n in (35, 17, 48)]
    assert sum(each) == 100 * 131_072


def test_blocks_of_16() -> None:
    def blocks(tokens: int) -> int:
        pool = plan(LLAMA_8B, available_kv="1GiB", engine="reference", lengths=f"fixed:{tokens}")
        return int(pool["pool"]["num_blocks"] - 1) // int(pool["concurrency"]["max"])

    document = plan(LLAMA_8B, available_kv="1GiB", block_size=16, lengths="fixed:35")
    assert document["pool"]["block_size"] == 16
    assert document["concurrency"]["max"] == 8192 // 48  # 35 tokens take 3 blocks = 48 slots
    waste = document["waste"]
    assert waste["tail_bound_tokens"] == waste["sequences"] * 15
    assert waste["tail_expected_tokens"] == waste["sequences"] * 13
    assert [blocks(n) for n in (35, 17, 48)] == [3, 2, 3]  # 8 blocks = 128 slots for 100 tokens


def test_80_less_14_less_6_less_4_is_56() -> None:
    document = plan(
        LLAMA_8B, gpu="80GiB", weights="14GiB", overhead="6GiB", margin="4GiB", lengths="fixed:4000"
    )
    assert document["fits"] is True
    assert document["budget"]["kv"] | {"note": None} == {
        "bytes": 56 * GIB,
        "range": None,
        "source": "user",
        "ratio": None,
        "note": None,
    }
    assert document["pool"]["tokens"] == 458_752
    assert document["concurrency"]["mean"] == 114


def test_24_less_16_less_2_is_6_gib_or_12_requests() -> None:
    document = plan(LLAMA_8B, gpu="24GiB", weights="16GiB", overhead="2GiB", lengths="fixed:4096")
    assert document["budget"]["kv"]["bytes"] == 6 * GIB
    assert document["concurrency"]["mean"] == 12


def test_halving_the_weights_gives_all_of_it_to_the_cache() -> None:
    full = plan(LLAMA_8B, gpu="24GiB", weights="16GiB", overhead="2GiB")
    half = next(row for row in full["what_if"] if row["id"] == "weights_half")
    assert half["kv_bytes"] - full["budget"]["kv"]["bytes"] == 8 * GIB


def test_80_gb_is_no_80_gib() -> None:
    document = plan(LLAMA_8B, gpu="80GB", weights="14GiB", overhead="6GiB", margin="4GiB")
    assert document["budget"]["total"]["bytes"] == 80 * 10**9
    assert "80,000,000,000 bytes" in " ".join(document["assumptions"])


def test_two_loads_of_one_mean_differ_in_what_fits() -> None:
    asked = {"gpu": "80GiB", "weights": "14GiB", "overhead": "6GiB", "margin": "4GiB"}
    even = plan(LLAMA_8B, **asked, lengths="fixed:2307")
    tailed = plan(LLAMA_8B, **asked, lengths="p50=1000,p95=8000,max=32000")
    assert tailed["lengths"]["mean_tokens"] == pytest.approx(2307, abs=1)
    counts = [d["concurrency"]["distribution"]["max_num_seqs"] for d in (even, tailed)]
    assert counts[0] == 198
    assert 135 <= counts[1] <= 150
    assert any(w["code"] == "mean_misleads" for w in tailed["warnings"])


# ---- situations that users report ----


def test_s1_a_7b_on_an_8_gib_card() -> None:
    document = plan(
        QWEN25_7B,
        gpu="8.00GiB",
        gpu_memory_utilization=0.70,
        weights="5.20GiB",
        non_torch="0.03GiB",
        activation_peak="1.42GiB",
        engine="vllm",
        engine_version="0.7.0",
        max_model_len=4096,
    )
    assert document["fits"] is False
    assert document["budget"]["kv"]["bytes"] / GIB == pytest.approx(-1.05, abs=0.005)
    assert document["kv"]["bytes_per_token_per_gpu"] == 56 * 1024
    assert document["concurrency"]["binds"] == "weights and work space"
    flags = {f["name"]: f["value"] for f in document["flags"]["recommended"]}
    assert flags["gpu-memory-utilization"] == "0.86"
    assert any("0.86" in (w["fix"] or "") for w in document["warnings"])


def test_s2_max_seq_len_larger_than_the_cache() -> None:
    document = plan(
        MHA_7B, available_kv=229 * 16 * 524_288, engine="vllm", engine_version="0.2.7", max_model_len=4096
    )
    assert document["pool"]["num_blocks"] == 229
    assert document["pool"]["tokens"] == 3664
    assert document["fits"] is False
    short = document["concurrency"]["shortfall"]
    assert short["blocks"] == 27
    assert short["bytes"] / GIB == pytest.approx(0.21, abs=0.005)
    flags = {f["name"]: f["value"] for f in document["flags"]["recommended"]}
    assert flags["max-model-len"] == "3664"


def test_s3_activations_not_kv_moved() -> None:
    document = plan(
        LLAMA_8B, available_kv="2.89GiB", engine="vllm", engine_version="0.6.4", max_model_len=29000
    )
    low, high = document["pool"]["num_blocks_range"]
    assert low <= 1478 <= high
    low, high = document["pool"]["tokens_range"]
    assert low <= 23_648 <= high
    low, high = document["pool"]["max_concurrency_range"]
    assert round(low, 2) <= 0.82 <= round(high, 2)


def test_s4_free_memory_below_the_share() -> None:
    document = plan(LLAMA_8B, gpu="47.38GiB", free_memory="31.44GiB", weights="15GiB", engine="vllm")
    warning = next(w for w in document["warnings"] if w["code"] == "utilisation_above_free")
    assert "15.9 GiB" in warning["text"]
    assert "0.66" in warning["fix"]


def test_s6_raising_the_share_cannot_help() -> None:
    document = plan(
        LLAMA_70B,
        gpu="24GiB",
        weights="22.5GiB",
        non_torch="0.1GiB",
        activation_peak="1.0GiB",
        gpu_memory_utilization=0.95,
        engine="vllm",
        engine_version="0.9.0",
    )
    assert document["fits"] is False
    warning = next(w for w in document["warnings"] if w["code"] == "weights_too_large")
    assert "cannot help" in warning["text"]
    assert document["flags"]["recommended"] == []


@pytest.mark.parametrize(("blocks", "context", "times"), [(127_626, 2048, 997.08), (1_381, 2048, 10.79)])
def test_s15_what_maximum_concurrency_means(blocks: int, context: int, times: float) -> None:
    document = plan(
        LLAMA_8B,
        available_kv=blocks * 16 * 131_072,
        engine="vllm",
        engine_version="0.6.2",
        max_model_len=context,
    )
    assert document["pool"]["num_blocks"] == blocks
    assert round(document["pool"]["max_concurrency"], 2) == times


def test_s15_4_61_requests_of_8192_tokens() -> None:
    assert int(4.61 * 8192) == 37_765


def test_s22_slots_over_one_cache() -> None:
    document = plan(LLAMA_8B, engine="llama.cpp", ctx=131_072, parallel=4, kv_unified=True)
    warning = next(w for w in document["warnings"] if w["code"] == "oversubscribed")
    assert "4.0 times" in warning["text"]


def test_s24_fp8_is_twice_the_capacity_and_promises_no_speed() -> None:
    document = plan(LLAMA_8B, available_kv="20GiB", engine="vllm", max_model_len=8192)
    rows = {row["id"]: row for row in document["what_if"]}
    assert rows["kv_fp8"]["pool_tokens"] / rows["as_planned"]["pool_tokens"] == pytest.approx(2, rel=1e-3)
    assert "not speed" in rows["kv_fp8"]["note"]


def test_s51_how_many_users_on_one_a100() -> None:
    document = plan(
        LLAMA_8B,
        gpu="79.25GiB",
        gpu_memory_utilization=0.9,
        weights="14.96GiB",
        overhead="1.5GiB",
        engine="vllm",
        engine_version="0.8.5",
        max_model_len=10_000,
        lengths="fixed:10000",
    )
    low, high = document["pool"]["tokens_range"]
    assert low <= 449_000 <= high
    assert document["concurrency"]["mean"] == 44


def test_s53_70b_is_not_80_gb_but_21_5() -> None:
    ten_users = kvprobe.kv_cache_bytes(LLAMA_70B, 10 * 32_768)
    assert ten_users == 100 * GIB
    assert ten_users / 1e9 == pytest.approx(107.4, abs=0.05)
    eight = kvprobe.kv_cache_bytes(LLAMA_70B, 8 * 8192)
    assert eight / 1e9 == pytest.approx(21.5, abs=0.05)


def test_s57_price_of_a_million_tokens() -> None:
    assert per_million(2.5, 917) == pytest.approx(0.757, abs=0.001)
    document = plan(
        LLAMA_8B, gpu="80GiB", weights="14GiB", overhead="6GiB", price_per_hour=2.5, output_tokens_per_s=917
    )
    assert document["cost"]["per_million_output_tokens"] == pytest.approx(0.757, abs=0.001)
    silent = plan(LLAMA_8B, gpu="80GiB", weights="14GiB", overhead="6GiB", price_per_hour=2.5)
    assert silent["cost"]["per_million_output_tokens"] is None


# ---- the budget identity in logs that print every term ----


@pytest.mark.parametrize(
    ("gpu", "share", "weights", "non_torch", "peak", "kv"),
    [
        ("39.50GiB", 0.9, "14.96GiB", "0.10GiB", "9.37GiB", 11.12),
        ("12.00GiB", 0.95, "7.56GiB", "0.04GiB", "0.74GiB", 3.06),
    ],
)
def test_vllm_budget_identity(
    gpu: str, share: float, weights: str, non_torch: str, peak: str, kv: float
) -> None:
    document = plan(
        LLAMA_8B,
        gpu=gpu,
        gpu_memory_utilization=share,
        weights=weights,
        non_torch=non_torch,
        activation_peak=peak,
        engine="vllm",
        engine_version="0.6.6",
    )
    low, high = document["budget"]["kv"]["range"]
    assert low / GIB <= kv <= high / GIB
    assert document["budget"]["kv"]["bytes"] / GIB == pytest.approx(kv, abs=0.02)
    assert document["budget"]["graphs"]["bytes"] is None


def test_trtllm_takes_a_share_of_what_is_free() -> None:
    document = plan(
        llama(32, 32, 32, 4096), gpu="39.39GiB", free_memory="21.89GiB", block_size=64, engine="trtllm"
    )
    low, high = document["pool"]["num_blocks_range"]
    assert low <= 631 - 1 <= high or low <= 631 <= high
    assert document["budget"]["utilisation"]["ratio"] == 0.9
