"""What each family's reading says beyond one number, and what it says when keys are absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvprobe.errors import UsageError
from kvprobe.model.families.table import FAMILIES, WRAPPED
from kvprobe.model.layouts import drafts, layout_name
from kvprobe.model.spec import Attention, Latent, State
from tests.model import configs as c


def attentions(config: dict[str, Any]) -> list[Attention]:
    mixers = [mixer for layer in c.read(config).layers for mixer in layer.mixers]
    return [mixer for mixer in mixers if isinstance(mixer, Attention)]


def test_head_dim_is_never_derived_when_it_is_given() -> None:
    assert attentions(c.QWEN3_4B)[0].k_dim == 128
    absent = {key: value for key, value in c.LLAMA_3_8B.items() if key != "head_dim"}
    assert attentions(absent)[0].k_dim == 128
    # Gemma's class default, not hidden size / heads.
    assert attentions(c.decoder("gemma", 28, 3072, 16, num_key_value_heads=16))[0].k_dim == 256


def test_missing_kv_heads_are_said_to_be_multi_head() -> None:
    spec = c.read(c.decoder("llama", 32, 4096, 32))
    assert attentions(c.decoder("llama", 32, 4096, 32))[0].kv_heads == 32
    assert any("multi-head" in text and "num_key_value_heads" in text for text in spec.assumptions)
    null = c.read(c.decoder("mistral", 2, 512, 4, num_key_value_heads=None, sliding_window=None))
    assert any("multi-head" in text for text in null.assumptions)
    assert not c.read(c.LLAMA_3_8B).assumptions


def test_class_default_of_kv_heads_is_said() -> None:
    spec = c.read(c.decoder("mistral", 32, 4096, 32, sliding_window=None))
    assert spec.assumptions == (
        "num_key_value_heads is not in the configuration: 8, the default of MistralConfig",
    )


def test_nested_text_config_takes_class_defaults() -> None:
    spec = c.read(c.GEMMA_3_4B)
    assert spec.multimodal
    first = attentions(c.GEMMA_3_4B)[0]
    assert (first.kv_heads, first.k_dim, first.window_tokens) == (4, 256, 1024)
    assert any("8, the default of Gemma3TextConfig" in text for text in spec.assumptions)
    # LLaVA 1.5 publishes no size of its language model at all.
    llava = {"model_type": "llava", "text_config": {"model_type": "llama", "torch_dtype": "float16"}}
    assert c.per_token(llava) == 524_288


def test_sizes_are_not_defaulted_at_the_top() -> None:
    with pytest.raises(UsageError) as caught:
        c.read({"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32})
    assert "num_hidden_layers" in str(caught.value)


def test_omni_models_two_levels_down() -> None:
    config = {
        "model_type": "qwen3_omni_moe",
        "thinker_config": {
            "model_type": "qwen3_omni_moe_thinker",
            "text_config": c.decoder(
                "qwen3_omni_moe_text", 48, 2048, 32, num_key_value_heads=4, head_dim=128
            ),
        },
    }
    assert c.per_token(config) == 48 * 2 * 4 * 128 * 2
    assert "the language model is read from `text_config`" in c.read(config).assumptions


@pytest.mark.parametrize("wrapper", ["internvl_chat", "deepseek_vl_v2", "some_new_vl"])
def test_unknown_wrapper_with_a_known_language_model(wrapper: str) -> None:
    config = {"model_type": wrapper, "llm_config": c.LLAMA_3_8B}
    assert c.per_token(config) == 131_072


def test_mistral_window() -> None:
    old = c.decoder("mistral", 32, 4096, 32, num_key_value_heads=8, sliding_window=4096)
    assert {a.window_tokens for a in attentions(old)} == {4096}
    new = c.decoder("mistral", 32, 4096, 32, num_key_value_heads=8, sliding_window=None)
    assert {a.kind for a in attentions(new)} == {"full"}


def test_a_window_over_all_positions_is_none() -> None:
    mini = c.decoder("phi3", 32, 3072, 24, num_key_value_heads=8, sliding_window=262_144)
    assert {a.kind for a in attentions(mini | {"max_position_embeddings": 131_072})} == {"full"}
    assert {a.kind for a in attentions(mini | {"max_position_embeddings": 524_288})} == {"sliding"}


def test_qwen_window_needs_its_switch() -> None:
    config = c.decoder("qwen2", 28, 3584, 28, num_key_value_heads=4, sliding_window=131_072)
    assert {a.kind for a in attentions(config)} == {"full"}
    assert any("use_sliding_window" in text for text in c.read(config).assumptions)
    on = config | {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 20}
    assert [a.kind for a in attentions(on)] == ["full"] * 20 + ["sliding"] * 8


def test_gemma_patterns() -> None:
    assert [a.kind for a in attentions(c.GEMMA_3_27B)].count("full") == 10
    two = c.decoder("gemma2", 26, 2304, 8, num_key_value_heads=4, head_dim=256, sliding_window=4096)
    assert [a.kind for a in attentions(two)][:3] == ["sliding", "full", "sliding"]
    five = attentions(c.GEMMA_4_26B)
    assert [a.kind for a in five].count("full") == 5
    full = next(a for a in five if a.kind == "full")
    assert (full.kv_heads, full.k_dim, full.v_dim) == (2, 512, 512)
    said = c.read(c.GEMMA_4_26B).assumptions
    assert any("K and V are both stored" in text for text in said)


def test_gemma3n_shares_by_kind() -> None:
    config = c.decoder("gemma3n_text", 35, 2048, 8, num_key_value_heads=2, head_dim=256)
    spec = c.read(config)
    assert len(spec.owning()) == 20
    assert layout_name(spec) == "shared"
    assert {layer.shares_with for layer in spec.layers[20:]} == {18, 19}


def test_kv_layers_of_deci() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 8, "no_op": False, "replace_with_linear": False}, "ffn": {}},
        {"attention": {"n_heads_in_group": None, "no_op": True, "replace_with_linear": False}, "ffn": {}},
        {"attention": {"n_heads_in_group": 16, "no_op": False, "replace_with_linear": False}, "ffn": {}},
    ]
    config = c.decoder("nemotron-nas", 3, 8192, 64, block_configs=blocks)
    assert [a.kv_heads for a in attentions(config)] == [8, 4]
    assert c.per_token(config) == (8 + 4) * 128 * 2 * 2
    assert layout_name(c.read(config)) == "varying"
    # TP 8 keeps max(1, h // 8) heads of each layer, not a share of the sum.
    assert c.per_token(config, tp=8) == (1 + 1) * 128 * 2 * 2
    seven = c.decoder("deci", 3, 4096, 32, num_key_value_heads_per_layer=[4, 2, 1])
    assert c.per_token(seven) == 7 * 128 * 2 * 2


def test_openelm_heads_vary() -> None:
    config = {
        "model_type": "openelm",
        "num_transformer_layers": 4,
        "model_dim": 1280,
        "head_dim": 64,
        "num_kv_heads": [3, 3, 4, 5],
        "num_query_heads": [12, 12, 16, 20],
        "torch_dtype": "float16",
    }
    assert c.per_token(config) == 15 * 64 * 2 * 2
    assert layout_name(c.read(config)) == "varying"


def test_falcon() -> None:
    old = c.decoder("falcon", 32, 4544, 71, multi_query=True)
    assert c.per_token(old) == 32 * 2 * 64 * 2
    new = c.decoder("falcon", 60, 8192, 128, new_decoder_architecture=True, num_kv_heads=8)
    assert {a.kv_heads for a in attentions(new)} == {8}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12}, 12 * 2 * 768 * 2),
        (c.decoder("opt", 32, 4096, 32), 524_288),
        ({"model_type": "bloom", "n_layer": 70, "hidden_size": 14336, "n_head": 112}, 70 * 2 * 14336 * 2),
        ({"model_type": "gpt_bigcode", "n_layer": 40, "n_embd": 6144, "n_head": 48}, 40 * 2 * 128 * 2),
        (
            {
                "model_type": "dbrx",
                "n_layers": 40,
                "d_model": 6144,
                "n_heads": 48,
                "attn_config": {"kv_n_heads": 8},
            },
            40 * 2 * 8 * 128 * 2,
        ),
        (
            c.decoder(
                "chatglm", 40, 4096, 32, kv_channels=128, multi_query_attention=True, multi_query_group_num=2
            ),
            40 * 2 * 2 * 128 * 2,
        ),
        (c.decoder("internlm2", 32, 4096, 32, num_key_value_heads=8), 131_072),
        (c.decoder("cohere", 40, 8192, 64, num_key_value_heads=8), 163_840),
        (c.decoder("phi3", 40, 5120, 40, num_key_value_heads=10, sliding_window=None), 204_800),
        (c.decoder("olmo2", 32, 4096, 32), 524_288),
    ],
)
def test_older_families(config: dict[str, Any], expected: int) -> None:
    assert c.per_token(config) == expected


def test_hybrid_patterns() -> None:
    minimax = c.decoder(
        "minimax_m1", 80, 6144, 64, num_key_value_heads=8, head_dim=128, attn_type_list=([0] * 7 + [1]) * 10
    )
    spec = c.read(minimax)
    assert len([m for layer in spec.layers for m in layer.mixers if isinstance(m, State)]) == 70
    assert c.per_token(minimax) == 10 * 2 * 8 * 128 * 2
    jamba = c.decoder("jamba", 32, 4096, 32, num_key_value_heads=8)
    assert c.per_token(jamba) == 4 * 4096
    h1 = c.decoder(
        "falcon_h1",
        4,
        1024,
        8,
        num_key_value_heads=2,
        mamba_n_heads=16,
        mamba_d_head="auto",
        mamba_d_ssm=1024,
        mamba_d_state=128,
    )
    assert all(len(layer.mixers) == 2 for layer in c.read(h1).layers)
    assert layout_name(c.read(h1)) == "mamba_full"


def test_pure_states_cost_no_byte_per_token() -> None:
    mamba = {"model_type": "mamba2", "num_hidden_layers": 4, "hidden_size": 256, "num_heads": 8}
    mamba |= {"head_dim": 64, "state_size": 128, "n_groups": 1}
    assert c.per_token(mamba) == 0
    assert c.sequence_bytes(mamba, 10**6) == c.sequence_bytes(mamba, 1) > 0
    rwkv = {"model_type": "rwkv6", "num_hidden_layers": 2, "hidden_size": 128, "head_size": 64}
    assert c.sequence_bytes(rwkv | {"torch_dtype": "bfloat16"}, 5) == 2 * (128 * 64 * 4 + 2 * 128 * 2)


def test_yoco_keeps_one_full_layer() -> None:
    config = c.decoder("phi4flash", 32, 2560, 40, num_key_value_heads=20, mb_per_layer=2, sliding_window=512)
    spec = c.read(config)
    kinds = [
        (layer.index, a.kind) for layer in spec.owning() for a in layer.mixers if isinstance(a, Attention)
    ]
    assert [index for index, kind in kinds if kind == "full"] == [17]
    assert len([1 for _, kind in kinds if kind == "sliding"]) == 8
    assert {layer.shares_with for layer in spec.layers[18:] if layer.mixers} == {17}


def test_cross_layer_attention() -> None:
    config = c.decoder("hunyuan", 64, 6400, 80, num_key_value_heads=8, use_cla=True, cla_share_factor=2)
    assert len(c.read(config).owning()) == 32


def test_drafts_that_ship_with_the_model() -> None:
    r1 = c.read(c.DEEPSEEK_R1)
    assert isinstance(r1.draft_layers[0].mixers[0], Latent)
    # An EAGLE head has the geometry of the model's last layer.
    eagle = drafts(c.read(c.LLAMA_3_8B), 2)
    assert [layer.index for layer in eagle] == [32, 33]
    assert eagle[0].mixers == c.read(c.LLAMA_3_8B).layers[-1].mixers
    moe = c.read(c.decoder("minimax_m2", 62, 3072, 48, num_key_value_heads=8, num_mtp_modules=3))
    assert len(moe.draft_layers) == 3


def test_verified_is_said() -> None:
    assert c.read(c.LLAMA_3_8B).verified
    assert not c.read(c.decoder("internlm2", 32, 4096, 32, num_key_value_heads=8)).verified


def test_quantised_checkpoints_are_named() -> None:
    for given, name in [
        ({"quant_method": "awq", "bits": 4}, "awq 4-bit"),
        ({"quant_method": "gptq", "bits": 8}, "gptq 8-bit"),
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes 4-bit"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt nvfp4"),
        (
            {"quant_method": "compressed-tensors", "format": "pack-quantized"},
            "compressed-tensors pack-quantized",
        ),
    ]:
        spec = c.read(c.LLAMA_3_8B | {"quantization_config": given})
        assert spec.quantization == name
        # The cache stays at 16 bit.
        assert spec.dtype == "bfloat16"
    asked = c.LLAMA_3_8B | {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "kv_cache_scheme": {"num_bits": 8, "type": "float"},
        }
    }
    assert any("fp8 KV cache" in text for text in c.read(asked).assumptions)


def test_tables_agree() -> None:
    assert set(WRAPPED.values()) <= set(FAMILIES)


def test_the_page_lists_every_family_with_its_check() -> None:
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    checked, open_ones = page.split("## Read, but not verified")
    for model_type, family in FAMILIES.items():
        assert f"`{model_type}`" in (checked if family.checked else open_ones), model_type
