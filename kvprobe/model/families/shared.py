"""Families in which some layers reuse the cache of an earlier one, or global layers have another shape.

LAYOUTS rows 7 and 12: Gemma 3n, Gemma 4, YOCO (Phi-4-mini-flash), cross-layer attention (Hunyuan).
"""

from __future__ import annotations

from dataclasses import replace

from kvprobe.model.families.geometry import HIDDEN, Heads, Reading, by_kind, read_heads
from kvprobe.model.families.windows import FULL, SLIDING, every, layer_kinds
from kvprobe.model.fields import MAX_LAYERS, Fields
from kvprobe.model.spec import Attention, Layer, Mixer, State, StatePart


def share_tail(fields: Fields, layers: tuple[Layer, ...], kinds: list[str], shared: int) -> tuple[Layer, ...]:
    """The last `shared` layers reuse the last layer of their own kind that keeps a cache."""
    if not shared:
        return layers
    if shared >= len(layers):
        fields.wrong(
            "num_kv_shared_layers",
            f"is {shared} of {len(layers)} layers: no layer would own a cache",
            "this is a draft model that reads another model's cache, or the number is wrong",
        )
    first = len(layers) - shared
    last = {kind: i for i, kind in enumerate(kinds[:first])}
    for i, kind in enumerate(kinds[first:], start=first):
        if kind not in last:
            fields.wrong(
                "layer_types",
                f"has a {kind[:40]!r} layer ({i}) that shares a cache, but no earlier layer of that kind",
                "correct layer_types or num_kv_shared_layers",
            )
    tail = tuple(replace(layer, shares_with=last[kinds[layer.index]]) for layer in layers[first:])
    return layers[:first] + tail


def gemma3n(fields: Fields) -> Reading:
    """Gemma 3n: one full layer in five; the last `num_kv_shared_layers` reuse earlier caches."""
    heads = read_heads(fields)
    window = fields.size_or(512, "sliding_window", high=1 << 40)
    kinds = layer_kinds(fields, heads.layers, every(5), "one full layer in 5")
    mixers: dict[str, tuple[Mixer, ...]] = {
        FULL: (heads.attention(),),
        SLIDING: (heads.attention("sliding", window),),
    }
    shared = fields.size_or(15, "num_kv_shared_layers", low=0, high=MAX_LAYERS)
    layers = share_tail(fields, by_kind(fields, kinds, mixers), kinds, shared)
    return Reading(layers=layers, hidden_size=heads.hidden, query_heads=heads.query_heads)


def gemma4(fields: Fields) -> Reading:
    """Gemma 4: global layers have `global_head_dim` and, with `attention_k_eq_v`, their own KV heads.

    `attention_k_eq_v` makes K and V of one weight; the engines store both all the same (LAYOUTS).
    """
    heads = read_heads(fields)
    window = fields.size_or(512, "sliding_window", high=1 << 40)
    kinds = layer_kinds(fields, heads.layers, every(6), "one full layer in 6")
    if kinds[-1] != FULL:
        fields.assume("the last layer is full attention, as the configuration class sets it")
        kinds[-1] = FULL
    local = heads.attention("sliding", window)
    mixers: dict[str, tuple[Mixer, ...]] = {FULL: (_gemma4_global(fields, heads),), SLIDING: (local,)}
    shared = fields.optional("num_kv_shared_layers", low=0, high=MAX_LAYERS) or 0
    layers = share_tail(fields, by_kind(fields, kinds, mixers), kinds, shared)
    return Reading(layers=layers, hidden_size=heads.hidden, query_heads=heads.query_heads)


def _gemma4_global(fields: Fields, heads: Heads) -> Attention:
    width = fields.size_or(512, "global_head_dim")
    count = heads.kv_heads
    given = fields.optional("num_global_key_value_heads")
    if fields.flag(given is not None, "attention_k_eq_v"):
        count = given or count
        fields.assume("attention_k_eq_v: K and V are both stored, as vLLM and llama.cpp do")
    return replace(heads.attention(), kv_heads=count, k_dim=width, v_dim=width)


def hunyuan(fields: Fields) -> Reading:
    """Hunyuan-Large: with `use_cla`, each group of `cla_share_factor` layers keeps one cache."""
    heads = read_heads(fields)
    layers = tuple(Layer(index=i, mixers=(heads.attention(),)) for i in range(heads.layers))
    if fields.flag(False, "use_cla"):
        factor = fields.size_or(2, "cla_share_factor", high=MAX_LAYERS)
        layers = tuple(
            replace(layer, shares_with=layer.index - layer.index % factor if layer.index % factor else None)
            for layer in layers
        )
    return Reading(layers=layers, hidden_size=heads.hidden, query_heads=heads.query_heads)


def phi4flash(fields: Fields) -> Reading:
    """Phi-4-mini-flash (SambaY): Mamba and sliding layers, a full one, then layers that reuse it (YOCO)."""
    heads = read_heads(fields)
    half, step = heads.layers // 2, fields.size_or(2, "mb_per_layer", high=MAX_LAYERS)
    window = _flash_window(fields)
    inner = fields.size_or(2, "mamba_expand", high=64) * fields.size(*HIDDEN)
    state, rows = fields.size_or(16, "mamba_d_state"), fields.size_or(4, "mamba_d_conv", low=2, high=64) - 1
    mamba = State(
        kind="mamba1",
        parts=(
            StatePart(name="conv", elements=inner * rows, rows=rows),
            StatePart(name="ssm", elements=inner * state),
        ),
        divisors=(inner,),
    )
    layers: list[Layer] = []
    for i in range(heads.layers):
        recurrent = i % step == 0
        if i >= half + 2:
            source = None if recurrent else half + 1
            layers.append(
                Layer(index=i, mixers=() if recurrent else (heads.attention(),), shares_with=source)
            )
        elif recurrent:
            layers.append(Layer(index=i, mixers=(mamba,)))
        else:
            attention = heads.attention() if i >= half else heads.attention("sliding", window)
            layers.append(Layer(index=i, mixers=(attention,)))
    return Reading(layers=tuple(layers), hidden_size=heads.hidden, query_heads=heads.query_heads)


def _flash_window(fields: Fields) -> int:
    value = fields.data.get("sliding_window")
    if isinstance(value, list):
        value = next((entry for entry in value if entry is not None), None)
    inner = Fields({"sliding_window": value}, source=fields.source, assumptions=fields.assumptions)
    return inner.size_or(512, "sliding_window", high=1 << 40)
