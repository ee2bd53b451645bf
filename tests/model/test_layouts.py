"""Every row of the layout table, with its worked number (LAYOUTS section 1), and MISSION's arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvprobe.errors import UsageError
from kvprobe.model.layouts import (
    growing_bytes_per_token,
    heads_per_rank,
    layer_state_bytes,
    layout_name,
    parts,
    stage_sizes,
    state_bytes_per_request,
    tp_problem,
)
from tests.model import configs as c


@pytest.mark.parametrize(
    ("config", "dtype", "split", "expected"),
    [
        (c.LLAMA_3_8B, "auto", {}, 131_072),
        (c.LLAMA_2_7B, "auto", {}, 524_288),
        (c.QWEN3_4B, "auto", {}, 147_456),
        (c.LLAMA_3_70B, "fp8", {}, 163_840),
        (c.QWEN3_235B, "auto", {"tp": 4}, 48_128),
        (c.MINIMAX_M2, "auto", {"tp": 2}, 126_976),
        (c.KIMI_K25, "fp8", {"tp": 8}, 35_136),
        (c.DEEPSEEK_R1, "auto", {}, 70_272),
        (c.DEEPSEEK_R1, "auto", {"tp": 8}, 70_272),
        (c.DEEPSEEK_V32, "fp8_ds_mla", {}, 61 * (656 + 132)),
        (c.GLM_5, "fp8", {}, 78 * 576 + 21 * 132),
        (c.GPT_OSS_120B, "auto", {}, 36_864),
        (c.GPT_OSS_20B, "auto", {}, 24_576),
        (c.GEMMA_3_27B, "auto", {}, 81_920),
        (c.GEMMA_4_26B, "fp8", {}, 10_240),
        (c.GEMMA_4_12B, "q8_0", {}, 8_704),
        (c.GEMMA_4_E4B, "auto", {}, 16_384),
        (c.LAGUNA, "q4_0", {}, 13_824),
        (c.GLM_4_32B, "q8_0", {}, 33_184),
        (c.LLAMA_4_SCOUT, "auto", {}, 49_152),
        (c.QWEN35_35B, "fp8", {}, 10_240),
        (c.QWEN35_35B, "fp8", {"tp": 2}, 5_120),
        (c.QWEN35_35B, "fp8", {"tp": 4}, 5_120),
        (c.QWEN35_35B, "fp8", {"tp": 8}, 5_120),
        (c.QWEN35_2B, "auto", {}, 12_288),
        (c.NEMOTRON_NANO_9B, "auto", {}, 16_384),
        (c.WHISPER_LARGE_V3, "auto", {}, 163_840),
        (c.LLAMA_3_8B, "auto", {"draft_layers": 1}, 135_168),
        (c.LLAMA_3_8B, "nvfp4", {}, 36_864),
        (c.LLAMA_3_8B, "int8_per_token_head", {}, 32 * 8 * 264),
        (c.LLAMA_3_8B, "fp32", {}, 262_144),
    ],
)
def test_bytes_of_a_token(config: dict, dtype: str, split: dict, expected: int) -> None:
    assert c.per_token(config, dtype, **split) == expected


def test_mla_without_its_cache_keeps_k_and_v_of_different_width() -> None:
    spec = c.read(c.CODER_V2_LITE)
    plain = [layer.mixers[0].plain for layer in spec.layers]  # type: ignore[union-attr]
    assert sum(a.kv_heads * (a.k_dim + a.v_dim) * 2 for a in plain) == 276_480


def test_window_layers_stop_growing() -> None:
    # gpt-oss-120b at 65,536 tokens: 18 full layers are 2304 MiB, 18 sliding ones hold 128 tokens each.
    kinds = c.parts_of(c.GPT_OSS_120B)
    assert kinds["full"].bytes_at(65_536) == 2304 * c.MIB
    assert kinds["sliding"].bytes_at(65_536) == 18 * 2048 * 128
    assert kinds["sliding"].layers == 18
    assert kinds["sliding"].bytes_at(100) == 18 * 2048 * 100


def test_llama4_local_layers_are_bounded_by_the_chunk() -> None:
    local = c.parts_of(c.LLAMA_4_SCOUT)["chunked"]
    assert local.layers == 36
    assert local.window_tokens == 8192
    # vLLM reserves chunk + max_num_batched_tokens of them: 2.25 GiB a request.
    assert local.bytes_per_token is not None
    assert local.bytes_per_token * (8192 + 8192) == Fraction(9, 4) * c.GIB


def test_gated_delta_net_state() -> None:
    spec = c.read(c.QWEN35_35B)
    linear = spec.layers[0]
    assert layer_state_bytes(linear, tp=1, model_dtype="bfloat16") == 2_146_304
    k, v = c.formats(spec, "fp8")
    assert state_bytes_per_request(parts(spec, k, v, tp=1)) == 30 * 2_146_304
    # llama.cpp keeps both in f32: 9 MiB of conv and 192 MiB of state for four slots of the 9B.
    nine = c.read(c.QWEN35_9B)
    states = [layer for layer in nine.layers if layer_state_bytes(layer, tp=1, model_dtype="float16")]
    both = [
        layer_state_bytes(layer, tp=1, model_dtype="float32", ssm_dtype="float32", conv_dtype="float32")
        for layer in states
    ]
    assert 4 * sum(both) == (9 + 192) * c.MIB


@pytest.mark.parametrize(("config", "state"), [(c.QWEN35_2B, 1_085_440), (c.QWEN35_27B, 3_207_168)])
def test_gated_delta_net_state_of_other_sizes(config: dict, state: int) -> None:
    assert layer_state_bytes(c.read(config).layers[0], tp=1, model_dtype="bfloat16") == state


def test_speculation_adds_conv_rows() -> None:
    layer = c.read(c.QWEN35_35B).layers[0]
    plain = layer_state_bytes(layer, tp=1, model_dtype="bfloat16")
    assert layer_state_bytes(layer, tp=1, model_dtype="bfloat16", n_spec=2) - plain == 2 * 8192 * 2


def test_mamba2_state() -> None:
    kinds = c.read(c.NEMOTRON_NANO_9B)
    mamba = [layer for layer in kinds.layers if layer_state_bytes(layer, tp=1, model_dtype="bfloat16")]
    assert len(mamba) == 27
    assert layer_state_bytes(mamba[0], tp=1, model_dtype="bfloat16") == 5 * c.MIB + 73_728
    slots = 49
    ssm = slots * sum(layer_state_bytes(m, tp=1, model_dtype="bfloat16") - 73_728 for m in mamba)
    assert round(ssm / c.GIB, 2) == 6.46
    assert round(slots * 27 * 73_728 / c.GIB, 2) == 0.09


def test_cross_attention_is_fixed() -> None:
    kinds = c.parts_of(c.WHISPER_LARGE_V3)
    assert kinds["full"].bytes_at(448) == 70 * c.MIB
    assert kinds["cross"].bytes == 1500 * 163_840
    assert kinds["cross"].bytes // c.MIB == 234


def test_shared_layers_own_nothing() -> None:
    spec = c.read(c.GEMMA_4_E4B)
    assert len(spec.owning()) == 24
    kinds = c.parts_of(c.GEMMA_4_E4B)
    assert (kinds["full"].layers, kinds["sliding"].layers) == (4, 20)
    assert kinds["sliding"].bytes_per_token == 20 * 2048
    # A layer shares with the last owner of its own kind.
    for layer in spec.layers[24:]:
        assert layer.shares_with == (23 if layer.index % 6 == 5 else 22)


@pytest.mark.parametrize(
    ("kv_heads", "tp", "kept"), [(8, 1, 8), (8, 2, 4), (8, 8, 1), (2, 4, 1), (2, 8, 1), (1, 2, 1)]
)
def test_heads_are_repeated_past_their_number(kv_heads: int, tp: int, kept: int) -> None:
    assert heads_per_rank(kv_heads, tp) == kept


def test_uneven_split_is_named() -> None:
    ten = c.read(c.decoder("llama", 2, 640, 10, num_key_value_heads=10))
    assert tp_problem(ten, 5) is None
    assert "10 KV heads" in (tp_problem(ten, 4) or "")
    assert tp_problem(c.read(c.DEEPSEEK_R1), 8) is None
    assert "state heads" in (tp_problem(c.read(c.QWEN35_27B), 32) or "")


def test_mamba_groups_are_repeated_past_their_number() -> None:
    config = c.decoder(
        "granitemoehybrid",
        2,
        2048,
        16,
        num_key_value_heads=4,
        layer_types=["mamba", "attention"],
        mamba_n_heads=64,
        mamba_d_head=64,
        mamba_n_groups=1,
        mamba_d_state=128,
        mamba_d_conv=4,
    )
    spec = c.read(config)
    one = layer_state_bytes(spec.layers[0], tp=1, model_dtype="bfloat16")
    two = layer_state_bytes(spec.layers[0], tp=2, model_dtype="bfloat16")
    # B and C of the only group stand on both ranks: 2 x 128 x 3 rows x 2 bytes are not halved.
    assert two - one / 2 == 2 * 128 * 3 * 2 / 2


def test_pipeline_stages() -> None:
    assert stage_sizes(61, 2) == (31, 30)
    assert stage_sizes(62, 4) == (15, 16, 16, 15)
    assert stage_sizes(32, 1) == (32,)
    with pytest.raises(UsageError):
        stage_sizes(4, 5)
    assert c.per_token(c.LLAMA_3_8B, pp=2, stage=0) == 65_536
    assert c.per_token(c.LLAMA_3_8B, pp=2, stage=1, draft_layers=1) == 65_536 + 4096
    assert c.per_token(c.LLAMA_3_8B, pp=2, stage=0, draft_layers=1) == 65_536


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (c.LLAMA_3_8B, "full"),
        (c.DEEPSEEK_R1, "mla"),
        (c.DEEPSEEK_V32, "mla_indexer"),
        (c.decoder("mistral", 32, 4096, 32, num_key_value_heads=8, sliding_window=4096), "sliding"),
        (c.GEMMA_3_27B, "full_sliding"),
        (c.LLAMA_4_SCOUT, "chunked"),
        (c.QWEN35_35B, "linear_full"),
        (c.NEMOTRON_NANO_9B, "mamba_full"),
        (c.GEMMA_4_E4B, "shared"),
        (c.WHISPER_LARGE_V3, "cross"),
    ],
)
def test_layout_names(config: dict, name: str) -> None:
    assert layout_name(c.read(config)) == name


def test_mission_arithmetic() -> None:
    assert c.sequence_bytes(c.LLAMA_3_8B, 1) == 128 * c.KIB
    assert c.sequence_bytes(c.LLAMA_3_8B, 8192) == c.GIB
    assert 16 * c.sequence_bytes(c.LLAMA_3_8B, 8192) == 16 * c.GIB
    for sequences, tokens, gib in [(1, 4, 0.5), (8, 4, 4), (32, 4, 16), (8, 16, 16), (32, 16, 64)]:
        assert sequences * c.sequence_bytes(c.LLAMA_3_8B, tokens * 1024) == gib * c.GIB
    assert c.sequence_bytes(c.LLAMA_3_8B, 128 * 1024) == 16 * c.GIB
    assert 56 * c.GIB // c.sequence_bytes(c.LLAMA_3_8B, 1) == 458_752
    # 32 query heads in place of 8 KV heads: a fourfold error.
    assert c.sequence_bytes(c.LLAMA_2_7B, 1) == 4 * c.sequence_bytes(c.LLAMA_3_8B, 1)
    # 70B, 8K x 8 sequences: 21.5 GB, not "around 80 GB"; 32K x 10 users: 100 GiB.
    assert round(8 * c.sequence_bytes(c.LLAMA_3_70B, 8192) / 1e9, 1) == 21.5
    assert 10 * c.sequence_bytes(c.LLAMA_3_70B, 32_768) == 100 * c.GIB


def test_sum_of_parts_is_the_whole() -> None:
    spec = c.read(c.GEMMA_3_27B)
    k, v = c.formats(spec)
    found = parts(spec, k, v, tp=1)
    assert sum(part.bytes_at(5000) for part in found) == c.sequence_bytes(c.GEMMA_3_27B, 5000)
    assert growing_bytes_per_token(found) == 81_920


def test_affine_layout_has_no_constant_per_token() -> None:
    config = c.decoder(
        "deepseek_v4",
        43,
        4096,
        64,
        num_key_value_heads=1,
        head_dim=512,
        sliding_window=128,
        compress_ratios=[0, 0] + [4, 128] * 20 + [4, 0],
    )
    spec = c.read(config)
    assert layout_name(spec) == "affine"
    assert not spec.verified
    # 21 layers keep (512 + 128) / 4 elements a token, 20 keep 512 / 128: two bytes each.
    assert c.per_token(config) == 2 * (21 * 160 + 20 * 4)
    assert c.sequence_bytes(config, 0) > 43 * 128 * 512 * 2
