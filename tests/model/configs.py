"""Published configurations, cut to the keys that the cache depends on, and small helpers.

The geometry is the one that the named models were published with (config.json of the model, or the class
defaults of transformers where the published file leaves a key to them).
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from kvprobe.errors import UsageError
from kvprobe.model.dtypes import KVDtype, kv_dtype
from kvprobe.model.layouts import Part, bytes_at, parts
from kvprobe.model.read import model_from_config
from kvprobe.model.spec import ModelSpec

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10


def decoder(model_type: str, layers: int, hidden: int, heads: int, **keys: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "torch_dtype": "bfloat16",
        **keys,
    }


MLA: dict[str, Any] = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}

LLAMA_3_8B = decoder("llama", 32, 4096, 32, num_key_value_heads=8, max_position_embeddings=8192)
LLAMA_3_70B = decoder("llama", 80, 8192, 64, num_key_value_heads=8)
LLAMA_2_7B = decoder("llama", 32, 4096, 32, num_key_value_heads=32)
QWEN3_4B = decoder("qwen3", 36, 2560, 32, num_key_value_heads=8, head_dim=128)
QWEN3_235B = decoder("qwen3_moe", 94, 4096, 64, num_key_value_heads=4, head_dim=128)
GLM_4_32B = decoder("glm4", 61, 6144, 48, num_key_value_heads=2, head_dim=128)
MINIMAX_M2 = decoder("minimax_m2", 62, 3072, 48, num_key_value_heads=8, head_dim=128)
CODER_V2_LITE = decoder("deepseek_v2", 27, 2048, 16, num_key_value_heads=16, **MLA)
DEEPSEEK_R1 = decoder(
    "deepseek_v3", 61, 7168, 128, num_key_value_heads=128, num_nextn_predict_layers=1, **MLA
)
KIMI_K25 = {
    "model_type": "kimi_k25",
    "text_config": decoder("kimi_k2", 61, 7168, 64, num_key_value_heads=64, **MLA),
}
DEEPSEEK_V32 = decoder("deepseek_v32", 61, 7168, 128, index_head_dim=128, index_n_heads=64, **MLA)
GLM_5 = decoder(
    "glm_moe_dsa",
    78,
    6144,
    64,
    index_head_dim=128,
    indexer_types=["full" if i % 4 == 0 or i == 1 else "shared" for i in range(78)],
    **(MLA | {"qk_nope_head_dim": 192, "v_head_dim": 256}),
)
GPT_OSS_120B = decoder("gpt_oss", 36, 2880, 64, num_key_value_heads=8, head_dim=64, sliding_window=128)
GPT_OSS_20B = GPT_OSS_120B | {"num_hidden_layers": 24}
GEMMA_3_27B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 62,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "sliding_window": 1024,
    },
}
GEMMA_3_4B = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "hidden_size": 2560,
        "sliding_window": 1024,
    },
}
GEMMA_4_26B = decoder(
    "gemma4_text",
    30,
    2816,
    16,
    num_key_value_heads=8,
    head_dim=256,
    global_head_dim=512,
    num_global_key_value_heads=2,
    attention_k_eq_v=True,
    sliding_window=1024,
)
GEMMA_4_12B = GEMMA_4_26B | {"num_hidden_layers": 48, "num_global_key_value_heads": 1}
GEMMA_4_E4B = decoder(
    "gemma4_text",
    42,
    2560,
    8,
    num_key_value_heads=2,
    head_dim=256,
    global_head_dim=512,
    sliding_window=512,
    num_kv_shared_layers=18,
)
LAGUNA = decoder(
    "laguna",
    48,
    2048,
    48,
    num_key_value_heads=8,
    head_dim=128,
    sliding_window=512,
    layer_types=(["full_attention"] + ["sliding_attention"] * 3) * 12,
)
LLAMA_4_SCOUT = {
    "model_type": "llama4",
    "text_config": decoder("llama4_text", 48, 5120, 40, num_key_value_heads=8, head_dim=128)
    | {"attention_chunk_size": 8192},
}
GDN: dict[str, Any] = {
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "mamba_ssm_dtype": "float32",
}
QWEN35_35B = decoder(
    "qwen3_5_moe_text",
    40,
    2048,
    16,
    num_key_value_heads=2,
    head_dim=256,
    linear_num_key_heads=16,
    linear_num_value_heads=32,
    **GDN,
)
QWEN35_9B = QWEN35_35B | {
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 32,
    "num_key_value_heads": 4,
}
QWEN35_2B = QWEN35_35B | {
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "linear_num_value_heads": 16,
}
QWEN35_27B = QWEN35_35B | {
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 64,
    "num_attention_heads": 24,
    "num_key_value_heads": 4,
    "hidden_size": 5120,
    "linear_num_value_heads": 48,
}
NEMOTRON_NANO_9B = decoder(
    "nemotron_h",
    56,
    4480,
    40,
    num_key_value_heads=8,
    head_dim=128,
    hybrid_override_pattern="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
    mamba_num_heads=128,
    mamba_head_dim=80,
    ssm_state_size=128,
    n_groups=8,
    conv_kernel=4,
)
WHISPER_LARGE_V3 = {
    "model_type": "whisper",
    "decoder_layers": 32,
    "decoder_attention_heads": 20,
    "d_model": 1280,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "torch_dtype": "float16",
}


def refusal(call: Callable[[], object]) -> UsageError | None:
    """The refusal that `call` ends in; null when it succeeds. Anything else that it raises is a defect."""
    try:
        call()
    except UsageError as error:
        return error
    return None


def read(config: dict[str, Any]) -> ModelSpec:
    return model_from_config(config, name="model", source="config.json")


def formats(spec: ModelSpec, k: str = "auto", v: str | None = None) -> tuple[KVDtype, KVDtype]:
    return kv_dtype(k, model_dtype=spec.dtype), kv_dtype(v or k, model_dtype=spec.dtype)


def parts_of(config: dict[str, Any], dtype: str = "auto", **split: Any) -> dict[str, Part]:
    """The parts of a model by kind."""
    spec = read(config)
    k, v = formats(spec, dtype)
    return {part.kind: part for part in parts(spec, k, v, **({"tp": 1} | split))}


def per_token(config: dict[str, Any], dtype: str = "auto", **split: Any) -> Fraction:
    """Bytes that one more token adds past every window."""
    spec = read(config)
    k, v = formats(spec, dtype)
    found = parts(spec, k, v, **({"tp": 1} | split))
    return sum((p.bytes_per_token or Fraction(0) for p in found if p.window_tokens is None), Fraction(0))


def sequence_bytes(config: dict[str, Any], tokens: int, dtype: str = "auto", **split: Any) -> int:
    spec = read(config)
    k, v = formats(spec, dtype)
    return bytes_at(spec, tokens, k, v, **split)
