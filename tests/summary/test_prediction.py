"""Predicted bytes, tokens and concurrency beside what the server reports."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.summary.prediction import NO_MODEL, predict
from tests.summary.synthetic import Made

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}
BLOCKS = 1001
CONFIG = {
    "block_size": "16",
    "cache_dtype": "bf16",
    "kv_bytes_per_token": "131072",
    "kv_cache_memory_bytes": str(BLOCKS * 16 * 131072),
    "kv_cache_size_tokens": "16000",
    "num_gpu_blocks": str(BLOCKS),
    "max_model_len": "8000",
}


def run(config: dict[str, str] | None = None, *, model: bool = True, engine: str = "reference") -> Made:
    made = Made().fact("engine", {"name": engine, "version": "0.1.0"})
    made.fact("cache_config", CONFIG if config is None else config)
    made.fact("target", {"model": "m", "max_model_len_tokens": 8000})
    return made.fact("model_config", LLAMA) if model else made


def test_prediction_and_report_agree() -> None:
    found = predict(run().build())
    assert (found.bytes_per_token.predicted, found.bytes_per_token.reported) == (131072, 131072)
    assert (found.pool_tokens.predicted, found.pool_tokens.reported) == (16000, 16000)
    assert found.max_concurrency.error == pytest.approx(0, abs=1e-3)
    assert found.warnings == []


def test_a_disagreement_is_said_with_its_size() -> None:
    found = predict(run(CONFIG | {"kv_cache_size_tokens": "15000"}).build())
    assert found.pool_tokens.error == pytest.approx(16000 / 15000 - 1)
    assert any("pool tokens: predicted 16,000, the server reports 15,000" in w for w in found.warnings)


def test_a_pool_that_was_set_by_hand_is_not_predicted() -> None:
    """vLLM's cache_config_info carries every field; one that is not set is the text `None`."""
    found = predict(run(CONFIG | {"kv_cache_size_tokens": "2560", "num_gpu_blocks_override": "80"}).build())
    assert found.warnings == []
    assert (found.pool_tokens.predicted, found.max_concurrency.predicted) == (None, None)
    assert "by hand" in (found.pool_tokens.reason or "")
    assert found.bytes_per_token.predicted == 131072
    unset = predict(run(CONFIG | {"num_gpu_blocks_override": "None"}).build())
    assert unset.pool_tokens.predicted == 16000


def test_within_the_tolerance_nothing_is_said() -> None:
    assert predict(run(CONFIG | {"kv_cache_size_tokens": "15800"}).build()).warnings == []


def test_without_a_model_only_the_report_stands() -> None:
    found = predict(run(model=False).build())
    assert found.bytes_per_token.predicted is None
    assert found.bytes_per_token.reported == 131072
    assert found.bytes_per_token.reason == NO_MODEL
    assert found.warnings == []


def test_without_the_pools_bytes_the_token_is_still_predicted() -> None:
    config = {k: v for k, v in CONFIG.items() if "bytes" not in k}
    found = predict(run(config, engine="vllm").build())
    assert found.bytes_per_token.predicted == 131072
    assert found.bytes_per_token.error is None
    assert found.bytes_per_token.reason == "not reported by the server"
    assert found.pool_tokens.predicted is None
    assert found.pool_tokens.reason is not None


def test_the_log_of_another_engine_tells_the_bytes() -> None:
    config = {"block_size": "16", "num_gpu_blocks": "1000", "cache_dtype": "auto"}
    told = {
        "available_kv": {"values": {"bytes": {"value": 1000 * 16 * 131072, "unit": "B"}}},
        "pool_size": {"values": {"concurrency": {"value": 2.0, "unit": "ratio"}}},
    }
    found = predict(run(config, engine="vllm").build(), told)
    assert found.pool_tokens.predicted == pytest.approx(16000, rel=0.01)
    assert found.max_concurrency.reported == 2.0
    assert found.warnings == []


def test_a_model_that_the_planner_does_not_know_is_a_reason() -> None:
    made = run(model=False).fact("model_config", {"model_type": "no_such_thing"})
    assert "refuses" in (predict(made.build()).bytes_per_token.reason or "")


def test_what_auto_means_is_told_by_the_log_or_said_to_be_assumed() -> None:
    config = CONFIG | {"cache_dtype": "auto"}
    told = {"config": {"values": {"dtype": {"value": "float32", "unit": None}}}}
    found = predict(run(config, engine="vllm").build(), told)
    assert found.pool_tokens.predicted == pytest.approx(8000, rel=0.01)
    assumed = predict(run(config | {"kv_cache_size_tokens": "8000"}, engine="vllm").build())
    assert "assuming that the cache has the dtype" in assumed.warnings[0]
