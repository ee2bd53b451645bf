"""Model `tiny`: made on the spot from a seed, nothing to download.

The size is chosen so that a prefill is plainly seen on one CPU thread (2,048 tokens take some
0.7 s) while a decode step stays near 10 ms. 4 layers x 2 KV heads x 64 x 2 (K, V) x 4 bytes are
4 KiB of KV data a token.
"""

from __future__ import annotations

import math

import torch

from reference_server.models.shape import LlamaConfig
from reference_server.models.tokenizer import VOCABULARY_SIZE
from reference_server.models.weights import LayerWeights, LlamaWeights

TINY = LlamaConfig(
    name="tiny",
    vocabulary_size=VOCABULARY_SIZE,
    hidden=512,
    intermediate=1024,
    layers=4,
    heads=8,
    kv_heads=2,
    head_dim=64,
    max_positions=32768,
)

QK_GAIN = 4.0
OUT_GAIN = 4.0
EMBEDDING_SCALE = 0.5
"""Above their usual sizes, so that attention picks tokens out instead of averaging over all, and
outweighs the last token: the text then depends on every part of the prompt, and a wrong byte in the
cache shows. With gains of 1 a long prompt leads to one and the same text, whatever stands in it."""


def random_weights(config: LlamaConfig, seed: int) -> LlamaWeights:
    """Normal weights, scaled so that activations keep their size through the layers."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * (gain / math.sqrt(columns))

    hidden, heads, kv_heads, dim = config.hidden, config.heads, config.kv_heads, config.head_dim
    layers = []
    for _ in range(config.layers):
        qkv = matrix((heads + 2 * kv_heads) * dim, hidden)
        qkv[: (heads + kv_heads) * dim] *= QK_GAIN
        layers.append(
            LayerWeights(
                attention_norm=torch.ones(hidden),
                qkv=qkv,
                out=matrix(hidden, heads * dim, OUT_GAIN),
                mlp_norm=torch.ones(hidden),
                gate_up=matrix(2 * config.intermediate, hidden),
                down=matrix(hidden, config.intermediate),
            )
        )
    return LlamaWeights(
        embedding=torch.randn(config.vocabulary_size, hidden, generator=generator) * EMBEDDING_SCALE,
        layers=layers,
        norm=torch.ones(hidden),
        head=matrix(config.vocabulary_size, hidden),
    )
