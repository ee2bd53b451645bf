"""Hugging Face transformers: no blocks; a dynamic cache that grows, or a static one of full length.

A dynamic cache holds the tokens of each sequence (sliding layers their window); every growth copies the
layer, so that old and new exist together for a moment. A static cache (`cache_implementation="static"`)
reserves the whole length at the first call, and is what `static_cache` asks for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

from kvprobe.model.layouts import (
    attention_bytes_per_token,
    layer_bytes_per_token,
    layer_cross_bytes,
    layer_state_bytes,
)
from kvprobe.model.spec import Attention, Layer
from kvprobe.plan.engines.arithmetic import largest, spread
from kvprobe.plan.engines.settings import Setting
from kvprobe.plan.pool import ByteRange, Pool

_SEARCH_LIMIT_TOKENS = 2**40
_STATIC = "a static cache: every sequence reserves the whole length"
_DYNAMIC = "a dynamic cache: it grows by copying, so the peak is higher for a moment"


@dataclass(frozen=True, slots=True)
class Growth:
    """Bytes of one sequence on one stage, as whole numbers over `scale`: a constant, and what a token costs
    up to each window (null: for ever). Thousands of lengths are asked for."""

    scale: int
    constant: int
    growing: tuple[tuple[int | None, int], ...]

    def bytes_at(self, tokens: int) -> int:
        total = self.constant
        for window, each in self.growing:
            total += each * (tokens if window is None or tokens < window else window)
        return -(-total // self.scale)


def growths(setting: Setting) -> tuple[Growth, ...]:
    """One for each pipeline stage."""
    return tuple(_growth(setting, stage) for stage in setting.stages())


def _growth(setting: Setting, stage: tuple[Layer, ...]) -> Growth:
    tp, spec, k, v = setting.options.tp, setting.spec, setting.k, setting.v
    constant = Fraction(0)
    by_window: dict[int | None, Fraction] = {}
    for layer in stage:
        rest = Fraction(layer_bytes_per_token(layer, k, v, tp=tp))
        for mixer in layer.mixers:
            if isinstance(mixer, Attention) and mixer.kind != "cross" and mixer.window_tokens:
                each = Fraction(attention_bytes_per_token(mixer, k, v, tp=tp))
                by_window[mixer.window_tokens] = by_window.get(mixer.window_tokens, Fraction(0)) + each
                rest -= each
        by_window[None] = by_window.get(None, Fraction(0)) + rest
        constant += layer_state_bytes(layer, tp=tp, model_dtype=spec.dtype)
        constant += layer_cross_bytes(layer, k, v, tp=tp, encoder_tokens=spec.encoder_tokens)
    scale = math.lcm(constant.denominator, *(each.denominator for each in by_window.values()))
    growing = tuple((window, int(each * scale)) for window, each in by_window.items())
    return Growth(scale, int(constant * scale), growing)


@dataclass(frozen=True, slots=True)
class Sequences:
    """Sequences side by side: each takes its tokens' bytes, or in a static cache those of full length."""

    setting: Setting
    static: bool
    stages: tuple[Growth, ...]

    def bytes_at(self, tokens: int) -> int:
        """Of one sequence, on the largest stage."""
        return max(stage.bytes_at(tokens) for stage in self.stages)

    def reserved(self, tokens: int) -> int:
        length = self.setting.max_model_len
        return max(1, self.bytes_at(length if self.static and length else tokens))

    def holds(self, size: int, tokens: int) -> int:
        length = self.setting.max_model_len
        if tokens <= 0 or (self.static and length and tokens > length):
            return 0
        return max(0, size) // self.reserved(tokens)

    def longest(self, size: int) -> int:
        return largest(lambda tokens: self.bytes_at(tokens) <= size, _SEARCH_LIMIT_TOKENS)

    @property
    def bounded(self) -> bool:
        """Windows and states alone: a sequence of any length takes the same."""
        half, whole = (self.bytes_at(_SEARCH_LIMIT_TOKENS // part) for part in (2, 1))
        return half == whole


def transformers_pool(setting: Setting, available: ByteRange) -> Pool:
    """What `generate` can hold in `available` bytes: sequences side by side, of equal length."""
    static = setting.options.static_cache is True
    sequences = Sequences(setting, static, growths(setting))
    length = setting.max_model_len
    tokens, tokens_range = spread(available, sequences.longest)
    unbounded = sequences.bounded
    pool = Pool(
        engine="transformers",
        version=setting.version.text,
        fits=tokens > 0 and (length is None or sequences.holds(available.nominal, length) >= 1),
        available_bytes=available.nominal,
        tokens=None if unbounded else tokens,
        tokens_range=None if unbounded else tokens_range,
        max_model_len=length,
        max_requests=setting.options.max_num_seqs,
        estimated_max_model_len=None if unbounded else tokens,
        estimated_max_model_len_range=None if unbounded else tokens_range,
        needed_bytes=sequences.reserved(length) if length else None,
        assumptions=(_STATIC if static else _DYNAMIC,),
        holds=lambda asked: sequences.holds(available.nominal, asked),
    )
    return pool if length is None else _at_length(pool, available)


def _at_length(pool: Pool, available: ByteRange) -> Pool:
    """Sequences of the longest kind, as a fraction."""
    needed = pool.needed_bytes or 1
    nominal, low, high = (max(0, size) / needed for size in (available.nominal, available.lo, available.hi))
    return replace(pool, max_concurrency=nominal, max_concurrency_range=(low, high))
