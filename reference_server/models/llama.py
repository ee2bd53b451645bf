"""A decoder of Llama's shape: RMSNorm, rotary positions, grouped-query attention, gated MLP.

All tokens of a step, of all sequences, go through the matrix products as one flat batch; only
attention tells sequences apart. Mistral, Qwen2, Qwen3 and Gemma 3 are the same decoder with biases,
norms on query and key heads, norms after the blocks, or layers that see a window only: what a
family lacks is None in its weights.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import torch
import torch.nn.functional as F

from reference_server.attention.backend import AttentionBackend
from reference_server.models.rope import inverse_frequencies, rotary_table
from reference_server.models.shape import LlamaConfig
from reference_server.models.weights import LayerWeights, LlamaWeights, Matrix
from reference_server.native.attention import NativeAttention, NativePlan
from reference_server.native.decoder import NativeDecoder
from reference_server.native.packed import PackedMatrix

__all__ = ["LayerWeights", "LlamaConfig", "LlamaModel", "LlamaWeights", "min_rows"]

PlanT = TypeVar("PlanT")

MIN_ROWS_A_THREAD = 4
"""Matrix kernels treat one to three rows in their own way, with other rounding, and split the rows of
a small batch among threads. A batch that leaves a thread fewer is padded, so that a token's numbers
do not depend on how many others are computed with it."""

FIRST_POSITIONS = 4096
"""Of the rotary tables, which grow when a longer sequence comes."""

Rotary = tuple[torch.Tensor, torch.Tensor]


def min_rows() -> int:
    """Fewest rows of a matrix product."""
    return MIN_ROWS_A_THREAD * torch.get_num_threads()


class LlamaModel(Generic[PlanT]):
    """The forward pass."""

    def __init__(
        self,
        config: LlamaConfig,
        weights: LlamaWeights,
        attention: AttentionBackend[PlanT],
    ) -> None:
        self.config = config
        self.weights = weights
        self.attention = attention
        self.device = weights.embedding.device
        # Matrices in a form of our own are computed row by row; no row needs company.
        self.min_rows = min_rows() if isinstance(weights.head, torch.Tensor) else 1
        # Of what goes through the layers: the weights' own, fp32 where the matrices are packed.
        self._dtype = weights.head.dtype if isinstance(weights.head, torch.Tensor) else torch.float32
        self._decoder = _native_decoder(weights, attention)
        self._local = [config.window(layer) is not None for layer in range(config.layers)]
        self._rotary: dict[bool, Rotary] = {}
        self._positions = 0
        self.reserve_positions(min(FIRST_POSITIONS, config.max_positions))

    def reserve_positions(self, count: int) -> None:
        """Make sure that positions below `count` can be rotated to."""
        if count <= self._positions:
            return
        config = self.config
        self._positions = min(max(count, 2 * self._positions), max(config.max_positions, count))
        thetas = {False: (config.rope_theta, config.rope_scaling)}
        if any(self._local):
            own = config.local_rope_theta
            thetas[True] = (own, None) if own is not None else thetas[False]
        for local, (theta, scaling) in thetas.items():
            inverse, factor = inverse_frequencies(config.head_dim, theta, scaling)
            cos, sin = rotary_table(inverse, factor, self._positions)
            self._rotary[local] = cos.to(self.device), sin.to(self.device)
        if self._decoder is not None:
            for layer, local in enumerate(self._local):
                self._decoder.rotate_by(layer, *self._rotary[local])

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, plan: PlanT, wanted_rows: torch.Tensor
    ) -> torch.Tensor:
        """Logits `[len(wanted_rows), vocabulary]` of the rows that will be sampled.

        `tokens` and `positions` are `[rows]`, at least `self.min_rows` of them.
        """
        config, weights = self.config, self.weights
        x = F.embedding(tokens, weights.embedding).to(self._dtype)
        if config.embedding_scale != 1.0:
            x = x * config.embedding_scale
        x = self._layers(x, positions, plan)
        if not len(wanted_rows):
            return torch.empty(0, config.vocabulary_size, device=x.device)
        last = self._norm(x[wanted_rows], weights.norm)
        last = F.pad(last, (0, 0, 0, max(self.min_rows - len(wanted_rows), 0)))
        return linear(last, weights.head)[: len(wanted_rows)].float()

    def _layers(self, x: torch.Tensor, positions: torch.Tensor, plan: PlanT) -> torch.Tensor:
        if self._decoder is not None:
            assert isinstance(plan, NativePlan)
            return self._decoder.run(x, plan)
        rotary = {local: (cos[positions], sin[positions]) for local, (cos, sin) in self._rotary.items()}
        for index, layer in enumerate(self.weights.layers):
            x = x + self._attention(index, layer, x, rotary[self._local[index]], plan)
            x = x + self._mlp(layer, x)
        return x

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (weight.shape[0],), weight, self.config.norm_eps)

    def _attention(
        self, index: int, layer: LayerWeights, x: torch.Tensor, rotary: Rotary, plan: PlanT
    ) -> torch.Tensor:
        config = self.config
        normed = self._norm(x, layer.attention_norm)
        qkv = linear(normed, layer.qkv, layer.qkv_bias).view(len(x), -1, config.head_dim)
        first_value = config.heads + config.kv_heads
        q, k, v = qkv[:, : config.heads], qkv[:, config.heads : first_value], qkv[:, first_value:]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        cos, sin = rotary
        self.attention.append(index, _rotate(k, cos, sin), v, plan)
        # Rotation, scores and softmax are fp32 whatever the weights are.
        found = self.attention.attend(index, _rotate(q, cos, sin), plan).to(x.dtype)
        out = linear(found, layer.out, layer.out_bias)
        return out if layer.after_attention is None else self._norm(out, layer.after_attention)

    def _mlp(self, layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        normed = self._norm(x, layer.mlp_norm)
        gate, up = linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        shaped = F.silu(gate) if self.config.activation == "silu" else F.gelu(gate, approximate="tanh")
        out = linear(shaped * up, layer.down, layer.down_bias)
        return out if layer.after_mlp is None else self._norm(out, layer.after_mlp)


def linear(x: torch.Tensor, matrix: torch.Tensor | Matrix, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`x @ matrix.T + bias`."""
    if isinstance(matrix, torch.Tensor):
        return F.linear(x, matrix, bias)
    found = matrix.apply(x)
    return found if bias is None else found.add_(bias)


def _native_decoder(weights: LlamaWeights, attention: AttentionBackend[PlanT]) -> NativeDecoder | None:
    """Where both the weights and the KV memory are in the C kernels' form."""
    packed = isinstance(weights.head, PackedMatrix)
    return NativeDecoder(weights, attention) if packed and isinstance(attention, NativeAttention) else None


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, halves paired as in Llama's published code."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
