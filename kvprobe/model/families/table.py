"""Every `model_type` that kvprobe reads, by the reader that knows its layout.

`checked` says what the reading was held against; an empty string means nothing yet, and the model is then
marked as not verified:

- `log`: an engine's printed pool or cache sizes for a published model (LAYOUTS, cases);
- `code`: the cache that the family's published modelling code builds (transformers 5.24) for the same
  configuration, tensor by tensor, on three lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvprobe.model.families import (
    compressed,
    cross,
    hybrids,
    latent,
    plain,
    shared,
    states,
    varying,
    windows,
)
from kvprobe.model.families.geometry import Reading
from kvprobe.model.fields import Fields

Reader = Callable[[Fields], Reading]


@dataclass(frozen=True, slots=True)
class Family:
    """How a model_type is read, and what that reading was checked against."""

    name: str
    read: Reader
    checked: str = ""


_LOG, _CODE, _BOTH = "log", "code", "log and code"

_ROWS: tuple[tuple[str, Reader, str, str], ...] = (
    # Full attention, one geometry.
    ("Llama", plain.full, _BOTH, "llama"),
    ("Llama-like", plain.full, _CODE, "arcee apertus bitnet cohere granite granitemoe granitemoeshared"),
    ("Llama-like", plain.full, _CODE, "helium hunyuan_v1_dense hunyuan_v1_moe olmo olmo2 olmoe flex_olmo"),
    ("Llama-like", plain.full, _CODE, "phi stablelm nemotron seed_oss diffllama glm glm4 gemma"),
    ("Llama-like", plain.full, _CODE, "ernie4_5 ernie4_5_moe glm4_moe jais2 exaone nanochat"),
    ("Llama-like", plain.full, _CODE, "internlm3 hyperclovax solar_open hy_v3 aria_text paddleocr_vl_text"),
    ("Llama-like", plain.full, "", "internlm internlm2 baichuan aquila xverse orion minicpm minicpmv qwen"),
    ("Llama-like", plain.full, "", "bailing_moe phi3small"),
    ("MiniMax-M2", plain.full, _BOTH, "minimax_m2"),
    ("Mistral 3", plain.full, _CODE, "ministral3"),
    ("Falcon", plain.falcon, _CODE, "falcon"),
    ("Falcon", plain.falcon, "", "RefinedWeb RefinedWebModel"),
    ("JetMoE", plain.jetmoe, _CODE, "jetmoe"),
    ("StarCoder", plain.gpt_bigcode, _CODE, "gpt_bigcode"),
    ("MPT", plain.nested_attention, _CODE, "mpt"),
    ("DBRX", plain.nested_attention, "", "dbrx"),
    ("ChatGLM", plain.chatglm, "", "chatglm"),
    (
        "multi-head",
        plain.multi_head,
        _CODE,
        "gpt2 gptj gpt_neox opt bloom codegen biogpt xglm ctrl persimmon gpt_neox_japanese",
    ),
    # Windows and chunks.
    ("Mistral", windows.all_sliding(4096), _CODE, "mistral"),
    ("Mixtral", windows.all_sliding(None), _CODE, "mixtral phi3 phimoe phi4_multimodal starcoder2"),
    ("Mixtral", windows.all_sliding(None), "", "phi4mm phi3_v"),
    ("Ministral", windows.all_sliding(4096), _CODE, "ministral"),
    ("Qwen", windows.switched, _BOTH, "qwen2 qwen3 qwen3_moe"),
    ("Qwen", windows.switched, _CODE, "qwen2_moe dots1"),
    ("Qwen-VL", windows.switched, _CODE, "qwen2_vl_text qwen2_5_vl_text qwen3_vl_text qwen3_vl_moe_text"),
    ("Qwen-Omni", windows.switched, _CODE, "qwen2_5_omni_text qwen3_omni_moe_text"),
    (
        "Qwen-VL",
        windows.switched,
        "",
        "qwen2_vl qwen2_5_vl qwen2_audio_text",
    ),
    ("Gemma 2", windows.alternating(2, default_window=4096), _CODE, "gemma2 vaultgemma"),
    ("gpt-oss", windows.alternating(2, default_window=128), _BOTH, "gpt_oss"),
    ("Gemma 3", windows.alternating(6, default_window=4096), _BOTH, "gemma3_text"),
    ("Command R7B/A", windows.alternating(4, default_window=4096), _CODE, "cohere2"),
    ("OLMo 3", windows.alternating(4, default_window=4096), _CODE, "olmo3"),
    ("EXAONE 4", windows.alternating(4, default_window=4096), _CODE, "exaone4 exaone_moe"),
    ("AFM", windows.alternating(4, default_window=1024), _CODE, "afmoe"),
    ("CWM", windows.alternating(4, default_window=8192, offset=0), _CODE, "cwm"),
    ("Laguna", windows.by_layer_types(512), _BOTH, "laguna"),
    ("SmolLM 3", windows.smollm3, _CODE, "smollm3"),
    ("by layer_types", windows.by_layer_types(None), _CODE, "mellum"),
    ("Llama 4", windows.llama4, _CODE, "llama4_text"),
    ("GPT-Neo", windows.gpt_neo, "", "gpt_neo"),
    # Latent attention.
    ("DeepSeek V2/V3", latent.mla_or_sparse, _BOTH, "deepseek_v3 kimi_k2"),
    ("DeepSeek V2/V3", latent.mla_or_heads, _CODE, "deepseek_v2"),
    ("MLA", latent.mla, _CODE, "minicpm3 glm4_moe_lite youtu sarvam_mla"),
    ("MLA", latent.mla_or_heads, "", "deepseek_vl_v2 deepseek_ocr2_text unlimited_ocr_text"),
    ("LongCat", latent.longcat, _CODE, "longcat_flash"),
    ("DeepSeek V3.2", latent.sparse, _BOTH, "deepseek_v32"),
    ("GLM-5", latent.sparse, _BOTH, "glm_moe_dsa"),
    ("DeepSeek V4", compressed.deepseek_v4, "", "deepseek_v4"),
    # Recurrent layers.
    ("Qwen3-Next", hybrids.qwen3_next, _CODE, "qwen3_next olmo_hybrid"),
    ("Qwen3.5", hybrids.qwen3_next, _BOTH, "qwen3_5_text qwen3_5_moe_text"),
    ("Granite 4", hybrids.granite_hybrid, _CODE, "granitemoehybrid"),
    ("Bamba", hybrids.bamba, _CODE, "bamba"),
    ("Jamba", hybrids.jamba, _CODE, "jamba"),
    ("Falcon-H1", hybrids.falcon_h1, _CODE, "falcon_h1"),
    ("Nemotron-H", hybrids.nemotron_h, _BOTH, "nemotron_h"),
    ("Zamba 2", hybrids.zamba2, _CODE, "zamba2"),
    ("MiniMax-01/M1", hybrids.minimax, _CODE, "minimax"),
    ("MiniMax-01/M1", hybrids.minimax, "", "minimax_m1 minimax_text_01 MiniMaxText01 MiniMaxM1"),
    ("Kimi Linear", hybrids.kimi_linear, _CODE, "kimi_linear"),
    ("LFM 2", hybrids.lfm2, _CODE, "lfm2 lfm2_moe"),
    ("RecurrentGemma", hybrids.recurrent_gemma, "", "recurrent_gemma"),
    ("Mamba", states.pure_mamba1, _CODE, "mamba falcon_mamba"),
    ("Mamba 2", states.pure_mamba2, _CODE, "mamba2"),
    ("RWKV 4", states.rwkv4, "", "rwkv"),
    ("RWKV 5-7", states.rwkv_matrix, "", "rwkv5 rwkv6 rwkv7"),
    # Shared, varying and cross attention.
    ("Gemma 3n", shared.gemma3n, _CODE, "gemma3n_text"),
    ("Gemma 4", shared.gemma4, _BOTH, "gemma4_text"),
    ("Gemma 4", shared.gemma4, _CODE, "gemma4_unified_text"),
    ("Hunyuan-Large", shared.hunyuan, "", "hunyuan"),
    ("Phi-4-mini-flash", shared.phi4flash, "", "phi4flash"),
    ("OpenELM", varying.openelm, "", "openelm"),
    ("DeciLM", varying.deci, "", "deci nemotron-nas nemotron_nas decilm"),
    ("MiMo-V2", varying.mimo_v2, _CODE, "mimo_v2_flash"),
    ("Whisper", cross.whisper, _CODE, "whisper"),
    ("BART", cross.bart, _CODE, "bart mbart marian pegasus blenderbot"),
    ("T5", cross.t5, _CODE, "t5"),
    ("Llama 3.2 Vision", cross.mllama, _CODE, "mllama_text_model"),
)

FAMILIES: dict[str, Family] = {
    model_type: Family(name, read, checked)
    for name, read, checked, model_types in _ROWS
    for model_type in model_types.split()
}

WRAPPED = {
    "llava": "llama",
    "llava_next": "llama",
    "vipllava": "llama",
    "video_llava": "llama",
    "llava_onevision": "qwen2",
    "paligemma": "gemma",
    "gemma3": "gemma3_text",
    "shieldgemma2": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "llama4": "llama4_text",
    "mllama": "mllama_text_model",
    "mistral3": "mistral",
    "pixtral": "mistral",
    "idefics3": "llama",
    "smolvlm": "llama",
    "idefics2": "mistral",
    "internvl": "qwen2",
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_audio": "qwen2",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen2_5_omni": "qwen2_5_omni_text",
    "qwen3_omni_moe": "qwen3_omni_moe_text",
    "kimi_k25": "deepseek_v3",
    "kimi_vl": "deepseek_v3",
    "deepseek_vl_v2": "deepseek_v2",
    "glm4v": "glm4",
    "glm4v_moe": "glm4_moe",
    "cohere2_vision": "cohere2",
    "aya_vision": "cohere2",
    "voxtral": "llama",
    "fuyu": "persimmon",
}
"""Composite models whose nested language configuration may leave out its own `model_type`."""

ALIASES = {
    "glm4v_text": "glm4",
    "glm4v_moe_text": "glm4_moe",
    "qwen3_omni_moe_thinker_text": "qwen3_omni_moe_text",
    "gemma3n_language": "gemma3n_text",
    "nemotron_h_puzzle": "nemotron_h",
}
"""Nested names that differ from the family's own."""
