"""Parameters counted from a configuration, held against the modelling code and against published totals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvprobe.model.counting.table import RECIPES
from kvprobe.model.families.table import FAMILIES
from tests.model.configs import read
from tests.model.published_counts import PUBLISHED

_FIXTURES = Path(__file__).parent / "fixtures"
_LLAMA_8B = PUBLISHED["Llama-3.1-8B"][0]


def _rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (_FIXTURES / name).read_text().splitlines()]


_SMALL = _rows("parameter_counts.jsonl")
_WRAPPED = _rows("wrapped_counts.jsonl")


@pytest.mark.parametrize("row", _SMALL, ids=[f"{row['model_type']}-{i}" for i, row in enumerate(_SMALL)])
def test_small_models_of_the_modelling_code(row: dict[str, Any]) -> None:
    found = read({**row["config"], "model_type": row["model_type"], "torch_dtype": "bfloat16"})
    assert found.parameters == row["parameters"], found.weight_note
    assert found.weight_bytes_range == (2 * row["parameters"],) * 2


@pytest.mark.parametrize("row", _WRAPPED, ids=[row["config"]["model_type"] for row in _WRAPPED])
def test_composite_models_count_their_language_part_and_bound_the_rest(row: dict[str, Any]) -> None:
    found = read({**row["config"], "torch_dtype": "bfloat16"})
    assert found.parameters == row["language"], found.weight_note
    assert found.weight_bytes_range is not None
    lo, hi = found.weight_bytes_range
    assert lo <= 2 * row["total"] <= hi
    assert hi - lo <= 2 * 3 * (row["total"] - row["language"]) + 2 * 10**9
    assert any("language model" in text for text in found.assumptions)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_totals(name: str) -> None:
    config, total = PUBLISHED[name]
    assert read(config).parameters == total


def test_every_counted_family_was_held_against_something() -> None:
    seen = {row["model_type"] for row in _SMALL} | {config["model_type"] for config, _ in PUBLISHED.values()}
    nested = {row["config"].get("text_config", {}).get("model_type") for row in _WRAPPED}
    # Flat files of composite models are read like their nested part.
    assert set(RECIPES) - seen - nested <= {"qwen2_vl", "qwen2_5_vl", "qwen2_audio_text"}
    assert set(RECIPES) <= set(FAMILIES)


@pytest.mark.parametrize("key", ["intermediate_size", "vocab_size"])
def test_a_missing_size_gives_no_count_and_its_name(key: str) -> None:
    found = read({name: value for name, value in _LLAMA_8B.items() if name != key})
    assert found.parameters is None
    assert found.weight_bytes_range is None
    assert f"`{key}`" in (found.weight_note or "")


@pytest.mark.parametrize(
    "value", [0, -1, True, "11008", 1.5, [1], {}, 1 << 40, None], ids=lambda value: repr(value)
)
def test_a_size_that_cannot_be_ends_the_count_and_not_the_reading(value: object) -> None:
    found = read({**_LLAMA_8B, "intermediate_size": value})
    assert found.parameters is None
    assert found.layers


@pytest.mark.parametrize("changes", [{"tie_word_embeddings": "yes"}, {"attention_bias": 1}])
def test_a_switch_that_is_neither_true_nor_false(changes: dict[str, object]) -> None:
    assert read({**_LLAMA_8B, **changes}).parameters is None


def test_a_family_without_a_verified_count_has_none() -> None:
    found = read({**_LLAMA_8B, "model_type": "baichuan"})
    assert found.parameters is None
    assert "baichuan" in (found.weight_note or "")


def _quantised(name: str, part: dict[str, Any]) -> tuple[int, int]:
    found = read({**PUBLISHED[name][0], "quantization_config": part})
    assert found.weight_bytes_range is not None, found.weight_note
    return found.weight_bytes_range


def test_mxfp4_experts_of_gpt_oss() -> None:
    part = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"],
    }
    lo, hi = _quantised("gpt-oss-20b", part)
    experts = 24 * 32 * 3 * 2880 * 2880
    assert lo == hi == 2 * (PUBLISHED["gpt-oss-20b"][1] - experts) + experts * 17 // 32


def test_fp8_blocks_of_kimi_k2() -> None:
    # 1,029,173,256,720 bytes of tensors in the published checkpoint.
    lo, hi = _quantised("Kimi-K2", {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3"})
    assert lo <= 1_029_173_256_720 <= hi
    assert (hi - lo) / lo < 0.001


@pytest.mark.parametrize(
    ("part", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, (4.1, 4.25)),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, (4.1, 4.25)),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, (8.0, 8.15)),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, (4.1, 4.5)),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, (8.0, 8.1)),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]}, (4.5, 4.55)),
        (
            {
                "quant_method": "compressed-tensors",
                "ignore": ["lm_head"],
                "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}},
            },
            (8.0, 8.15),
        ),
    ],
    ids=lambda value: value["quant_method"] if isinstance(value, dict) else "",
)
def test_bits_per_quantised_weight(part: dict[str, Any], bits: tuple[float, float]) -> None:
    linear = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    rest = 2 * (8_030_261_248 - linear)
    lo, hi = (8 * (end - rest) / linear for end in _quantised("Llama-3.1-8B", part))
    assert bits[0] - 0.001 <= lo <= hi <= bits[1] + 0.001


def test_layers_that_were_left_as_they_are_widen_the_range() -> None:
    plain = {"quant_method": "fp8"}
    lo, hi = _quantised(
        "Llama-3.1-8B", {**plain, "modules_to_not_convert": ["lm_head", "model.layers.0.self_attn"]}
    )
    attention = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024)
    assert lo == _quantised("Llama-3.1-8B", plain)[0]
    assert hi == pytest.approx(_quantised("Llama-3.1-8B", plain)[1] + attention, rel=0.01)


@pytest.mark.parametrize(
    "part", [{"quant_method": "aqlm"}, {}, {"quant_method": "gptq"}, {"quant_method": "compressed-tensors"}]
)
def test_an_unknown_quantisation_has_a_count_and_no_bytes(part: dict[str, Any]) -> None:
    found = read({**_LLAMA_8B, "quantization_config": part})
    assert found.parameters == 8_030_261_248
    assert found.weight_bytes_range is None
    assert found.weight_note


def test_a_tower_that_is_not_described_gives_no_bytes() -> None:
    found = read({**_LLAMA_8B, "mm_vision_tower": "clip"})
    assert found.weight_bytes_range is None
    assert "vision" in (found.weight_note or "")
