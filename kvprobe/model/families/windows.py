"""Families whose layers differ in reach: sliding windows, chunks, and full attention between them.

LAYOUTS rows 6, 7, 9. The list `layer_types` decides where it is given; else the pattern that the
family's configuration class builds.
"""

from __future__ import annotations

from collections.abc import Callable

from kvprobe.model.families.geometry import (
    POSITIONS,
    Heads,
    Reading,
    by_kind,
    read_heads,
    uniform,
    window_tokens,
)
from kvprobe.model.fields import MAX_LAYERS, MAX_TOKENS, Fields
from kvprobe.model.spec import Layer, Mixer

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
_SHORT = {"full": FULL, "attention": FULL, "global": FULL, "sliding": SLIDING, "local": SLIDING}


def layer_kinds(fields: Fields, count: int, pattern: Callable[[int], str], said: str) -> list[str]:
    """The kind of each layer: `layer_types`, else `pattern` of the layer's index, and said so."""
    kinds = fields.texts("layer_types", length=count)
    if kinds is not None:
        return [_SHORT.get(kind, kind) for kind in kinds]
    fields.assume(f"layer_types is not in the configuration: {said}, as {fields.owner} builds it")
    return [pattern(i) for i in range(count)]


def every(period: int, offset: int = -1) -> Callable[[int], str]:
    """Full attention at one layer of each `period`, sliding at the others."""
    return lambda i: FULL if (i - offset) % period == 0 else SLIDING


def windowed(heads: Heads, fields: Fields, kinds: list[str], window: int | None) -> tuple[Layer, ...]:
    """Layers of one geometry that are full or sliding."""
    if SLIDING in kinds and window is None:
        fields.missing("sliding_window", "some layers have a sliding window")
    mixers: dict[str, tuple[Mixer, ...]] = {FULL: (heads.attention(),)}
    if window is not None:
        mixers[SLIDING] = (heads.attention("sliding", window),)
    return by_kind(fields, kinds, mixers)


def _reading(heads: Heads, layers: tuple[Layer, ...]) -> Reading:
    return Reading(layers=layers, hidden_size=heads.hidden, query_heads=heads.query_heads)


def alternating(period: int, *, default_window: int | None, offset: int = -1) -> Callable[[Fields], Reading]:
    """One full layer in `period`; `sliding_window_pattern` in the configuration overrides the period."""

    def read(fields: Fields) -> Reading:
        heads = read_heads(fields)
        step, first = _period(fields, period), offset
        kinds = layer_kinds(fields, heads.layers, every(step, first), f"one full layer in {step}")
        window = _window(fields, default_window, needed=SLIDING in kinds)
        if window is None:
            kinds = [FULL] * heads.layers
        return _reading(heads, windowed(heads, fields, kinds, window))

    return read


def _period(fields: Fields, period: int) -> int:
    """`sliding_window_pattern` is a number, or a word such as LLLG whose length is the number (EXAONE 4)."""
    for key in ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"):
        if isinstance(fields.data.get(key), str):
            word = fields.text(key) or ""
            if set(word) - set("LG") or not word.endswith("G") or word.count("G") != 1:
                fields.wrong(
                    key, "is no pattern such as LLLG", "write L for sliding layers and one G at the end"
                )
            return len(word)
        if (value := fields.optional(key, high=MAX_LAYERS)) is not None:
            return value
    return period


def _window(fields: Fields, default: int | None, *, needed: bool = True) -> int | None:
    window = window_tokens(fields, "sliding_window", "sliding_window_size", "window_size")
    if window is None and "sliding_window" not in fields.data and default is not None and needed:
        fields.assume(f"sliding_window is not in the configuration: {default}, the default of {fields.owner}")
        return default
    return window


def all_sliding(default_window: int | None) -> Callable[[Fields], Reading]:
    """Every layer has the window, or none has when `sliding_window` is null (Mistral, Mixtral, Phi-3)."""

    def read(fields: Fields) -> Reading:
        heads = read_heads(fields)
        window = _window(fields, default_window)
        if fields.has("layer_types"):
            kinds = layer_kinds(fields, heads.layers, lambda _: FULL, "")
            return _reading(heads, windowed(heads, fields, kinds, window))
        longest = fields.optional(*POSITIONS, high=MAX_TOKENS)
        if window is not None and longest is not None and window >= longest:
            fields.assume(f"sliding_window {window} reaches over all {longest} positions: full attention")
            window = None
        mixer = heads.attention() if window is None else heads.attention("sliding", window)
        return _reading(heads, uniform(heads.layers, mixer))

    return read


def switched(fields: Fields) -> Reading:
    """Qwen2, Qwen3: a window only with `use_sliding_window`, and only from layer `max_window_layers` on."""
    heads = read_heads(fields)
    if not fields.flag(False, "use_sliding_window"):
        if fields.has("sliding_window"):
            fields.assume("use_sliding_window is not true: sliding_window has no effect, all layers are full")
        return _reading(heads, uniform(heads.layers, heads.attention()))
    window = _window(fields, 4096)
    first = fields.size_or(28, "max_window_layers", low=0, high=MAX_LAYERS)
    said = f"sliding from layer {first} on"
    kinds = layer_kinds(fields, heads.layers, lambda i: SLIDING if i >= first else FULL, said)
    return _reading(heads, windowed(heads, fields, kinds, window))


def by_layer_types(default_window: int | None) -> Callable[[Fields], Reading]:
    """Full attention unless `layer_types` says otherwise."""

    def read(fields: Fields) -> Reading:
        heads = read_heads(fields)
        if not fields.has("layer_types"):
            return _reading(heads, uniform(heads.layers, heads.attention()))
        kinds = layer_kinds(fields, heads.layers, lambda _: FULL, "")
        window = _window(fields, default_window, needed=SLIDING in kinds)
        return _reading(heads, windowed(heads, fields, kinds, window))

    return read


def llama4(fields: Fields) -> Reading:
    """Llama 4: chunked layers where RoPE is used, full ones (NoPE) each `no_rope_layer_interval`th."""
    heads = read_heads(fields)
    chunk = fields.optional("attention_chunk_size", high=1 << 40)
    if chunk is None and "attention_chunk_size" not in fields.data:
        chunk = 8192
        fields.assume(
            f"attention_chunk_size is not in the configuration: {chunk}, the default of {fields.owner}"
        )
    rope = fields.sizes("no_rope_layers", length=heads.layers) if fields.data.get("no_rope_layers") else None
    step = fields.size_or(4, "no_rope_layer_interval", high=MAX_LAYERS) if rope is None else 4

    def kind(i: int) -> str:
        chunked = rope[i] if rope is not None else (i + 1) % step
        return CHUNKED if chunked and chunk is not None else FULL

    kinds = layer_kinds(fields, heads.layers, kind, "chunked except where RoPE is off")
    mixers: dict[str, tuple[Mixer, ...]] = {FULL: (heads.attention(),)}
    if chunk is not None:
        mixers[CHUNKED] = (heads.attention("chunked", chunk),)
    return _reading(heads, by_kind(fields, kinds, mixers))


def gpt_neo(fields: Fields) -> Reading:
    """GPT-Neo: global and local layers by `attention_layers`, or alternating; multi-head."""
    heads = read_heads(fields)
    window = fields.size_or(256, "window_size", high=1 << 40)
    names = fields.texts("attention_layers", length=heads.layers)
    if names is None:
        fields.assume("attention_layers is not in the configuration: global and local layers alternate")
        names = ["global" if i % 2 == 0 else "local" for i in range(heads.layers)]
    kinds = [_SHORT.get(name, name) for name in names]
    return _reading(heads, windowed(heads, fields, kinds, window))


def smollm3(fields: Fields) -> Reading:
    """SmolLM 3: with `use_sliding_window`, the layers without RoPE have the window."""
    heads = read_heads(fields)
    window = window_tokens(fields, "sliding_window")
    if not fields.flag(False, "use_sliding_window") or window is None:
        return by_layer_types(None)(fields)
    step = fields.size_or(4, "no_rope_layer_interval", high=MAX_LAYERS)
    rope = fields.sizes("no_rope_layers", length=heads.layers) or [
        (i + 1) % step for i in range(heads.layers)
    ]
    kinds = layer_kinds(
        fields, heads.layers, lambda i: FULL if rope[i] else SLIDING, "sliding where RoPE is off"
    )
    return _reading(heads, windowed(heads, fields, kinds, window))
