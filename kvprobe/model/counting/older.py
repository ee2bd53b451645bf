"""Recipes of GPT-2 and its time: biases everywhere, norms with bias, an MLP of two matrices."""

from __future__ import annotations

from dataclasses import replace

from kvprobe.model.counting.keys import Flag
from kvprobe.model.counting.recipe import Recipe

_GPT = Recipe(
    tied=True,
    qkv_bias=True,
    o_bias=True,
    norm_parts=2,
    gated=False,
    mlp_bias=True,
    width=("n_inner",),
    width_or_four=True,
)
_GPTJ = replace(_GPT, tied=False, qkv_bias=False, o_bias=False, norms=1, head_bias=True)
_FALCON = Recipe(
    tied=True,
    norm_parts=2,
    gated=False,
    qkv_bias=Flag("bias", False),
    o_bias=Flag("bias", False),
    mlp_bias=Flag("bias", False),
    width=("ffn_hidden_size",),
    width_or_four=True,
)

OLDER: tuple[tuple[str, Recipe], ...] = (
    ("gpt2", replace(_GPT, positions="n_positions", refused=(("add_cross_attention", False),))),
    ("gpt_bigcode", replace(_GPT, positions="n_positions", refused=(("add_cross_attention", False),))),
    ("bloom", replace(_GPT, embedding_norm=True)),
    ("gptj codegen", _GPTJ),
    (
        "gpt_neox",
        replace(
            _GPT,
            tied=False,
            qkv_bias=Flag("attention_bias", True),
            o_bias=Flag("attention_bias", True),
            width=("intermediate_size",),
            width_or_four=False,
        ),
    ),
    (
        "opt",
        replace(
            _GPT,
            width=("ffn_dim",),
            width_or_four=False,
            positions="max_position_embeddings",
            position_rows=2,
            refused=(
                ("enable_bias", True),
                ("layer_norm_elementwise_affine", True),
                ("do_layer_norm_before", True),
                ("_remove_final_layer_norm", False),
            ),
        ),
    ),
    ("falcon", _FALCON),
    (
        "phi",
        replace(
            _GPT,
            tied=False,
            norms=1,
            width=("intermediate_size", "n_inner"),
            head_bias=True,
            refused=(("qk_layernorm", False),),
        ),
    ),
)
