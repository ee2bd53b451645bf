"""Weights from safetensors files: no pickle, nothing that runs.

Every tensor of the files must be used and must have the shape that config.json calls for. A tensor
that nobody asks for would be a part of the model that is left out of its numbers.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from reference_server.errors import ConfigError
from reference_server.models.families import Recipe
from reference_server.models.fields import read_json_object
from reference_server.models.weights import LayerWeights, LlamaWeights

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
UNUSED_SUFFIXES = ("rotary_emb.inv_freq",)
"""Tables that old files carry and that follow from the configuration."""


class Checkpoint:
    """The tensors of a directory, by name. A context manager: the files are mapped while it is open."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = ExitStack()
        self._holder: dict[str, Any] = {}
        self._used: set[str] = set()

    def __enter__(self) -> Checkpoint:
        for name in self._file_names():
            path = self._directory / name
            try:
                opened = self._stack.enter_context(safe_open(path, framework="pt"))
                self._holder.update(dict.fromkeys(opened.keys(), opened))
            except (OSError, SafetensorError) as error:
                self._stack.close()
                raise ConfigError(f"{path} cannot be read: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __contains__(self, name: str) -> bool:
        return name in self._holder

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """A tensor in its own dtype; raises `ConfigError` when it is missing or of another shape."""
        if name not in self._holder:
            raise ConfigError(f"{self._directory} has no tensor {name!r:.200}")
        tensor: torch.Tensor = self._holder[name].get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"{self._directory}: {name} is {tuple(tensor.shape)}, and config.json calls for {shape}"
            )
        if tensor.dtype not in FLOATS:
            raise ConfigError(
                f"{self._directory}: {name} is {tensor.dtype}; weights must be fp32, bf16 or fp16"
            )
        self._used.add(name)
        return tensor

    def refuse_unused(self, allowed: frozenset[str]) -> None:
        left = sorted(
            n for n in self._holder.keys() - self._used - allowed if not n.endswith(UNUSED_SUFFIXES)
        )
        if left:
            raise ConfigError(
                f"{self._directory}: {len(left)} tensors have no place in this family, as {left[0]!r:.200}"
            )

    def _file_names(self) -> list[str]:
        if not (self._directory / INDEX).is_file():
            return [SINGLE]
        shards = read_json_object(self._directory / INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise ConfigError(f"{self._directory / INDEX}: weight_map must map names to files")
        names = sorted(set(shards.values()))
        for name in names:
            if Path(name).name != name or not name.endswith(".safetensors"):
                raise ConfigError(f"{self._directory / INDEX}: {name!r:.200} is no file of the directory")
        return names


def load_weights(directory: Path, recipe: Recipe) -> LlamaWeights:
    """All weights, in the dtype that they are stored in (vectors in fp32)."""
    shape = recipe.shape
    with Checkpoint(directory) as files:
        embedding = files.take("model.embed_tokens.weight", shape.vocabulary_size, shape.hidden)
        layers = [_Layer(files, recipe, index).load() for index in range(shape.layers)]
        norm = files.take("model.norm.weight", shape.hidden).float() + recipe.norm_offset
        head = embedding
        if not recipe.tied:
            head = files.take("lm_head.weight", shape.vocabulary_size, shape.hidden)
        files.refuse_unused(frozenset(("lm_head.weight",)) if recipe.tied else frozenset())
        return LlamaWeights(embedding=embedding, layers=layers, norm=norm, head=head)


class _Layer:
    """The tensors of one layer."""

    def __init__(self, files: Checkpoint, recipe: Recipe, index: int) -> None:
        self._files, self._recipe = files, recipe
        self._prefix = f"model.layers.{index}."

    def load(self) -> LayerWeights:
        recipe, config, gemma = self._recipe, self._recipe.shape, self._recipe.norms_after
        hidden, width = config.hidden, config.heads * config.head_dim
        kv_width = config.kv_heads * config.head_dim
        qkv = {"self_attn.q_proj": width, "self_attn.k_proj": kv_width, "self_attn.v_proj": kv_width}
        gate_up = {"mlp.gate_proj": config.intermediate, "mlp.up_proj": config.intermediate}
        out, down = {"self_attn.o_proj": hidden}, {"mlp.down_proj": hidden}
        return LayerWeights(
            attention_norm=self._norm("input_layernorm", hidden),
            qkv=self._fused(qkv, hidden),
            out=self._fused(out, width),
            mlp_norm=self._norm("pre_feedforward_layernorm" if gemma else "post_attention_layernorm", hidden),
            gate_up=self._fused(gate_up, hidden),
            down=self._fused(down, config.intermediate),
            qkv_bias=self._fused_bias(qkv, required=recipe.qkv_bias),
            out_bias=self._fused_bias(out),
            gate_up_bias=self._fused_bias(gate_up),
            down_bias=self._fused_bias(down),
            # Rotation is linear, so that a factor on queries may stand in the norm before it.
            q_norm=self._norm("self_attn.q_norm", config.head_dim) * recipe.query_factor
            if recipe.qk_norm
            else None,
            k_norm=self._norm("self_attn.k_norm", config.head_dim) if recipe.qk_norm else None,
            after_attention=self._norm("post_attention_layernorm", hidden) if gemma else None,
            after_mlp=self._norm("post_feedforward_layernorm", hidden) if gemma else None,
        )

    def _fused(self, rows_of: dict[str, int], columns: int) -> torch.Tensor:
        parts = [self._files.take(f"{self._prefix}{n}.weight", r, columns) for n, r in rows_of.items()]
        return torch.cat(parts)

    def _fused_bias(self, rows_of: dict[str, int], *, required: bool = False) -> torch.Tensor | None:
        """The biases of matrices that stand in one; None when none has any, zeros for one that has none."""
        names = {name: f"{self._prefix}{name}.bias" for name in rows_of}
        if not required and not any(name in self._files for name in names.values()):
            return None
        return torch.cat(
            [
                self._files.take(names[n], rows).float()
                if required or names[n] in self._files
                else torch.zeros(rows)
                for n, rows in rows_of.items()
            ]
        )

    def _norm(self, name: str, size: int) -> torch.Tensor:
        weight = self._files.take(f"{self._prefix}{name}.weight", size).float()
        return weight + self._recipe.norm_offset
