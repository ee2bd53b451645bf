"""The document: its schema, null with a reason, ranges, several models."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

import kvprobe
from kvprobe.errors import UsageError
from kvprobe.plan.document import plan_schema
from tests.plan.configs import DEEPSEEK_V3, GPT_OSS_20B, LLAMA_8B, MHA_7B, QWEN35_35B

plan: Any = kvprobe.plan
LENGTHS = "p50=1000,p95=4000,max=8000"
REQUESTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": (LLAMA_8B, {}),
    "formula": (LLAMA_8B, {"gpu": "80GiB", "weights": "14GiB", "overhead": "6GiB", "lengths": LENGTHS}),
    "blocks": (LLAMA_8B, {"available_kv": "8GiB", "block_size": 16, "tokens": 4096}),
    "band": (LLAMA_8B, {"gpu": "80GiB", "weights": "14GiB", "engine": "vllm", "lengths": LENGTHS}),
    "v0": (
        LLAMA_8B,
        {"available_kv": "5.29GiB", "engine": "vllm", "engine_version": "V0", "swap_space": "4GiB"},
    ),
    "hybrid": (QWEN35_35B, {"available_kv": "20.00GiB", "engine": "vllm", "max_model_len": 32768}),
    "windows": (GPT_OSS_20B, {"available_kv": "20GiB", "engine": "sglang", "lengths": LENGTHS}),
    "latent": (DEEPSEEK_V3, {"available_kv": "20GiB", "engine": "trtllm", "tp": 8}),
    "lmdeploy": (LLAMA_8B, {"available_kv": "20GiB", "engine": "lmdeploy"}),
    "library": (LLAMA_8B, {"available_kv": "20GiB", "engine": "transformers", "lengths": LENGTHS}),
    "llama.cpp": (GPT_OSS_20B, {"engine": "llama.cpp", "ctx": 65536, "parallel": 4}),
    "reference": (LLAMA_8B, {"available_kv": "1GiB", "engine": "reference", "lengths": "fixed:500"}),
    "too small": (LLAMA_8B, {"gpu": "8GiB", "weights": "14GiB", "overhead": "1GiB"}),
    "priced": (LLAMA_8B, {"gpu": "80GiB", "weights": "14GiB", "overhead": "2GiB", "price_per_hour": 2.5}),
}


def names(text: str) -> list[str]:
    return text.split()


TOP = names("fits kv budget pool waste concurrency what_if flags warnings assumptions")
BUDGET = names("total utilisation weights non_torch activation_peak graphs fixed margin kv")
POOL = names(
    "num_blocks num_blocks_range block_size block_bytes page_bytes groups group_size padding_layers tokens "
    "tokens_range log_line_tokens log_line_tokens_range max_concurrency blocks_per_request num_cpu_blocks "
    "full_tokens swa_tokens state_slots parts_bytes estimated_max_model_len"
)
WASTE = names("tail_bound_tokens tail_expected_tokens padding null_block reserved block_table_bytes")
KV = names("bytes_per_token_per_gpu layout parts state_bytes_per_request bytes_at_tokens")


@pytest.mark.parametrize("name", REQUESTS)
def test_every_document_keeps_the_contract(name: str) -> None:
    config, settings = REQUESTS[name]
    document = plan(config, **settings)
    jsonschema.validate(document, plan_schema())
    json.dumps(document, allow_nan=False)
    assert document["schema"] == "kvprobe.plan/1"
    assert set(TOP) <= set(document)
    assert set(KV) <= set(document["kv"])
    assert set(BUDGET) <= set(document["budget"])
    for term in BUDGET:
        assert {"bytes", "range", "source"} <= set(document["budget"][term])
    assert set(POOL) <= set(document["pool"])
    assert set(WASTE) <= set(document["waste"])
    assert {"mean", "p50", "p95", "max", "distribution"} <= set(document["concurrency"])


@pytest.mark.parametrize("name", REQUESTS)
def test_null_has_a_reason(name: str) -> None:
    config, settings = REQUESTS[name]
    document = plan(config, **settings)
    reasons = document["reasons"]
    for term in BUDGET:
        if document["budget"][term]["bytes"] is None:
            assert reasons.get(f"budget.{term}") or reasons.get(f"budget.{term}.bytes"), term
    for part, names in (("waste", WASTE), ("concurrency", ["mean", "p50", "p95", "max", "distribution"])):
        for name_ in names:
            if document[part][name_] is None:
                assert reasons.get(f"{part}.{name_}"), (part, name_)
    for name_ in (
        "num_blocks",
        "tokens",
        "groups",
        "num_cpu_blocks",
        "full_tokens",
        "swa_tokens",
        "state_slots",
    ):
        if document["pool"][name_] is None:
            assert reasons.get(f"pool.{name_}") or reasons.get("pool"), name_
    if document["fits"] is None:
        assert reasons["fits"]


def test_a_printed_size_leaves_a_range_and_an_exact_one_none() -> None:
    rounded = plan(LLAMA_8B, available_kv="5.29GiB", engine="vllm", engine_version="V1", max_model_len=2048)
    assert rounded["pool"]["tokens_range"] == [43280, 43376]
    low, high = rounded["pool"]["tokens_range"]
    assert low <= rounded["pool"]["tokens"] <= high
    exact = plan(LLAMA_8B, available_kv=5 * 2**30, engine="vllm", engine_version="V1", max_model_len=2048)
    assert exact["pool"]["num_blocks"] == exact["pool"]["num_blocks_range"][0] == 2560


def test_a_band_has_ranges_and_no_middle() -> None:
    document = plan(*REQUESTS["band"][:1], **REQUESTS["band"][1])
    assert document["budget"]["kv"]["bytes"] is None
    assert document["pool"]["tokens"] is None
    low, high = document["pool"]["tokens_range"]
    assert low < high
    low, high = document["concurrency"]["p95_range"]
    assert document["concurrency"]["p95"] is None
    assert 0 < low < high
    assert document["concurrency"]["distribution"]["max_num_seqs_range"][0] > 0
    assert document["fits"] is True


def test_nothing_fits() -> None:
    document = plan(*REQUESTS["too small"][:1], **REQUESTS["too small"][1])
    assert document["fits"] is False
    assert "does not fit" in document["verdict"]
    assert document["budget"]["kv"]["bytes"] == -7 * 2**30


def test_whether_it_fits_can_be_open() -> None:
    document = plan(LLAMA_8B, gpu="20GiB", weights="14GiB", engine="vllm", engine_version="0.9")
    assert document["fits"] is None
    assert document["reasons"]["fits"]


def test_tokens_asks_for_bytes() -> None:
    document = plan(LLAMA_8B, tokens=8192)
    assert document["kv"]["bytes_at_tokens"] == 2**30
    assert plan(LLAMA_8B)["kv"]["bytes_at_tokens"] is None


def test_several_models_side_by_side() -> None:
    document = plan([LLAMA_8B, MHA_7B], gpu="24GiB", weights="14GiB", overhead="2GiB", lengths="fixed:2000")
    assert [p["kv"]["bytes_per_token_per_gpu"] for p in document["models"]] == [131_072, 524_288]
    assert document["pool"] == document["models"][0]["pool"]
    held = [p["concurrency"]["mean"] for p in document["models"]]
    assert held[0] >= 4 * held[1] > 0  # alike in size, a quarter of the KV heads
    jsonschema.validate(document, plan_schema())


@pytest.mark.parametrize(
    ("config", "layout"),
    [(LLAMA_8B, "full"), (QWEN35_35B, "linear_full"), (GPT_OSS_20B, "full_sliding"), (DEEPSEEK_V3, "mla")],
)
def test_layouts_have_their_names(config: dict[str, Any], layout: str) -> None:
    assert plan(config)["kv"]["layout"] == layout


def test_every_wrong_setting_is_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        plan(LLAMA_8B, gpu="80", weights="12", tp=0, engine="vlm", lengths="p50=x", kv_fraction=2)
    texts = " ".join(p.message for p in caught.value.problems)
    for option in ("--gpu", "--weights", "--tp", "--engine", "--lengths", "--kv-fraction"):
        assert option in texts
    assert all(p.fix for p in caught.value.problems)


@pytest.mark.parametrize(
    "settings", [{"tp": 3}, {"pp": 33}, {"tp": 3, "engine": "vllm", "available_kv": "1GiB"}]
)
def test_a_split_that_does_not_exist_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        plan(LLAMA_8B, **settings)
    assert caught.value.problems[0].code in ("tp_split", "pp_too_large")


def test_an_unknown_setting_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        plan(LLAMA_8B, gpus=1)


def test_an_unknown_layout_is_refused_by_name() -> None:
    with pytest.raises(UsageError) as caught:
        plan({"model_type": "frobnicator", "num_hidden_layers": 4})
    assert "frobnicator" in caught.value.problems[0].message


def test_kv_cache_bytes() -> None:
    assert kvprobe.kv_cache_bytes(LLAMA_8B, 8192) == 2**30
    assert kvprobe.kv_cache_bytes(LLAMA_8B, 8192, kv_dtype="fp8") == 2**29
    assert kvprobe.kv_cache_bytes(LLAMA_8B, 8192, tp=2) == 2**29
    assert kvprobe.kv_cache_bytes(LLAMA_8B, 0) == 0
    with pytest.raises(UsageError):
        kvprobe.kv_cache_bytes(LLAMA_8B, -1)
    with pytest.raises(UsageError):
        kvprobe.kv_cache_bytes(LLAMA_8B, 1, kv_dtype="fp7")


def test_the_room_can_be_called_and_imported() -> None:
    import kvprobe.plan.sizes

    assert callable(kvprobe.plan)
    assert kvprobe.plan.sizes.GIB == 2**30
    with pytest.raises(AttributeError):
        _ = kvprobe.nothing_of_that_name
