"""Mixtures of experts: which layers have one, and its parameters."""

from __future__ import annotations

from kvprobe.model.counting.blocks import feed_forward
from kvprobe.model.counting.keys import MAX_EXPERTS, Keys, Tally, Uncounted
from kvprobe.model.counting.recipe import Experts, LayerRule, Recipe
from kvprobe.model.fields import MAX_LAYERS


def everywhere(_keys: Keys, layers: int) -> list[bool]:
    return [True] * layers


def _stated(keys: Keys, layers: int) -> list[bool] | None:
    """`mlp_layer_types`, as newer files write it whatever the family."""
    kinds = keys.words("mlp_layer_types", layers)
    if kinds is None:
        return None
    if set(kinds) - {"sparse", "dense"}:
        raise Uncounted("`mlp_layer_types` holds kinds other than sparse and dense")
    return [kind == "sparse" for kind in kinds]


def after_first(*names: str, default: int | None = None) -> LayerRule:
    """The first so many layers dense, then one in `moe_layer_freq` (DeepSeek, GLM-4.5, dots, EXAONE)."""

    def rule(keys: Keys, layers: int) -> list[bool]:
        stated = _stated(keys, layers)
        if stated is not None:
            return stated
        first = keys.optional(*names, high=MAX_LAYERS)
        first = default if first is None else first
        if first is None:
            raise Uncounted(f"`{names[0]}` is missing")
        if keys.data.get("moe_layer_freq") not in (None, 1):
            raise Uncounted("`moe_layer_freq` is not 1")
        return [i >= first for i in range(layers)]

    return rule


def by_step(keys: Keys, layers: int) -> list[bool]:
    """Qwen: one layer in `decoder_sparse_step`, but for those of `mlp_only_layers`."""
    stated = _stated(keys, layers)
    if stated is not None:
        return stated
    step = keys.optional("decoder_sparse_step", high=MAX_LAYERS) or 1
    dense = set(keys.numbers("mlp_only_layers") or [])
    return [(i + 1) % step == 0 and i not in dense for i in range(layers)]


def interleaved(keys: Keys, layers: int) -> list[bool]:
    """Llama 4: `moe_layers`, or the last layer of every `interleave_moe_layer_step`."""
    chosen = keys.numbers("moe_layers")
    if chosen is not None:
        return [i in set(chosen) for i in range(layers)]
    step = keys.size("interleave_moe_layer_step", high=MAX_LAYERS)
    return [(i + 1) % step == 0 for i in range(layers)]


def periodic(keys: Keys, layers: int) -> list[bool]:
    """Jamba: one layer in `expert_layer_period`, from `expert_layer_offset` on."""
    period = keys.size("expert_layer_period", high=MAX_LAYERS)
    offset = keys.optional("expert_layer_offset", high=MAX_LAYERS)
    if offset is None:
        raise Uncounted("`expert_layer_offset` is missing")
    return [i % period == offset for i in range(layers)]


def ernie(keys: Keys, layers: int) -> list[bool]:
    """ERNIE 4.5: from `moe_layer_start_index` to the end index, one layer in `moe_layer_interval`."""
    stated = _stated(keys, layers)
    if stated is not None:
        return stated
    start, step = keys.optional("moe_layer_start_index"), keys.optional("moe_layer_interval")
    end = keys.data.get("moe_layer_end_index")
    if start is None or not step or type(end) is not int:
        raise Uncounted("`moe_layer_start_index`, `_end_index` or `_interval` is missing")
    last = layers - 1 if end == -1 else end
    return [(i + 1) % step == 0 and start <= i <= last for i in range(layers)]


def expert_layers(keys: Keys, part: Experts | None, layers: int) -> list[bool]:
    """Which layers have experts; a family whose experts are optional has none where their number is 0."""
    if part is None or (part.optional and not keys.optional(*part.count)):
        return [False] * layers
    return part.layers(keys, layers)


def experts(tally: Tally, keys: Keys, recipe: Recipe, hidden: int) -> None:
    """One layer's routed experts, router and shared expert."""
    part = recipe.experts
    assert part is not None
    count, width = keys.size(*part.count, high=MAX_EXPERTS), keys.size(*part.width)
    tally.add("experts", count * (3 if recipe.gated else 2) * hidden * width)
    tally.add("router", count * hidden)
    if part.biased:
        tally.add("other", count + count * (2 * width + hidden))
    if part.score_bias:
        tally.add("other", count)
    shared = shared_width(keys, part, width)
    if shared:
        inner = Tally()
        feed_forward(inner, keys, recipe, hidden, shared)
        tally.add("shared", inner.groups["mlp"])
        tally.add("other", inner.groups["other"])
        if part.shared_gate:
            tally.add("router", hidden)


def shared_width(keys: Keys, part: Experts, width: int) -> int:
    """The width of the shared expert; 0 where there is none."""
    if part.shared_always:
        return width
    if part.shared and not part.shared_count:
        value = keys.optional(part.shared)
        if value is None:
            raise Uncounted(f"`{part.shared}` is missing")
        return value
    if not part.shared_count:
        return 0
    if not keys.stated(part.shared_count):
        raise Uncounted(f"`{part.shared_count}` is missing")
    many = keys.optional(part.shared_count, high=1024) or 0
    return many * (keys.size(part.shared) if part.shared and many else width)
