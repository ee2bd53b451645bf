"""Configurations as published, cut to the keys that the count depends on, with published totals.

Totals are those of the checkpoints' own headers (tensors of the language model, without draft layers).
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def decoder(
    kind: str, layers: int, hidden: int, query: int, kv: int, inner: int, words: int, **k: Any
) -> Config:
    return dict(
        model_type=kind,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=query,
        num_key_value_heads=kv,
        intermediate_size=inner,
        vocab_size=words,
        torch_dtype="bfloat16",
        **k,
    )


MLA: Config = {
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
PUBLISHED: dict[str, tuple[Config, int]] = {
    "Llama-3.1-8B": (decoder("llama", 32, 4096, 32, 8, 14336, 128256), 8030261248),
    "Llama-3.1-70B": (decoder("llama", 80, 8192, 64, 8, 28672, 128256), 70553706496),
    "Llama-3.1-405B": (decoder("llama", 126, 16384, 128, 8, 53248, 128256), 405853388800),
    "Llama-3.2-1B": (decoder("llama", 16, 2048, 32, 8, 8192, 128256, tie_word_embeddings=True), 1235814400),
    "Mistral-7B": (decoder("mistral", 32, 4096, 32, 8, 14336, 32000), 7241732096),
    "Qwen2.5-0.5B": (decoder("qwen2", 24, 896, 14, 2, 4864, 151936, tie_word_embeddings=True), 494032768),
    "Qwen2.5-7B": (decoder("qwen2", 28, 3584, 28, 4, 18944, 152064), 7615616512),
    "Qwen3-8B": (decoder("qwen3", 36, 4096, 32, 8, 12288, 151936, head_dim=128), 8190735360),
    "Qwen3-30B-A3B": (
        decoder(
            "qwen3_moe",
            48,
            2048,
            32,
            4,
            6144,
            151936,
            head_dim=128,
            num_experts=128,
            moe_intermediate_size=768,
            mlp_only_layers=[],
        ),
        30532122624,
    ),
    "Mixtral": (decoder("mixtral", 32, 4096, 32, 8, 14336, 32000, num_local_experts=8), 46702792704),
    "gemma-2-9b": (decoder("gemma2", 42, 3584, 16, 8, 14336, 256000, head_dim=256), 9241705984),
    "gemma-2-27b": (decoder("gemma2", 46, 4608, 32, 16, 36864, 256000, head_dim=128), 27227128320),
    "Phi-3-mini": (decoder("phi3", 32, 3072, 32, 32, 8192, 32064), 3821079552),
    "OLMoE": (decoder("olmoe", 16, 2048, 16, 16, 1024, 50304, num_experts=64), 6919161856),
    "internlm2-7b": (decoder("internlm2", 32, 4096, 32, 8, 14336, 92544, bias=False), 7737708544),
    "gpt-oss-20b": (
        decoder("gpt_oss", 24, 2880, 64, 8, 2880, 201088, head_dim=64, num_local_experts=32),
        20914757184,
    ),
    "DeepSeek-V3": (
        decoder(
            "deepseek_v3",
            61,
            7168,
            128,
            128,
            18432,
            129280,
            n_routed_experts=256,
            n_shared_experts=1,
            moe_intermediate_size=2048,
            first_k_dense_replace=3,
            moe_layer_freq=1,
            **MLA,
        ),
        671026419200,
    ),
    "Kimi-K2": (
        decoder(
            "kimi_k2",
            61,
            7168,
            64,
            64,
            18432,
            163840,
            n_routed_experts=384,
            n_shared_experts=1,
            moe_intermediate_size=2048,
            first_k_dense_replace=1,
            moe_layer_freq=1,
            **MLA,
        ),
        1026408232448,
    ),
    "gpt2": (
        {
            "model_type": "gpt2",
            "n_layer": 12,
            "n_embd": 768,
            "n_head": 12,
            "n_positions": 1024,
            "n_ctx": 1024,
            "vocab_size": 50257,
        },
        124439808,
    ),
    "mamba-130m": (
        {
            "model_type": "mamba",
            "num_hidden_layers": 24,
            "hidden_size": 768,
            "intermediate_size": 1536,
            "state_size": 16,
            "conv_kernel": 4,
            "time_step_rank": 48,
            "vocab_size": 50280,
        },
        129135360,
    ),
    "opt-6.7b": (
        {
            "model_type": "opt",
            "num_hidden_layers": 32,
            "hidden_size": 4096,
            "num_attention_heads": 32,
            "ffn_dim": 16384,
            "vocab_size": 50272,
            "max_position_embeddings": 2048,
            "word_embed_proj_dim": 4096,
        },
        6658473984,
    ),
    "Qwen3-Next": (
        decoder(
            "qwen3_next",
            48,
            2048,
            16,
            2,
            5120,
            151936,
            head_dim=256,
            num_experts=512,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
            linear_num_key_heads=16,
            linear_num_value_heads=32,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            linear_conv_kernel_dim=4,
            full_attention_interval=4,
        ),
        79674391296,
    ),
    "Nemotron-Nano-9B-v2": (
        decoder(
            "nemotron_h",
            56,
            4480,
            40,
            8,
            15680,
            131072,
            head_dim=128,
            hybrid_override_pattern="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
            mamba_num_heads=128,
            mamba_head_dim=80,
            ssm_state_size=128,
            n_groups=8,
            conv_kernel=4,
        ),
        8888227328,
    ),
}
