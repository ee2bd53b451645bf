"""Configurations that the planner's tests share: published geometry, nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvprobe.model.read import model_from_config
from kvprobe.model.spec import ModelSpec

Config = dict[str, Any]


def llama(layers: int, heads: int, kv_heads: int | None, hidden: int, context: int = 8192) -> Config:
    config: Config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "hidden_size": hidden,
        "vocab_size": 32000,
        "max_position_embeddings": context,
        "torch_dtype": "bfloat16",
    }
    return config if kv_heads is None else {**config, "num_key_value_heads": kv_heads}


LLAMA_8B = llama(32, 32, 8, 4096)
LLAMA_70B = llama(80, 64, 8, 8192, 131072)
MHA_7B = llama(32, 32, 32, 4096, 4096)
QWEN25_7B: Config = {
    **llama(28, 28, 4, 3584, 32768),
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
}
QWEN35_35B: Config = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"],
    "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text",
        "num_hidden_layers": 40,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_value_heads": 32,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10,
        "max_position_embeddings": 262144,
        "dtype": "bfloat16",
        "vocab_size": 248320,
    },
}
GPT_OSS_20B: Config = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "hidden_size": 2880,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "vocab_size": 201088,
    "quantization_config": {"quant_method": "mxfp4"},
}
DEEPSEEK_V3: Config = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "hidden_size": 7168,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "torch_dtype": "bfloat16",
    "vocab_size": 129280,
}


def spec(config: Config, name: str = "model") -> ModelSpec:
    return model_from_config(config, name=name, source="tests/plan/configs.py")


def write(folder: Path, config: Config = LLAMA_8B) -> Path:
    """A config.json in `folder`, as a user has it."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path
