"""The shape of a decoder, and how its layers share KV memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from reference_server.models.rope import RopeScaling


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers under one block table. `window` tokens back is as far as they look; None is all the way."""

    layers: tuple[int, ...]
    window: int | None


@dataclass(frozen=True)
class LlamaConfig:
    """The shape.

    `windows` has an entry a layer (tokens, or None for full attention); empty means full everywhere.
    `local_rope_theta` is that of the layers with a window, where it is another.
    """

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
    rope_scaling: RopeScaling | None = None
    activation: str = "silu"
    embedding_scale: float = 1.0
    windows: tuple[int | None, ...] = ()
    local_rope_theta: float | None = None

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    @cached_property
    def groups(self) -> tuple[LayerGroup, ...]:
        """Layers by block table: one group, unless some layers see a window and others everything.

        The rule is vLLM's: groups of as many layers as the rarer kind has, or as the commoner one
        where that is less than half as many again. Full attention comes first.
        """
        kinds: dict[int | None, list[int]] = {}
        for layer in range(self.layers):
            kinds.setdefault(self.window(layer), []).append(layer)
        if len(kinds) == 1:
            return tuple(LayerGroup(tuple(of_kind), window) for window, of_kind in kinds.items())
        counts = [len(of_kind) for of_kind in kinds.values()]
        size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
        ordered = sorted(kinds.items(), key=lambda kind: (kind[0] is not None, kind[0] or 0))
        return tuple(
            LayerGroup(tuple(of_kind[start : start + size]), window)
            for window, of_kind in ordered
            for start in range(0, len(of_kind), size)
        )

    @property
    def block_layers(self) -> int:
        """Layers whose KV data lies under one block id: those of the largest group."""
        return max(len(group.layers) for group in self.groups)

    def kv_bytes_per_token(self, bytes_per_element: int = 4) -> int:
        """K and V of all layers, as long as no token is out of a window."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_element
