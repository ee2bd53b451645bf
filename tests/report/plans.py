"""A plan as `kvprobe plan --json` prints it."""

from __future__ import annotations

from typing import Any

from kvprobe.plan.api import plan

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "head_dim": 128,
    "torch_dtype": "bfloat16",
    "max_position_embeddings": 32768,
    "vocab_size": 128256,
    "intermediate_size": 14336,
    "_name_or_path": "a-model",
}


def a_plan(**settings: Any) -> dict[str, Any]:
    """Llama-3-8B's shape on an H100 under vLLM, with a length distribution and a price."""
    given = {
        "gpu": "H100",
        "engine": "vllm",
        "lengths": "p50=1000,p95=8000,max=32000",
        "price_per_hour": "2.5",
        "output_tokens_per_s": "1500",
    }
    found = plan(CONFIG, **{**given, **settings})
    found["model"]["name"] = "a-model"
    return found
