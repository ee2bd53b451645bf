"""Class defaults of sizes that only the count needs, for composite models: their files leave such keys out.

From the configuration classes of transformers 5.24, as `kvprobe.model.families.class_defaults`.
"""

from __future__ import annotations

_KEYS = ("vocab_size", "intermediate_size", "hidden_size", "num_attention_heads")
_ROWS: dict[str, tuple[int, int, int, int]] = {
    "llama": (32000, 11008, 4096, 32),
    "mistral": (32000, 14336, 4096, 32),
    "qwen2": (151936, 22016, 4096, 32),
    "gemma": (256000, 24576, 3072, 16),
    "gemma2": (256000, 9216, 2304, 8),
    "gemma3_text": (262208, 9216, 2304, 8),
    "cohere2": (256000, 22528, 8192, 64),
}


def nested_sizes(model_type: str) -> dict[str, object]:
    """Defaults by key; empty for a family whose composite files state all of them."""
    values = _ROWS.get(model_type)
    return {} if values is None else dict(zip(_KEYS, values, strict=True))
