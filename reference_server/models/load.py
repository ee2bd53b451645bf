"""`--model`: `tiny`, or a directory as Hugging Face lays them out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from reference_server.errors import ConfigError
from reference_server.models.fields import read_json_object
from reference_server.models.shape import LlamaConfig
from reference_server.models.tiny import TINY, random_weights
from reference_server.models.tokenizer import ByteTokenizer, Tokenizer
from reference_server.models.weights import LayerWeights, LlamaWeights, Matrix
from reference_server.native.packed import packed

TINY_NAME = "tiny"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model without its KV memory."""

    config: LlamaConfig
    weights: LlamaWeights
    tokenizer: Tokenizer


def load_model(model: str, *, seed: int = 0, device: str = "cpu") -> LoadedModel:
    """Raises `ConfigError` when the directory is none, or holds a model that is not served."""
    if model == TINY_NAME:
        return LoadedModel(TINY, _ready(random_weights(TINY, seed), device), ByteTokenizer())
    directory = Path(model)
    if not (directory / "config.json").is_file():
        raise ConfigError(
            f"--model {model}: there is no config.json; give {TINY_NAME} or a model's directory"
        )
    # The tokenizers package, jinja2 and safetensors are wanted for real models only.
    from reference_server.models.checkpoint import load_weights
    from reference_server.models.families import recipe_from_config
    from reference_server.models.text_tokenizer import TextTokenizer

    recipe = recipe_from_config(read_json_object(directory / "config.json"), directory.resolve().name)
    tokenizer = TextTokenizer(directory, recipe.shape.vocabulary_size)
    return LoadedModel(recipe.shape, _ready(load_weights(directory, recipe), device), tokenizer)


def _ready(weights: LlamaWeights, device: str) -> LlamaWeights:
    """On its device; on a CPU packed for the C kernels, where there are any."""
    return (packed(weights) if device == "cpu" else None) or on_device(weights, device)


def on_device(weights: LlamaWeights, device: str) -> LlamaWeights:
    """The weights where they are computed with; fp32 on a CPU, in their own dtype elsewhere."""
    dtype = torch.float32 if device == "cpu" else None

    def move(part: torch.Tensor) -> torch.Tensor:
        return part.to(device=device, dtype=dtype)

    def move_any(part: torch.Tensor | Matrix) -> torch.Tensor | Matrix:
        return move(part) if isinstance(part, torch.Tensor) else part

    def move_layer(layer: LayerWeights) -> LayerWeights:
        parts = ((name, getattr(layer, name)) for name in LayerWeights.__dataclass_fields__)
        moved: dict[str, Any] = {name: move_any(part) for name, part in parts if part is not None}
        return replace(layer, **moved)

    embedding = move(weights.embedding)
    tied = weights.head is weights.embedding
    return LlamaWeights(
        embedding=embedding,
        layers=[move_layer(layer) for layer in weights.layers],
        norm=move(weights.norm),
        head=embedding if tied else move_any(weights.head),
    )
