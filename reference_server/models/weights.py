"""The parameters of a decoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Protocol

import torch


class Matrix(Protocol):
    """A weight matrix in a form of its own."""

    @property
    def nbytes(self) -> int:
        """Bytes that one product reads."""

    def apply(self, x: torch.Tensor) -> torch.Tensor:
        """`x @ matrix.T` of `[rows, in]`, fp32."""


@dataclass(slots=True)
class LayerWeights:
    """Matrices are `[out, in]`; q, k and v in one, gate and up in one. None is a part that is not there."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor | Matrix
    out: torch.Tensor | Matrix
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor | Matrix
    down: torch.Tensor | Matrix
    qkv_bias: torch.Tensor | None = None
    out_bias: torch.Tensor | None = None
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None
    after_attention: torch.Tensor | None = None
    after_mlp: torch.Tensor | None = None

    def parts(self) -> Iterator[torch.Tensor | Matrix]:
        for field in fields(self):
            part = getattr(self, field.name)
            if part is not None:
                yield part


@dataclass(slots=True)
class LlamaWeights:
    """All parameters. Where the embedding is tied, `head` may be the same tensor, counted once."""

    embedding: torch.Tensor
    layers: list[LayerWeights]
    norm: torch.Tensor
    head: torch.Tensor | Matrix

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        tied = self.head is self.embedding
        return self.pass_bytes + (0 if tied else self.embedding.nbytes)

    @property
    def pass_bytes(self) -> int:
        """Bytes that one forward pass reads: all but the embedding, of which a few rows are looked up."""
        layers = sum(part.nbytes for layer in self.layers for part in layer.parts())
        return layers + self.norm.nbytes + self.head.nbytes
