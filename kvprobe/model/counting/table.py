"""The families whose parameters are counted. A model_type that is not here has no count: nothing is guessed.

Each row was held against the family's own modelling code (transformers 5.24, small models on the meta device;
`tests/model/fixtures/parameter_counts.jsonl`), and many against published totals. Class defaults of the
switches are those of the same release.
"""

from __future__ import annotations

from dataclasses import replace

from kvprobe.model.counting.experts import after_first, by_step, ernie, everywhere, interleaved, periodic
from kvprobe.model.counting.keys import Flag
from kvprobe.model.counting.older import OLDER
from kvprobe.model.counting.recipe import Experts, Recipe

_BIAS, _MLP_BIAS = Flag("attention_bias", False), Flag("mlp_bias", False)
_NO_BIAS = (("attention_bias", False),)
_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")

LLAMA = Recipe(qkv_bias=_BIAS, o_bias=_BIAS, mlp_bias=_MLP_BIAS)
PLAIN = Recipe(refused=_NO_BIAS)
_QWEN3 = Recipe(qkv_bias=_BIAS, o_bias=_BIAS, qk_norm="head")
_QWEN2 = Recipe(qkv_bias=True)
_GEMMA = Recipe(tied=True, qkv_bias=_BIAS, o_bias=_BIAS)
_COHERE = Recipe(tied=True, norms=1, qkv_bias=_BIAS, o_bias=_BIAS)
_OLMO2 = Recipe(qkv_bias=_BIAS, o_bias=_BIAS, qk_norm="full")
_GLM4 = Recipe(qkv_bias=Flag("attention_bias", True), norms=4)
_DEEPSEEK = Experts(
    layers=after_first("first_k_dense_replace"),
    count=_EXPERTS,
    shared_count="n_shared_experts",
    score_bias=True,
)
_DEEPSEEK_V3 = Recipe(qkv_bias=_BIAS, o_bias=_BIAS, experts=_DEEPSEEK)
_QWEN_MOE = Experts(layers=by_step, count=("num_experts", "num_local_experts"))
_QWEN2_MOE = replace(_QWEN_MOE, shared="shared_expert_intermediate_size", shared_gate=True)
_WIDE = Experts(layers=everywhere, count=("num_local_experts", "num_experts"), width=("intermediate_size",))
_GRANITE_SHARED = replace(_WIDE, shared="shared_intermediate_size")
_QWEN3_NEXT = replace(_QWEN3, query_factor=2)
_STARCODER2 = Recipe(
    tied=True,
    qkv_bias=Flag("use_bias", True),
    o_bias=Flag("use_bias", True),
    mlp_bias=Flag("use_bias", True),
    norm_parts=2,
    gated=False,
)
_ERNIE = Recipe(
    tied=True,
    qkv_bias=Flag("use_bias", False),
    o_bias=Flag("use_bias", False),
    mlp_bias=Flag("use_bias", False),
)
_FALCON_H1 = replace(
    LLAMA,
    state_norm=Flag("mamba_rms_norm", False),
    refused=(("projectors_bias", False), ("mamba_proj_bias", False)),
)

_ROWS: tuple[tuple[str, Recipe], ...] = (
    ("llama exaone granite", LLAMA),
    ("arcee", replace(LLAMA, gated=False)),
    ("mistral ministral ministral3 phi3", PLAIN),
    ("cwm", replace(PLAIN, mlp_bias=_MLP_BIAS)),
    ("internlm2", Recipe(refused=(("bias", False),))),
    ("smollm3", replace(LLAMA, tied=True)),
    (
        "seed_oss",
        replace(LLAMA, qkv_bias=Flag("attention_bias", True), o_bias=Flag("attention_out_bias", False)),
    ),
    ("olmo", Recipe(qkv_bias=_BIAS, o_bias=_BIAS, norm_parts=0)),
    ("olmo2 olmo3", _OLMO2),
    ("olmoe", replace(_OLMO2, experts=replace(_WIDE, count=("num_experts",)))),
    ("flex_olmo", replace(_OLMO2, experts=replace(_WIDE, count=("num_experts",)))),
    ("apertus", replace(_QWEN3, gated=False, layer_scalars=4)),
    ("hunyuan_v1_dense", replace(_QWEN3, qk_norm_when=Flag("use_qk_norm", True))),
    ("nemotron", replace(LLAMA, gated=False, norm_parts=2)),
    (
        "jais2",
        replace(
            LLAMA,
            gated=False,
            norm_parts=2,
            qkv_bias=Flag("attention_bias", True),
            o_bias=Flag("attention_bias", True),
            mlp_bias=Flag("mlp_bias", True),
        ),
    ),
    (
        "stablelm",
        Recipe(qkv_bias=Flag("use_qkv_bias", False), norm_parts=2, refused=(("qk_layernorm", False),)),
    ),
    ("starcoder2", _STARCODER2),
    ("ernie4_5", _ERNIE),
    (
        "ernie4_5_moe",
        replace(
            _ERNIE,
            head_bias=Flag("use_bias", False),
            experts=Experts(
                layers=ernie,
                count=("moe_num_experts", "num_experts"),
                shared_count="moe_num_shared_experts",
                score_bias=True,
            ),
        ),
    ),
    # Qwen.
    ("qwen2 qwen2_vl_text qwen2_5_vl_text", _QWEN2),
    ("qwen2_vl qwen2_5_vl qwen2_audio_text", _QWEN2),
    ("qwen2_moe", replace(_QWEN2, qkv_bias=Flag("qkv_bias", True), experts=_QWEN2_MOE)),
    ("qwen3 qwen3_vl_text", _QWEN3),
    ("qwen3_moe qwen3_vl_moe_text", replace(_QWEN3, experts=_QWEN_MOE)),
    ("qwen3_next", replace(_QWEN3_NEXT, experts=_QWEN2_MOE)),
    ("qwen3_5_text", _QWEN3_NEXT),
    ("qwen3_5_moe_text", replace(_QWEN3_NEXT, experts=replace(_QWEN2_MOE, layers=everywhere))),
    # Gemma, Cohere.
    ("gemma vaultgemma", _GEMMA),
    ("gemma2", replace(_GEMMA, norms=4)),
    ("gemma3_text", replace(_GEMMA, norms=4, qk_norm="head")),
    ("cohere", replace(_COHERE, qk_norm="full", qk_norm_when=Flag("use_qk_norm", False))),
    ("cohere2", _COHERE),
    # GLM.
    ("glm", replace(_GLM4, norms=2)),
    ("glm4", _GLM4),
    (
        "glm4_moe",
        Recipe(qkv_bias=_BIAS, qk_norm="head", qk_norm_when=Flag("use_qk_norm", False), experts=_DEEPSEEK),
    ),
    ("glm4_moe_lite", _DEEPSEEK_V3),
    # Mixtures of experts.
    ("mixtral", Recipe(experts=_WIDE, refused=_NO_BIAS)),
    (
        "phimoe",
        Recipe(
            qkv_bias=_BIAS, o_bias=_BIAS, norm_parts=2, head_bias=Flag("lm_head_bias", False), experts=_WIDE
        ),
    ),
    ("granitemoe", Recipe(qkv_bias=_BIAS, o_bias=_BIAS, experts=_WIDE)),
    ("granitemoeshared", Recipe(qkv_bias=_BIAS, o_bias=_BIAS, experts=_GRANITE_SHARED)),
    (
        "minimax_m2",
        replace(
            PLAIN, qk_norm="full", experts=replace(_WIDE, score_bias=True), refused=(("use_qk_norm", True),)
        ),
    ),
    (
        "hunyuan_v1_moe",
        replace(
            _QWEN3,
            qk_norm_when=Flag("use_qk_norm", True),
            experts=replace(_WIDE, count=("num_experts",), shared_always=True),
        ),
    ),
    (
        "gpt_oss",
        Recipe(
            qkv_bias=Flag("attention_bias", True),
            o_bias=Flag("attention_bias", True),
            sinks=True,
            experts=replace(_WIDE, biased=True),
        ),
    ),
    ("dots1", replace(_QWEN3, experts=_DEEPSEEK)),
    ("exaone4", Recipe(qk_norm="head", refused=_NO_BIAS)),
    (
        "exaone_moe",
        Recipe(
            qk_norm="head",
            refused=_NO_BIAS,
            experts=replace(
                _DEEPSEEK, count=("num_experts", "n_routed_experts"), shared_count="num_shared_experts"
            ),
        ),
    ),
    (
        "solar_open",
        Recipe(experts=replace(_DEEPSEEK, layers=everywhere), refused=(*_NO_BIAS, ("use_qk_norm", False))),
    ),
    (
        "hy_v3",
        Recipe(
            qk_norm="head",
            qkv_bias=_BIAS,
            o_bias=_BIAS,
            mlp_bias=_MLP_BIAS,
            experts=Experts(
                layers=after_first("first_k_dense_replace", default=1),
                count=("num_experts", "num_local_experts"),
                shared_count="num_shared_experts",
                score_bias=True,
            ),
        ),
    ),
    (
        "afmoe",
        Recipe(
            qk_norm="head",
            query_factor=2,
            norms=4,
            refused=_NO_BIAS,
            experts=Experts(
                layers=after_first("num_dense_layers"),
                count=("num_experts",),
                shared_count="num_shared_experts",
                score_bias=True,
            ),
        ),
    ),
    (
        "llama4_text",
        Recipe(
            qkv_bias=_BIAS,
            o_bias=_BIAS,
            width=("intermediate_size_mlp",),
            experts=Experts(
                layers=interleaved,
                count=("num_local_experts",),
                width=("intermediate_size",),
                shared_always=True,
            ),
        ),
    ),
    # Latent attention.
    ("deepseek_v3 kimi_k2 deepseek_v32 glm_moe_dsa", _DEEPSEEK_V3),
    ("deepseek_v2", replace(_DEEPSEEK_V3, experts=replace(_DEEPSEEK, score_bias=False))),
    ("minicpm3", Recipe(tied=True, qkv_bias=_BIAS, o_bias=_BIAS)),
    # Recurrent layers.
    (
        "granitemoehybrid",
        Recipe(
            qkv_bias=_BIAS,
            o_bias=_BIAS,
            width=("shared_intermediate_size",),
            experts=replace(_GRANITE_SHARED, optional=True),
        ),
    ),
    ("bamba", LLAMA),
    (
        "jamba",
        Recipe(
            experts=Experts(layers=periodic, count=("num_experts",), width=("intermediate_size",)),
        ),
    ),
    ("falcon_h1", _FALCON_H1),
    (
        "nemotron_h",
        Recipe(
            qkv_bias=_BIAS,
            o_bias=_BIAS,
            norms=1,
            gated=False,
            mlp_bias=_MLP_BIAS,
            refused=(("moe_latent_size", None), ("use_bias", False), ("mamba_proj_bias", False)),
            experts=Experts(
                layers=everywhere,
                count=("n_routed_experts",),
                shared="moe_shared_expert_intermediate_size",
                score_bias=True,
            ),
        ),
    ),
    ("mamba falcon_mamba", Recipe(tied=True, norms=1)),
)

RECIPES: dict[str, Recipe] = {
    model_type: recipe for model_types, recipe in (*_ROWS, *OLDER) for model_type in model_types.split()
}
