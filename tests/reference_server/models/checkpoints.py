"""Small random checkpoints, made by transformers on the spot, and their tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 320
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-biases": ("Llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    "llama-tied-llama3": ("Llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "mistral": ("Mistral", {"head_dim": 24, "num_key_value_heads": 1, "sliding_window": None}),
    "mistral-window": ("Mistral", {"head_dim": 24, "sliding_window": 21}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2-yarn": (
        "Qwen2",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "gemma3": (
        "Gemma3Text",
        {
            "head_dim": 32,
            "num_hidden_layers": 6,
            "sliding_window": 24,
            "query_pre_attn_scalar": 40,
            "tie_word_embeddings": True,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        },
    ),
}
ARCHITECTURES = {"Gemma3Text": transformers.Gemma3ForCausalLM}
TEXT = (
    "Blocks hold keys and values; a table says which block holds which tokens. "
    "Grüße aus Köln, 你好世界, 👩‍👧 and naïve café — bytes must survive. 0123456789 "
)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def make_model(family: str, directory: Path, dtype: torch.dtype = torch.float32) -> Any:
    """A transformers model with random weights, saved into `directory`; returns the model."""
    kind, extra = FAMILIES[family]
    config = getattr(transformers, f"{kind}Config")(**{**COMMON, **extra})
    torch.manual_seed(len(family))
    architecture = ARCHITECTURES.get(kind) or getattr(transformers, f"{kind}ForCausalLM")
    model = architecture(config).eval().to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn(parameter.shape) * 0.2)
            elif name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape) * 0.5)
            else:
                # Far above the usual scale: the text then depends on every token of the prompt.
                parameter.mul_(6.0 if "embed" not in name or kind == "Gemma3Text" else 25.0)
    model.save_pretrained(directory)
    make_tokenizer(directory)
    return model


def make_tokenizer(directory: Path) -> None:
    """Byte-level BPE trained on a few words, with a chat template."""
    made = Tokenizer(models.BPE(unk_token=None))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    marks = ["<pad>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - 8,
        special_tokens=[AddedToken(mark, special=True) for mark in marks],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([TEXT] * 3, trainer)
    made.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
