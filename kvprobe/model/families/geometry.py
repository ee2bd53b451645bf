"""What nearly all families share: layer count, heads, widths, and lists of layer kinds."""

from __future__ import annotations

from dataclasses import dataclass

from kvprobe.model.fields import MAX_LAYERS, MAX_TOKENS, Fields
from kvprobe.model.spec import Affine, Attention, AttentionKind, Layer, Mixer

LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "model_dim", "dim")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
POSITIONS = (
    "max_position_embeddings",
    "max_sequence_length",
    "model_max_length",
    "seq_length",
    "n_positions",
    "max_seq_len",
    "max_target_positions",
    "context_length",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a family's reader makes of a configuration."""

    layers: tuple[Layer, ...]
    hidden_size: int
    query_heads: int
    draft_layers: tuple[Layer, ...] = ()
    encoder_tokens: int | None = None
    affine: Affine | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The attention geometry of a model whose layers are alike."""

    layers: int
    hidden: int
    query_heads: int
    kv_heads: int
    head_dim: int

    def attention(self, kind: AttentionKind = "full", window: int | None = None) -> Attention:
        return Attention(
            kind=kind,
            kv_heads=self.kv_heads,
            k_dim=self.head_dim,
            v_dim=self.head_dim,
            query_heads=self.query_heads,
            window_tokens=window,
        )


def layer_count(fields: Fields) -> int:
    return fields.size(*LAYERS, high=MAX_LAYERS)


def read_heads(fields: Fields, *, layers: int | None = None) -> Heads:
    """Layers, hidden size, query heads, KV heads and head width, as the configuration classes settle them."""
    count = layer_count(fields) if layers is None else layers
    hidden, query = hidden_and_heads(fields)
    return Heads(
        layers=count,
        hidden=hidden,
        query_heads=query,
        kv_heads=kv_heads(fields, query),
        head_dim=head_dim(fields, hidden, query),
    )


def hidden_and_heads(fields: Fields) -> tuple[int, int]:
    """Hidden size and query heads. Where KV heads and head width are given, the cache depends on neither."""
    kv, width = fields.optional(*KV_HEADS), fields.optional("head_dim", high=1 << 16)
    if fields.nested or kv is None or width is None:
        return fields.size(*HIDDEN), fields.size(*HEADS)
    query = fields.optional(*HEADS)
    if query is None:
        fields.assume("num_attention_heads is not in the configuration: the cache does not depend on it")
        query = kv
    hidden = fields.optional(*HIDDEN)
    if hidden is None:
        fields.assume("hidden_size is not in the configuration: the cache does not depend on it")
        hidden = query * width
    return hidden, query


def kv_heads(fields: Fields, query_heads: int) -> int:
    """KV heads; where the configuration and its class are silent, multi-head attention, and said so."""
    value = fields.optional(*KV_HEADS)
    if value is None and not any(key in fields.data for key in KV_HEADS):
        value = fields.class_size("num_key_value_heads")
    if value is None:
        fields.assume(
            f"num_key_value_heads is not in the configuration: taken as multi-head attention, "
            f"{query_heads} KV heads"
        )
        return query_heads
    if value > query_heads or query_heads % value:
        fields.wrong(
            "num_key_value_heads",
            f"is {value}, which does not divide the {query_heads} query heads",
            "correct num_key_value_heads or num_attention_heads",
        )
    return value


def head_dim(fields: Fields, hidden: int, query_heads: int) -> int:
    """`head_dim` where it is given; else the class default; else hidden size / query heads."""
    value = fields.optional("head_dim", "kv_channels", "attention_head_dim", high=1 << 16)
    if value is None and "head_dim" not in fields.data:
        value = fields.class_size("head_dim")
    return value if value is not None else divided(fields, hidden, query_heads)


def divided(fields: Fields, hidden: int, query_heads: int) -> int:
    if hidden % query_heads:
        fields.wrong(
            "hidden_size",
            f"is {hidden}, which {query_heads} heads do not divide, and there is no `head_dim`",
            "add `head_dim`, or correct hidden_size or num_attention_heads",
        )
    return hidden // query_heads


def window_tokens(fields: Fields, *names: str) -> int | None:
    return fields.optional(*names, low=1, high=MAX_TOKENS)


def uniform(count: int, *mixers: Mixer) -> tuple[Layer, ...]:
    return tuple(Layer(index=i, mixers=mixers) for i in range(count))


def by_kind(fields: Fields, kinds: list[str], mixers: dict[str, tuple[Mixer, ...]]) -> tuple[Layer, ...]:
    """Layers from their kinds' names; a kind that the family does not have is refused."""
    for kind in kinds:
        if kind not in mixers:
            known = ", ".join(sorted(mixers))
            fields.wrong(
                "layer_types",
                f"holds {kind[:60]!r}, a kind of layer that is not known for this family",
                f"known kinds: {known}",
            )
    return tuple(Layer(index=i, mixers=mixers[kind]) for i, kind in enumerate(kinds))
