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

    def public(self) -> dict[str, object]:
        """The shape in the words of a config.json, as far as the KV cache depends on it."""
        words: dict[str, object] = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "vocab_size": self.vocabulary_size,
            "max_position_embeddings": self.max_positions,
            "torch_dtype": "float32",
        }
        sizes = {w for w in self.windows if w is not None}
        if len(sizes) == 1:
            kinds = ["full_attention" if w is None else "sliding_attention" for w in self.windows]
            words |= {"sliding_window": sizes.pop(), "layer_types": kinds, "model_type": "gemma3_text"}
            words["architectures"] = ["Gemma3ForCausalLM"]
        return words

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
