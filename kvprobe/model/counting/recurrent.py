"""The parameters of recurrent layers: Gated DeltaNet, Mamba-2, Mamba, short convolutions."""

from __future__ import annotations

from kvprobe.model.counting.keys import Flag, Keys, Tally, Uncounted
from kvprobe.model.counting.recipe import Recipe
from kvprobe.model.spec import State, StatePart


def state(tally: Tally, keys: Keys, recipe: Recipe, hidden: int, layer: State, family: str) -> None:
    """One recurrent layer, by its kind. Raises Uncounted for a kind whose weights are not known."""
    if layer.kind == "gated_delta_net" and family.startswith("qwen3"):
        _delta_net(tally, keys, hidden, layer)
    elif layer.kind == "mamba2":
        _mamba2(tally, keys, recipe, hidden, layer)
    elif layer.kind == "mamba1":
        _mamba1(tally, keys, hidden, layer, inner_norms=family == "jamba")
    elif layer.kind == "short_conv":
        _short_conv(tally, keys, hidden, layer)
    else:
        raise Uncounted(f"the weights of {layer.kind} layers are not counted")


def _part(layer: State, name: str) -> StatePart:
    found = next((part for part in layer.parts if part.name == name), None)
    if found is None:
        raise Uncounted(f"the {layer.kind} layers have no {name} part")
    return found


def _conv(layer: State) -> tuple[int, int]:
    """Channels and kernel width of the convolution."""
    part = _part(layer, "conv")
    assert part.rows is not None
    return part.elements // part.rows, part.rows + 1


def _delta_net(tally: Tally, keys: Keys, hidden: int, layer: State) -> None:
    """q, k, v, gate z, and one a and b per value head; convolution over q, k and v; norm of a head."""
    heads, width = layer.divisors[1], keys.size("linear_value_head_dim")
    channels, kernel = _conv(layer)
    value = heads * width
    tally.add("state", hidden * (channels + value + 2 * heads) + value * hidden)
    tally.add("other", channels * kernel + 2 * heads + width)


def _mamba2(tally: Tally, keys: Keys, recipe: Recipe, hidden: int, layer: State) -> None:
    """Gate, convolved part and one step per head in; A, D and the step's bias per head; norm; out."""
    heads = layer.divisors[0]
    channels, kernel = _conv(layer)
    part = _part(layer, "conv")
    assert part.rows is not None
    inner = channels - part.groups * part.group_elements // part.rows
    tally.add("state", hidden * (inner + channels + heads) + inner * hidden)
    tally.add("other", channels * kernel + 3 * heads)
    if keys.flag(recipe.state_norm):
        tally.add("other", inner)
    if keys.flag(Flag("mamba_conv_bias" if "mamba_conv_bias" in keys.data else "use_conv_bias", True)):
        tally.add("other", channels)
    if keys.flag(Flag("mamba_proj_bias", False)):
        tally.add("other", inner + channels + heads + hidden)


def _mamba1(tally: Tally, keys: Keys, hidden: int, layer: State, *, inner_norms: bool) -> None:
    """Mamba: gate and x in, the step through `dt_rank`, B and C, A and D; Jamba norms step, B and C."""
    inner, kernel = _conv(layer)
    wide = _part(layer, "ssm").elements // inner
    rank = keys.data.get("mamba_dt_rank", keys.data.get("time_step_rank"))
    if rank is None or rank == "auto":
        rank = -(-hidden // 16)
    if type(rank) is not int or not 0 < rank <= 1 << 20:
        raise Uncounted("the rank of the time step is no size")
    tally.add("state", hidden * 2 * inner + inner * (rank + 2 * wide) + rank * inner + inner * hidden)
    tally.add("other", inner * kernel + inner + inner * wide + inner)
    if inner_norms:
        tally.add("other", rank + 2 * wide)
    if keys.flag(Flag("mamba_conv_bias" if inner_norms else "use_conv_bias", True)):
        tally.add("other", inner)
    if keys.flag(Flag("mamba_proj_bias" if inner_norms else "use_bias", False)):
        tally.add("other", 2 * inner + hidden)


def _short_conv(tally: Tally, keys: Keys, hidden: int, layer: State) -> None:
    """LFM2: three vectors in, a depthwise convolution, one out."""
    channels, kernel = _conv(layer)
    tally.add("state", hidden * 3 * channels + channels * hidden)
    tally.add("other", channels * kernel)
    if keys.flag(Flag("conv_bias", False)):
        tally.add("other", channels + 3 * channels + hidden)
