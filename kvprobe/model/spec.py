"""A model's description, as far as memory is concerned: layers by kind, with their geometry.

Everything is per layer, because modern models mix kinds, head counts and widths. A `ModelSpec` holds
what the model *is*; bytes come from `kvprobe.model.layouts`, which adds the cache dtype and the
parallel split. Nothing here is guessed: what a configuration does not say, and the architecture's
published code does not settle, is either an entry in `assumptions` or an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

AttentionKind = Literal["full", "sliding", "chunked", "cross"]
StateKind = Literal["gated_delta_net", "mamba2", "mamba1", "lightning", "short_conv", "rwkv", "rg_lru"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """A layer that keeps K and V vectors of each token.

    `k_dim` and `v_dim` are elements per head; they differ in some models. `window_tokens` is the
    sliding window or the chunk, null for full and cross attention.
    """

    kind: AttentionKind
    kv_heads: int
    k_dim: int
    v_dim: int
    query_heads: int
    window_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """A multi-head latent attention layer (MLA): one compressed vector a token, on every rank.

    `indexer_dim` is the width of the sparse indexer's key where the layer has one (DeepSeek sparse
    attention), null where it has none. `plain` is the same layer as ordinary heads, for engines that
    decompress the cache.
    """

    lora_rank: int
    rope_dim: int
    plain: Attention
    indexer_dim: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePart:
    """One constant tensor of a recurrent layer: elements per request, before the parallel split.

    `name` is `ssm` or `conv`. `dtype` is null where the model's dtype holds; `dtype_stated` says that the
    configuration itself names it (else it is the habit of the engines, which some of them override).
    `rows` marks the conv part: `elements` are for `rows` rows, and speculation adds rows (LAYOUTS: n_spec).

    Of `elements`, `groups * group_elements` belong to groups that a tensor-parallel split wider than
    their number repeats on every rank (Mamba-2's B and C); the rest is divided. `replicated` marks a
    part that every rank keeps whole.
    """

    name: Literal["ssm", "conv", "shift"]
    elements: int
    dtype: str | None = None
    dtype_stated: bool = False
    rows: int | None = None
    groups: int = 0
    group_elements: int = 0
    replicated: bool = False

    def elements_per_rank(self, tp: int) -> Fraction:
        """Elements on one of `tp` ranks, as vLLM's `MambaStateShapeCalculator` splits them."""
        if self.replicated:
            return Fraction(self.elements)
        grouped = self.groups * self.group_elements
        per_rank = Fraction(self.elements - grouped, tp)
        if not grouped:
            return per_rank
        # Groups that TP does not divide are repeated until each rank has one of its own.
        kept = Fraction(self.groups, tp) if self.groups % tp == 0 else Fraction(1)
        return per_rank + kept * self.group_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A layer whose memory does not grow with the sequence (linear attention, state space).

    `divisors` are the head or group counts that the tensor-parallel split divides.
    """

    kind: StateKind
    parts: tuple[StatePart, ...]
    divisors: tuple[int, ...] = ()


Mixer = Attention | Latent | State


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer. `mixers` is empty for a layer without attention or state (pure MLP, MoE);
    parallel hybrids (attention beside state in one layer) have two. `shares_with` is the index of
    the layer whose cache this one reuses; such a layer owns nothing."""

    index: int
    mixers: tuple[Mixer, ...]
    shares_with: int | None = None

    @property
    def owns_cache(self) -> bool:
        return bool(self.mixers) and self.shares_with is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine:
    """Compressed layouts whose bytes are no constant per token: `fixed_bytes + per_token_bytes * T`."""

    fixed_bytes: int
    per_token_bytes: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """All that the arithmetic needs to know of a model.

    `layers` are the decoder's own layers; `draft_layers` those of a draft head that ships with the
    model (MTP, EAGLE) and is used only with speculation. `encoder_tokens` is the fixed encoder length
    that cross attention keeps. `dtype` is the model's (`bfloat16`, `float16`, `float32`).
    `verified` says whether the family's reading was checked against a published configuration and a
    published number. `parameters` is null where only a config was given and the family's count is
    not implemented. `weight_bytes` is what files hold; `weight_bytes_range` is counted from a configuration
    alone (both ends alike where nothing is open); `weight_note` says how, or why there is no count.
    """

    name: str
    architecture: str
    family: str
    layers: tuple[Layer, ...]
    hidden_size: int
    query_heads: int
    vocab_size: int | None
    max_position_tokens: int | None
    dtype: str
    source: str
    draft_layers: tuple[Layer, ...] = ()
    encoder_tokens: int | None = None
    affine: Affine | None = None
    weight_bytes: int | None = None
    weight_bytes_source: str | None = None
    weight_bytes_range: tuple[int, int] | None = None
    weight_note: str | None = None
    parameters: int | None = None
    quantization: str | None = None
    multimodal: bool = False
    verified: bool = False
    assumptions: tuple[str, ...] = ()
    raw: dict[str, object] = field(default_factory=dict, repr=False, compare=False)

    def owning(self) -> tuple[Layer, ...]:
        """Layers that hold a cache or state of their own, in order."""
        return tuple(layer for layer in self.layers if layer.owns_cache)
