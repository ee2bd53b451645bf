"""Families that mix attention with recurrent layers (LAYOUTS rows 10 and 11)."""

from __future__ import annotations

from dataclasses import replace

from kvprobe.model.families.geometry import (
    HEADS,
    HIDDEN,
    KV_HEADS,
    Heads,
    Reading,
    by_kind,
    divided,
    kv_heads,
    layer_count,
    read_heads,
    uniform,
)
from kvprobe.model.families.latent import latent
from kvprobe.model.families.states import (
    gated_delta_net,
    gated_linear_recurrence,
    kimi_delta,
    lightning,
    mamba1,
    mamba2,
    short_conv,
)
from kvprobe.model.families.windows import FULL, SLIDING, layer_kinds
from kvprobe.model.fields import MAX_LAYERS, Fields
from kvprobe.model.spec import Layer, Mixer, State

LINEAR = "linear_attention"
_LEGACY = {"mamba": LINEAR, "attention": FULL, "m": LINEAR, "a": FULL}


def _mixed(heads: Heads, fields: Fields, kinds: list[str], state: State) -> Reading:
    kinds = [_LEGACY.get(kind, kind) for kind in kinds]
    mixers: dict[str, tuple[Mixer, ...]] = {FULL: (heads.attention(),), LINEAR: (state,)}
    return Reading(
        layers=by_kind(fields, kinds, mixers), hidden_size=heads.hidden, query_heads=heads.query_heads
    )


def qwen3_next(fields: Fields) -> Reading:
    """Qwen3-Next, Qwen3.5, OLMo-Hybrid: three Gated DeltaNet layers, then one of full attention."""
    heads = read_heads(fields)
    step = fields.optional("full_attention_interval", high=MAX_LAYERS) or 4
    kinds = layer_kinds(
        fields, heads.layers, lambda i: LINEAR if (i + 1) % step else FULL, f"one full layer in {step}"
    )
    reading = _mixed(heads, fields, kinds, gated_delta_net(fields))
    extra = fields.optional("mtp_num_hidden_layers", "num_nextn_predict_layers", low=0, high=64) or 0
    drafts = tuple(Layer(index=heads.layers + i, mixers=(heads.attention(),)) for i in range(extra))
    return replace(reading, draft_layers=drafts)


def granite_hybrid(fields: Fields) -> Reading:
    """Granite 4: Mamba-2 and attention by `layer_types`; without the list, as its class: all Mamba-2."""
    heads = read_heads(fields)
    if fields.has("layers_block_type") and not fields.has("layer_types"):
        kinds = fields.texts("layers_block_type", length=heads.layers) or []
    else:
        kinds = layer_kinds(fields, heads.layers, lambda _: LINEAR, "all layers Mamba-2")
    kinds = [_LEGACY.get(kind, kind) for kind in kinds]
    if LINEAR not in kinds:
        return Reading(
            layers=by_kind(fields, kinds, {FULL: (heads.attention(),)}),
            hidden_size=heads.hidden,
            query_heads=heads.query_heads,
        )
    return _mixed(heads, fields, kinds, mamba2(fields, fields.size(*HIDDEN)))


def bamba(fields: Fields) -> Reading:
    """Bamba: attention at `attn_layer_indices`, Mamba-2 elsewhere."""
    heads = read_heads(fields)
    full = set(fields.sizes("attn_layer_indices") or [])
    kinds = [FULL if i in full else LINEAR for i in range(heads.layers)]
    return _mixed(heads, fields, kinds, mamba2(fields, fields.size(*HIDDEN)))


def jamba(fields: Fields) -> Reading:
    """Jamba: Mamba layers, attention at one layer of each `attn_layer_period`."""
    heads = read_heads(fields)
    period = fields.size_or(8, "attn_layer_period", high=MAX_LAYERS)
    offset = fields.size_or(4, "attn_layer_offset", low=0, high=MAX_LAYERS)
    kinds = [FULL if i % period == offset else LINEAR for i in range(heads.layers)]
    return _mixed(heads, fields, kinds, mamba1(fields, fields.size(*HIDDEN)))


def falcon_h1(fields: Fields) -> Reading:
    """Falcon-H1: attention and Mamba-2 side by side in every layer."""
    heads = read_heads(fields)
    mixers = (heads.attention(), mamba2(fields, fields.size(*HIDDEN)))
    return Reading(
        layers=uniform(heads.layers, *mixers), hidden_size=heads.hidden, query_heads=heads.query_heads
    )


_NEMOTRON = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}


def nemotron_h(fields: Fields) -> Reading:
    """Nemotron-H: a pattern of Mamba-2 (M), attention (*), MLP (-) and MoE (E) layers."""
    kinds = nemotron_kinds(fields)
    heads = read_heads(fields, layers=len(kinds))
    state = () if LINEAR not in kinds else (_nemotron_mamba(fields),)
    mixers: dict[str, tuple[Mixer, ...]] = {FULL: (heads.attention(),), LINEAR: state, "mlp": (), "moe": ()}
    layers = by_kind(fields, kinds, mixers)
    extra = fields.optional("num_nextn_predict_layers", low=0, high=64) or 0
    drafts = tuple(Layer(index=len(layers) + i, mixers=(heads.attention(),)) for i in range(extra))
    return Reading(
        layers=layers, draft_layers=drafts, hidden_size=heads.hidden, query_heads=heads.query_heads
    )


def _nemotron_mamba(fields: Fields) -> State:
    renamed = {key: value for key, value in fields.data.items() if key != "head_dim"}
    inner = Fields(
        renamed,
        source=fields.source,
        defaults=fields.defaults,
        owner=fields.owner,
        nested=fields.nested,
        assumptions=fields.assumptions,
    )
    return mamba2(inner, fields.size(*HIDDEN))


def nemotron_kinds(fields: Fields) -> list[str]:
    names = fields.texts("layers_block_type") or fields.texts("layer_types")
    if names is not None:
        return [_LEGACY.get(name, name) for name in names]
    value = fields.data.get("hybrid_override_pattern")
    if value is None:
        fields.missing("hybrid_override_pattern", "it says which layers are Mamba-2 and which are attention")
    if not isinstance(value, str) or not 0 < len(value) <= MAX_LAYERS or set(value) - set(_NEMOTRON):
        fields.wrong(
            "hybrid_override_pattern", "must be a word of M, *, - and E", "use the published pattern"
        )
    count = fields.optional("num_hidden_layers", high=MAX_LAYERS)
    if count is not None and count != len(value):
        fields.wrong(
            "num_hidden_layers", f"is {count}, and the pattern has {len(value)} layers", "correct either"
        )
    return [_NEMOTRON[letter] for letter in value]


def zamba2(fields: Fields) -> Reading:
    """Zamba2: Mamba-2 in every layer; hybrid layers add attention over twice the hidden size."""
    count, hidden, query = layer_count(fields), fields.size(*HIDDEN), fields.size(*HEADS)
    kinds = fields.texts("layers_block_type", length=count)
    if kinds is None:
        fields.missing("layers_block_type", "it says which layers are hybrid")
    width = divided(fields, 2 * hidden, query)
    kv = fields.optional(*KV_HEADS) or query
    heads = Heads(layers=count, hidden=hidden, query_heads=query, kv_heads=kv, head_dim=width)
    renamed = {
        key: value for key, value in fields.data.items() if key not in ("head_dim", "attention_head_dim")
    }
    inner = Fields(renamed, source=fields.source, defaults=fields.defaults, assumptions=fields.assumptions)
    state = mamba2(inner, hidden)
    mixers: dict[str, tuple[Mixer, ...]] = {
        LINEAR: (state,),
        "mamba": (state,),
        "hybrid": (heads.attention(), state),
    }
    return Reading(layers=by_kind(fields, kinds, mixers), hidden_size=hidden, query_heads=query)


def minimax(fields: Fields) -> Reading:
    """MiniMax-Text-01 and M1: lightning attention, and full attention by `attn_type_list` (1 = full)."""
    heads = read_heads(fields)
    kinds: list[str] | None = None
    types = fields.sizes("attn_type_list", length=heads.layers)
    if types is not None:
        kinds = [FULL if value == 1 else LINEAR for value in types]
    if kinds is None:
        kinds = layer_kinds(
            fields,
            heads.layers,
            lambda i: FULL if (i + 1) % 2 else LINEAR,
            "full and linear layers alternate",
        )
    return _mixed(heads, fields, kinds, lightning(fields.size(*HEADS), heads.head_dim))


def kimi_linear(fields: Fields) -> Reading:
    """Kimi Linear: Kimi delta attention, and MLA at `linear_attn_config.full_attn_layers` (from 1)."""
    count, query = layer_count(fields), fields.size(*HEADS)
    part = fields.part("linear_attn_config")
    inner = Fields(part or {}, source=fields.source)
    full = inner.sizes("full_attn_layers")
    if full is not None and not fields.has("layer_types"):
        kinds = [FULL if i + 1 in set(full) else LINEAR for i in range(count)]
    else:
        kinds = layer_kinds(fields, count, lambda i: FULL if i and i % 4 == 0 else LINEAR, "every 4th full")
    mixers: dict[str, tuple[Mixer, ...]] = {FULL: (latent(fields, query),), LINEAR: (kimi_delta(fields),)}
    return Reading(layers=by_kind(fields, kinds, mixers), hidden_size=fields.size(*HIDDEN), query_heads=query)


def lfm2(fields: Fields) -> Reading:
    """LFM2: short convolutions, full attention at `full_attn_idxs` or by `layer_types`."""
    heads = read_heads(fields)
    full = fields.sizes("full_attn_idxs")
    chosen = set(range(heads.layers)) if full is None else set(full)
    kinds = layer_kinds(
        fields, heads.layers, lambda i: FULL if i in chosen else "conv", "full layers from full_attn_idxs"
    )
    mixers: dict[str, tuple[Mixer, ...]] = {
        FULL: (heads.attention(),),
        "conv": (short_conv(fields, fields.size(*HIDDEN)),),
    }
    return Reading(
        layers=by_kind(fields, kinds, mixers), hidden_size=heads.hidden, query_heads=heads.query_heads
    )


def recurrent_gemma(fields: Fields) -> Reading:
    """RecurrentGemma: `block_types` repeated; attention has a window."""
    count, hidden, query = layer_count(fields), fields.size(*HIDDEN), fields.size(*HEADS)
    width = fields.optional("head_dim") or divided(fields, hidden, query)
    kv = kv_heads(fields, query)
    heads = Heads(layers=count, hidden=hidden, query_heads=query, kv_heads=kv, head_dim=width)
    window = fields.size_or(2048, "attention_window_size", high=1 << 40)
    names = (
        fields.texts("block_types") or fields.texts("_block_types") or ["recurrent", "recurrent", "attention"]
    )
    rows = fields.size_or(4, "conv1d_width", low=2, high=64) - 1
    state = gated_linear_recurrence(fields.optional("lru_width") or hidden, rows)
    mixers: dict[str, tuple[Mixer, ...]] = {
        "recurrent": (state,),
        "attention": (heads.attention("sliding", window),),
        SLIDING: (heads.attention("sliding", window),),
    }
    kinds = [names[i % len(names)] for i in range(count)]
    return Reading(layers=by_kind(fields, kinds, mixers), hidden_size=hidden, query_heads=query)
