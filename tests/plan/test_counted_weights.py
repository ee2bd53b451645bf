"""Weights that are counted from a configuration alone: the budget, the verdict and what is said of them."""

from __future__ import annotations

from typing import Any

from kvprobe.plan.api import plan
from tests.model.published_counts import PUBLISHED

LLAMA_8B = {**PUBLISHED["Llama-3.1-8B"][0], "max_position_embeddings": 8192}
LLAMA_70B = {**PUBLISHED["Llama-3.1-70B"][0], "max_position_embeddings": 8192}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def test_a_bare_configuration_gives_a_banded_answer() -> None:
    document = plan(LLAMA_8B, gpu="H100", engine="vllm", lengths="fixed:4000")
    weights = document["budget"]["weights"]
    assert weights["bytes"] == 2 * 8_030_261_248
    assert weights["source"] == "config"
    assert "headers are exact" in weights["note"]
    assert document["fits"] is True
    lo, hi = document["budget"]["kv"]["range"]
    assert 0 < lo < hi


def test_a_70b_configuration_does_not_fit_a_small_card() -> None:
    document = plan(LLAMA_70B, gpu="24GiB", engine="vllm")
    assert document["fits"] is False
    assert "does not fit" in document["verdict"]


def test_the_count_is_split_over_the_gpus() -> None:
    document = plan(LLAMA_70B, gpu="80GiB", engine="vllm", tp=4)
    assert document["budget"]["weights"]["bytes"] == 2 * 70_553_706_496 // 4
    assert "weights are split evenly over 4 GPUs" in document["assumptions"]


def test_quantised_weights_are_a_range() -> None:
    document = plan({**LLAMA_8B, "quantization_config": FP8}, gpu="24GiB", engine="vllm")
    lo, hi = document["budget"]["weights"]["range"]
    assert 8_030_261_248 < lo < hi < 1.02 * lo


def test_the_user_s_size_goes_before_the_count() -> None:
    document = plan(LLAMA_8B, gpu="80GiB", weights="15GiB")
    assert document["budget"]["weights"]["source"] == "user"


def test_why_there_is_no_count_is_said() -> None:
    config: dict[str, Any] = {key: value for key, value in LLAMA_8B.items() if key != "intermediate_size"}
    document = plan(config, gpu="80GiB")
    assert document["fits"] is None
    reason = document["reasons"]["budget.weights"]
    assert "`intermediate_size` is missing" in reason
    assert "--weights" in reason
