"""A decoder of Llama's shape: RMSNorm, rotary positions, grouped-query attention, SwiGLU.

All tokens of a step, of all sequences, go through the matrix products as one flat batch; only
attention tells sequences apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F

from reference_server.attention.backend import AttentionBackend

PlanT = TypeVar("PlanT")

MIN_ROWS_A_THREAD = 4
"""Matrix kernels treat one to three rows in their own way, with other rounding, and split the rows of
a small batch among threads. A batch that leaves a thread fewer is padded, so that a token's numbers
do not depend on how many others are computed with it."""


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The shape."""

    name: str
    vocabulary_size: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    max_positions: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5

    def kv_bytes_per_token(self, bytes_per_element: int = 4) -> int:
        """K and V of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_element


@dataclass(slots=True)
class LayerWeights:
    """Matrices are `[out, in]`; q, k and v in one, gate and up in one."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


@dataclass(slots=True)
class LlamaWeights:
    """All parameters."""

    embedding: torch.Tensor
    layers: list[LayerWeights]
    norm: torch.Tensor
    head: torch.Tensor

    @property
    def nbytes(self) -> int:
        tensors = [self.embedding, self.norm, self.head]
        for layer in self.layers:
            tensors += [layer.attention_norm, layer.qkv, layer.out, layer.mlp_norm, layer.gate_up, layer.down]
        return sum(tensor.nbytes for tensor in tensors)


def min_rows() -> int:
    """Fewest rows of a matrix product."""
    return MIN_ROWS_A_THREAD * torch.get_num_threads()


class LlamaModel(Generic[PlanT]):
    """The forward pass."""

    def __init__(
        self, config: LlamaConfig, weights: LlamaWeights, attention: AttentionBackend[PlanT]
    ) -> None:
        self.config = config
        self.weights = weights
        self.attention = attention
        self._cos, self._sin = _rotary_tables(config)

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, plan: PlanT, wanted_rows: torch.Tensor
    ) -> torch.Tensor:
        """Logits `[len(wanted_rows), vocabulary]` of the rows that will be sampled.

        `tokens` and `positions` are `[rows]`, at least `min_rows()` of them.
        """
        config = self.config
        x = F.embedding(tokens, self.weights.embedding)
        cos, sin = self._cos[positions], self._sin[positions]
        for index, layer in enumerate(self.weights.layers):
            x = x + self._attention(index, layer, x, cos, sin, plan)
            x = x + self._mlp(layer, x)
        if not len(wanted_rows):
            return torch.empty(0, config.vocabulary_size)
        last = F.rms_norm(x[wanted_rows], (config.hidden,), self.weights.norm, config.norm_eps)
        last = F.pad(last, (0, 0, 0, max(min_rows() - len(wanted_rows), 0)))
        return F.linear(last, self.weights.head)[: len(wanted_rows)]

    def _attention(
        self,
        index: int,
        layer: LayerWeights,
        x: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        plan: PlanT,
    ) -> torch.Tensor:
        config = self.config
        normed = F.rms_norm(x, (config.hidden,), layer.attention_norm, config.norm_eps)
        qkv = F.linear(normed, layer.qkv).view(len(x), -1, config.head_dim)
        first_value = config.heads + config.kv_heads
        q, k, v = qkv[:, : config.heads], qkv[:, config.heads : first_value], qkv[:, first_value:]
        self.attention.append(index, _rotate(k, cos, sin), v, plan)
        found = self.attention.attend(index, _rotate(q, cos, sin), plan)
        return F.linear(found, layer.out)

    def _mlp(self, layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        config = self.config
        normed = F.rms_norm(x, (config.hidden,), layer.mlp_norm, config.norm_eps)
        gate, up = F.linear(normed, layer.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, layer.down)


def _rotary_tables(config: LlamaConfig) -> tuple[torch.Tensor, torch.Tensor]:
    """`[positions, 1, head_dim / 2]`, computed in double so that far positions stay exact."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.outer(torch.arange(config.max_positions, dtype=torch.float64), config.rope_theta**-half)
    return angles.cos().float()[:, None], angles.sin().float()[:, None]


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, halves paired as in Llama's published code."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
