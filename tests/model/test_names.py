"""Configurations without a model_type, or with no more than the cache depends on."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.errors import UsageError
from kvprobe.model.architectures import type_of_architecture
from kvprobe.model.layouts import growing_bytes_per_token, layout_name, parts
from kvprobe.model.spec import Attention, Latent
from tests.model import configs as c

PLAIN: dict[str, Any] = {
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}


def per_token(config: dict[str, Any]) -> int:
    spec = c.read(config)
    k, v = c.formats(spec)
    return int(growing_bytes_per_token(parts(spec, k, v, tp=1)))


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("LlamaForCausalLM", "llama"),
        ("Qwen2ForCausalLM", "qwen2"),
        ("Qwen3MoeForCausalLM", "qwen3_moe"),
        ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe"),
        ("Gemma3ForCausalLM", "gemma3"),
        ("Gemma2ForCausalLM", "gemma2"),
        ("GptOssForCausalLM", "gpt_oss"),
        ("GPT2LMHeadModel", "gpt2"),
        ("GPTNeoXForCausalLM", "gpt_neox"),
        ("DeepseekV3ForCausalLM", "deepseek_v3"),
        ("DeepseekV32ForCausalLM", "deepseek_v32"),
        ("KimiK25ForConditionalGeneration", "kimi_k25"),
        ("NemotronHForCausalLM", "nemotron_h"),
        ("MiniMaxM2ForCausalLM", "minimax_m2"),
        ("ChatGLMModel", "chatglm"),
        ("QWenLMHeadModel", "qwen"),
        ("RWForCausalLM", "RefinedWeb"),
        ("FooBarForCausalLM", None),
    ],
)
def test_a_class_name_stands_for_its_model_type(name: str, model_type: str | None) -> None:
    assert type_of_architecture(name) == model_type


def test_a_class_alone_is_enough_and_is_said() -> None:
    spec = c.read(PLAIN | {"architectures": ["LlamaForCausalLM"]})
    assert spec.family == "llama"
    assert any("as the class LlamaForCausalLM says" in text for text in spec.assumptions)


def test_an_unknown_class_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'FooBarForCausalLM' is not known"):
        c.read(PLAIN | {"architectures": ["FooBarForCausalLM"]})


def test_a_nameless_file_is_read_by_its_keys_and_not_verified() -> None:
    spec = c.read(PLAIN)
    assert (layout_name(spec), spec.verified) == ("full", False)
    assert any("no model_type" in text for text in spec.assumptions)
    windows = {"layer_types": ["full_attention", "sliding_attention"] * 16, "sliding_window": 512}
    assert layout_name(c.read(PLAIN | windows)) == "full_sliding"
    assert layout_name(c.read(PLAIN | {"kv_lora_rank": 512, "qk_rope_head_dim": 64})) == "mla"


@pytest.mark.parametrize(
    "key",
    ["sliding_window", "mamba_d_state", "linear_num_value_heads", "num_kv_shared_layers", "block_configs"],
)
def test_a_nameless_file_of_doubtful_layout_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match="`model_type` is missing"):
        c.read(PLAIN | {key: 4})


def test_sizes_that_the_cache_does_not_depend_on_may_be_missing() -> None:
    bare = {"model_type": "llama", "num_hidden_layers": 48, "num_key_value_heads": 8, "head_dim": 128}
    assert per_token(bare) == 48 * 2 * 8 * 128 * 2
    assert any("hidden_size is not" in text for text in c.read(bare).assumptions)


def test_a_state_needs_the_hidden_size_all_the_same() -> None:
    bare = {"num_hidden_layers": 4, "num_key_value_heads": 8, "head_dim": 128, "mamba_d_state": 16}
    with pytest.raises(UsageError, match="`hidden_size` is missing"):
        c.read(bare | {"model_type": "jamba"})


def test_a_latent_layer_needs_no_widths_of_decompressed_heads() -> None:
    keys = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    spec = c.read(c.decoder("deepseek_v3", 61, 7168, 128, **keys))
    assert per_token(c.decoder("deepseek_v3", 61, 7168, 128, **keys)) == 61 * 576 * 2
    assert any("v_head_dim is not" in text for text in spec.assumptions)


def test_an_indexer_makes_v3_of_v32() -> None:
    spec = c.read(c.DEEPSEEK_R1 | {"index_head_dim": 128})
    assert layout_name(spec) == "mla_indexer"
    mixer = spec.layers[0].mixers[0]
    assert isinstance(mixer, Latent)
    assert mixer.indexer_dim == 128


def test_global_heads_count_without_the_flag() -> None:
    config = c.decoder("gemma4_text", 12, 2048, 8, num_key_value_heads=8, head_dim=256)
    spec = c.read(config | {"num_global_key_value_heads": 1, "sliding_window": 512})
    widths = [m.kv_heads for m in spec.layers[5].mixers if isinstance(m, Attention)]
    assert widths == [1]


def test_linear_heads_take_the_class_width() -> None:
    heads = {"linear_num_value_heads": 32, "linear_num_key_heads": 16, "head_dim": 256}
    config = c.decoder("qwen3_5", 32, 4096, 16, num_key_value_heads=4, **heads)
    full = config | {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    assert c.read(config).layers == c.read(full).layers


def test_sliding_layers_of_a_plain_family_are_not_lost() -> None:
    kinds = ["full_attention", "sliding_attention"] * 16
    config = c.decoder("llama", 32, 4096, 32, num_key_value_heads=8, layer_types=kinds, sliding_window=1024)
    assert layout_name(c.read(config)) == "full_sliding"
    assert per_token(config) == 16 * 4096
