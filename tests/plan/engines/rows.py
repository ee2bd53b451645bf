"""The ground-truth rows as tests use them: the config.json that a user of that model has, and its options."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from kvprobe.model.read import model_from_config
from kvprobe.model.spec import ModelSpec
from kvprobe.plan.engines import pool_for
from kvprobe.plan.pool import ByteRange, EngineOptions, Pool
from kvprobe.plan.sizes import parse_size

CASES = Path(__file__).parent.parent / "cases"
GIB, MIB = 2**30, 2**20
Row = dict[str, Any]


def read_rows(name: str) -> list[Row]:
    return [json.loads(line) for line in (CASES / name).read_text().splitlines() if line]


def capacity_rows() -> dict[str, Row]:
    return {row["id"]: row for row in read_rows("capacity.jsonl")}


def spec_of(config: Row) -> ModelSpec:
    return model_from_config(config, name="row", source="tests/plan/cases")


def pool_of(row: Row, **options: Any) -> Pool:
    """The pool of a row of our own (`more.jsonl`), which carries its config, options and memory."""
    available = parse_size(row["available"], "--available-kv") if row.get("available") else None
    asked = {**row.get("options", {}), **options}
    if "layer_partition" in asked:
        asked["layer_partition"] = tuple(asked["layer_partition"])
    return pool_for(row["engine"], row["version"], spec_of(row["config"]), EngineOptions(**asked), available)


def capacity_pool(row: Row, *, available: ByteRange | None = None, **options: Any) -> Pool:
    """The pool of a row of `capacity.jsonl` with the options that its fields and notes name."""
    if available is None and row["available_kv_gib"] is not None:
        available = parse_size(f"{row['available_kv_gib']:.2f}GiB", "--available-kv")
    dtype = kv_dtypes(row["kv_cache_dtype"])
    asked: Row = {
        "tp": row["tp"],
        "pp": row["pp"],
        "max_model_len": row["max_model_len"] if row["engine"] != "llama.cpp" else None,
        "ctx": row["max_model_len"] if row["engine"] == "llama.cpp" else None,
        "kv_dtype_k": dtype[0],
        "kv_dtype_v": dtype[1],
        "draft_layers": row["extra_config"].get("draft_layers", 0),
        **options,
    }
    if row.get("swap_space_gib"):
        asked["swap_space_bytes"] = row["swap_space_gib"] * GIB
    return pool_for(
        row["engine"], row["engine_version"], spec_of(config_of(row)), EngineOptions(**asked), available
    )


def kv_dtypes(text: str) -> tuple[str, str]:
    """`K q8_0 V q8_0`, `auto(bf16)`, `fp8 (656 B/layer ...)` as options."""
    both = re.match(r"K (\w+) V (\w+)", text)
    if both:
        return both[1], both[2]
    name = re.match(r"\w+", text)
    assert name
    return name[0], name[0]


def config_of(row: Row) -> Row:
    """The config.json of the row's model, built from the row's geometry."""
    extra = row["extra_config"]
    config: Row = {
        "architectures": [_ARCHITECTURES[_model_type(row)]],
        "model_type": _model_type(row),
        "num_hidden_layers": row["num_hidden_layers"],
        "num_attention_heads": row["num_attention_heads"] or 32,
        "num_key_value_heads": row["num_key_value_heads"],
        "hidden_size": row["hidden_size"] or 4096,
        "max_position_embeddings": max(row["max_model_len"] or 0, 131072),
        "vocab_size": 32000,
        "torch_dtype": row["torch_dtype"] or "bfloat16",
    }
    if row["head_dim"]:
        config["head_dim"] = row["head_dim"]
    if row["sliding_window"]:
        config["sliding_window"] = row["sliding_window"]
    if row["kv_lora_rank"]:
        config |= {"kv_lora_rank": row["kv_lora_rank"], "qk_rope_head_dim": row["qk_rope_head_dim"]}
        config |= {"qk_nope_head_dim": 128, "v_head_dim": 128, "q_lora_rank": None, "n_routed_experts": 64}
    config |= {key: value for key, value in extra.items() if key in _PUBLISHED}
    types = _layer_types(row)
    if types:
        config["layer_types"] = types
    if _model_type(row) == "qwen3_5_text":
        published = {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4}
        config = {"mamba_ssm_dtype": "float32", **published, **config}
    if _model_type(row) == "nemotron_h":
        config["hybrid_override_pattern"] = _NEMOTRON_NANO_9B_V2
    if _model_type(row).startswith("gemma4"):
        config |= {"global_head_dim": 512, "attention_k_eq_v": "num_global_key_value_heads" in extra}
    return config


_PUBLISHED = (
    "linear_num_value_heads",
    "linear_num_key_heads",
    "linear_key_head_dim",
    "linear_value_head_dim",
    "linear_conv_kernel_dim",
    "mamba_ssm_dtype",
    "num_global_key_value_heads",
    "global_head_dim",
    "attention_k_eq_v",
    "num_kv_shared_layers",
    "index_head_dim",
    "index_n_heads",
    "mamba_num_heads",
    "mamba_head_dim",
    "ssm_state_size",
    "n_groups",
    "conv_kernel",
)

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "minimax_m2": "MiniMaxM2ForCausalLM",
    "qwen3_5_text": "Qwen3_5ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "laguna": "LagunaForCausalLM",
    "deepseek_v2": "DeepseekV2ForCausalLM",
    "deepseek_v32": "DeepseekV32ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
}
_NEMOTRON_NANO_9B_V2 = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"

_TYPES = (
    ("gemma-3", "gemma3_text"),
    ("gemma-4", "gemma4_text"),
    ("gpt-oss", "gpt_oss"),
    ("GLM-4", "glm4"),
    ("Laguna", "laguna"),
    ("V2-Lite", "deepseek_v2"),
    ("V3.2", "deepseek_v32"),
    ("Kimi", "kimi_k2"),
    ("Nemotron", "nemotron_h"),
    ("MiniMax", "minimax_m2"),
    ("Qwen3.5", "qwen3_5_text"),
    ("Qwen3-Coder", "qwen3_moe"),
    ("Qwen3-235B", "qwen3_moe"),
    ("Qwen3", "qwen3"),
    ("Qwen1.5", "qwen2"),
    ("Llama", "llama"),
)


def _model_type(row: Row) -> str:
    return next(kind for word, kind in _TYPES if word in row["model"])


def _layer_types(row: Row) -> list[str] | None:
    """Layers by kind, in the published order (the last of each period is the full one)."""
    count, extra = row["num_hidden_layers"], row["extra_config"]
    kind = _model_type(row)
    if kind == "qwen3_5_text":
        return ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(count)]
    if kind == "gpt_oss":
        return ["full_attention" if i % 2 else "sliding_attention" for i in range(count)]
    if kind in ("gemma3_text", "gemma4_text"):
        types = ["full_attention" if i % 6 == 5 else "sliding_attention" for i in range(count)]
        full = extra.get("full_layers", types.count("full_attention"))
        assert types.count("full_attention") in (full, full - 1, full + 1)
        return types
    if kind == "laguna":
        return ["full_attention" if i % 4 == 3 else "sliding_attention" for i in range(count)]
    return None
