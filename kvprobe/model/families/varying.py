"""Families whose KV heads or head widths change from layer to layer (LAYOUTS rows 7 and 13)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kvprobe.model.families.geometry import (
    HEADS,
    HIDDEN,
    Reading,
    by_kind,
    divided,
    layer_count,
    read_heads,
)
from kvprobe.model.families.windows import FULL, SLIDING, layer_kinds
from kvprobe.model.fields import MAX_LAYERS, Fields, shown
from kvprobe.model.spec import Attention, Layer, Mixer


def openelm(fields: Fields) -> Reading:
    """OpenELM: `num_kv_heads` and `num_query_heads` are lists, one entry a layer."""
    count = fields.size("num_transformer_layers", "num_hidden_layers", high=MAX_LAYERS)
    width = fields.size("head_dim")
    kv = fields.sizes("num_kv_heads", length=count, low=1)
    if kv is None:
        fields.missing("num_kv_heads", "it gives the KV heads of each layer")
    query = fields.sizes("num_query_heads", length=count, low=1) or kv
    layers = tuple(
        Layer(
            index=i,
            mixers=(Attention(kind="full", kv_heads=kv[i], k_dim=width, v_dim=width, query_heads=query[i]),),
        )
        for i in range(count)
    )
    return Reading(layers=layers, hidden_size=fields.size("model_dim", *HIDDEN), query_heads=max(query))


def deci(fields: Fields) -> Reading:
    """DeciLM and Nemotron-NAS: KV heads by layer; layers without attention own nothing."""
    count, hidden, query = layer_count(fields), fields.size(*HIDDEN), fields.size(*HEADS)
    width = fields.optional("head_dim") or divided(fields, hidden, query)
    kv = fields.sizes("num_key_value_heads_per_layer", length=count, low=1)
    counts: list[int | None] = list(kv) if kv is not None else _block_heads(fields, count, query)
    layers = []
    for i, heads in enumerate(counts):
        attention = None
        if heads is not None:
            attention = Attention(kind="full", kv_heads=heads, k_dim=width, v_dim=width, query_heads=query)
        layers.append(Layer(index=i, mixers=() if attention is None else (attention,)))
    return Reading(layers=tuple(layers), hidden_size=hidden, query_heads=query)


def _block_heads(fields: Fields, count: int, query: int) -> list[int | None]:
    """KV heads of each entry of `block_configs`; null where the block has no attention."""
    blocks = fields.data.get("block_configs")
    if not isinstance(blocks, list):
        fields.missing(
            "block_configs", "it (or num_key_value_heads_per_layer) gives the KV heads of each layer"
        )
    if len(blocks) != count:
        fields.wrong("block_configs", f"has {len(blocks)} entries for {count} layers", "one entry per layer")
    return [_block_kv(fields, block, query) for block in blocks]


def _block_kv(fields: Fields, block: object, query: int) -> int | None:
    attention = block.get("attention") if isinstance(block, dict) else None
    if not isinstance(attention, Mapping):
        fields.wrong("block_configs", f"holds {shown(block)} without `attention`", "use the published file")
    if attention.get("no_op") is True or attention.get("replace_with_linear") is True:
        return None
    inner = Fields(attention, source=fields.source)
    if inner.has("window_length") or inner.has("sparsify"):
        fields.wrong(
            "block_configs", "holds a block with a window or sparsity, which is not known", "not supported"
        )
    group = inner.size("n_heads_in_group")
    if query % group:
        fields.wrong("block_configs", f"has groups of {group} for {query} heads", "use the published file")
    return query // group


def mimo_v2(fields: Fields) -> Reading:
    """MiMo-V2: K and V of different width; sliding layers may have heads and widths of their own."""
    heads = read_heads(fields)
    window = fields.optional("sliding_window", "sliding_window_size", high=1 << 40)
    if window is None:
        fields.missing("sliding_window", "most layers have a sliding window")
    full = replace(heads.attention(), v_dim=fields.size_or(128, "v_head_dim"))
    local = replace(
        full,
        kind="sliding",
        window_tokens=window,
        kv_heads=_mimo_local_heads(fields, full.kv_heads),
        k_dim=fields.optional("swa_head_dim") or full.k_dim,
        v_dim=fields.optional("swa_v_head_dim") or full.v_dim,
    )
    pattern = fields.sizes("hybrid_layer_pattern", length=heads.layers)
    if pattern is not None and not fields.has("layer_types"):
        kinds = [SLIDING if value else FULL for value in pattern]
    else:
        kinds = layer_kinds(
            fields,
            heads.layers,
            lambda i: FULL if i == 0 or (i + 1) % 6 == 0 else SLIDING,
            "full at layer 0 and each 6th",
        )
    mixers: dict[str, tuple[Mixer, ...]] = {FULL: (full,), SLIDING: (local,)}
    return Reading(
        layers=by_kind(fields, kinds, mixers), hidden_size=heads.hidden, query_heads=heads.query_heads
    )


def _mimo_local_heads(fields: Fields, full: int) -> int:
    """KV heads of the sliding layers: given, or twice those of the full ones, as the model's code has it."""
    given = fields.optional("swa_num_key_value_heads")
    if given is None:
        fields.assume(
            f"swa_num_key_value_heads is not in the configuration: {2 * full}, twice the full layers'"
        )
    return given or 2 * full
