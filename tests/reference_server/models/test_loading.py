"""What is loaded from a model's directory, and what is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
from safetensors.torch import load_file, save_file

from reference_server.errors import ConfigError
from reference_server.models.families import recipe_from_config
from reference_server.models.load import load_model
from tests.reference_server.models.checkpoints import COMMON, make_model


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("original")
    make_model("qwen2", directory, torch.bfloat16)
    return directory


@pytest.fixture
def directory(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "model"))


def edit(path: Path, **changes: Any) -> None:
    found = json.loads(path.read_text())
    path.write_text(json.dumps({**found, **changes}))


def change_tensors(directory: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def test_bf16_weights_stay_so_in_memory_and_tied_ones_are_found(directory: Path) -> None:
    model = load_model(str(directory))
    assert model.config.name == "model"
    assert model.config.vocabulary_size == COMMON["vocab_size"]
    assert model.weights.embedding.dtype in (torch.bfloat16, torch.float32)
    assert model.weights.layers[0].qkv_bias is not None
    assert model.weights.pass_bytes <= model.weights.nbytes


def test_shards_are_put_together(directory: Path) -> None:
    tensors = load_file(directory / "model.safetensors")
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, own in shards.items():
        save_file({name: tensors[name] for name in own}, directory / file)
    where = {name: file for file, own in shards.items() for name in own}
    (directory / "model.safetensors").unlink()
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    assert load_model(str(directory)).config.layers == 3
    edit(index, weight_map={**where, names[0]: "../outside.safetensors"})
    with pytest.raises(ConfigError, match="no file of the directory"):
        load_model(str(directory))


def _drop_bias(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["model.layers.1.self_attn.k_proj.bias"]


def _add_part(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.layers.1.mlp.router.weight"] = torch.zeros(2)


def _cut(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"][:-1].clone()


def _whole_numbers(tensors: dict[str, torch.Tensor]) -> None:
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.int8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_drop_bias, "no tensor 'model.layers.1.self_attn.k_proj.bias'"),
        (_add_part, "no place in this family, as 'model.layers.1.mlp.router.weight'"),
        (_cut, r"model.norm.weight is \(63,\), and config.json calls for \(64,\)"),
        (_whole_numbers, "weights must be fp32, bf16 or fp16"),
    ],
)
def test_weights_that_do_not_fit_are_named(
    directory: Path, change: Callable[[dict[str, torch.Tensor]], None], words: str
) -> None:
    change_tensors(directory, change)
    with pytest.raises(ConfigError, match=words):
        load_model(str(directory))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba'"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForSequenceClassification"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "'dynamic'"),
        ({"rope_scaling": {"type": "longrope", "factor": 2.0}}, "'longrope'"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "factor must be a number above 0"),
        ({"hidden_act": "relu"}, "activation 'relu'"),
        ({"num_key_value_heads": 3}, "do not divide"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be a whole number from 1 to 1024"),
        ({"vocab_size": "many"}, "vocab_size must be a whole number"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
    ],
)
def test_a_configuration_that_is_not_served_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    config = {**COMMON, "model_type": "llama", "architectures": ["LlamaForCausalLM"], **changes}
    with pytest.raises(ConfigError, match=words):
        recipe_from_config(config, "m")


def test_older_files_say_rope_in_their_own_way() -> None:
    config = {
        **COMMON,
        "model_type": "llama",
        "rope_theta": 5e5,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    }
    shape = recipe_from_config(config, "m").shape
    assert shape.rope_theta == 5e5
    assert shape.rope_scaling is not None
    assert (shape.rope_scaling.kind, shape.rope_scaling.original_tokens) == ("llama3", 8192)


def test_layers_are_cut_into_groups_as_vllm_does() -> None:
    config = {
        **COMMON,
        "model_type": "gemma3_text",
        "num_hidden_layers": 26,
        "sliding_window": 512,
        "hidden_activation": "gelu_pytorch_tanh",
    }
    shape = recipe_from_config(config, "m").shape
    assert [len(group.layers) for group in shape.groups] == [4, 4, 4, 4, 4, 4, 2]
    assert [group.window for group in shape.groups] == [None, *[512] * 6]
    assert shape.groups[0].layers == (5, 11, 17, 23)
    assert shape.block_layers == 4


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("config.json", b"{", "is no JSON"),
        ("config.json", b"[]", "no JSON object"),
        ("config.json", b"[" * 100_000, "is no JSON"),
        ("tokenizer.json", b"{}", "no tokenizer"),
        ("model.safetensors", b"\xff" * 64, "cannot be read"),
        ("chat_template.jinja", b"{% if %}", "chat template does not compile"),
    ],
)
def test_a_broken_file_is_one_line(directory: Path, name: str, content: bytes, words: str) -> None:
    (directory / name).write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        load_model(str(directory))


def test_no_directory_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no config\.json"):
        load_model(str(tmp_path / "nowhere"))
