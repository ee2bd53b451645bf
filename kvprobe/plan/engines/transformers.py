"""Hugging Face transformers: no blocks; a dynamic cache that grows, or a static one of full length.

A dynamic cache holds the tokens of each sequence (sliding layers their window); every growth copies the
layer, so that old and new exist together for a moment. A static cache (`cache_implementation="static"`)
reserves the whole length at the first call, and is what `static_cache` asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from kvprobe.model.layouts import (
    attention_bytes_per_token,
    layer_bytes_per_token,
    layer_cross_bytes,
    layer_state_bytes,
)
from kvprobe.model.spec import Attention, Layer
from kvprobe.plan.engines.arithmetic import largest, spread, whole_bytes
from kvprobe.plan.engines.settings import Setting
from kvprobe.plan.pool import ByteRange, Pool

_SEARCH_LIMIT_TOKENS = 2**40
_STATIC = "a static cache: every sequence reserves the whole length"
_DYNAMIC = "a dynamic cache: it grows by copying, so the peak is higher for a moment"


def sequence_bytes(setting: Setting, tokens: int) -> int:
    """Bytes of one sequence of `tokens` tokens on the largest stage."""
    return max(
        whole_bytes(sum((_layer_bytes(layer, setting, tokens) for layer in stage), Fraction(0)))
        for stage in setting.stages()
    )


def _layer_bytes(layer: Layer, setting: Setting, tokens: int) -> Fraction:
    tp, spec = setting.options.tp, setting.spec
    total = layer_bytes_per_token(layer, setting.k, setting.v, tp=tp) * tokens
    for mixer in layer.mixers:
        if isinstance(mixer, Attention) and mixer.kind != "cross" and mixer.window_tokens:
            beyond = max(0, tokens - mixer.window_tokens)
            total -= attention_bytes_per_token(mixer, setting.k, setting.v, tp=tp) * beyond
    total += layer_state_bytes(layer, tp=tp, model_dtype=spec.dtype)
    return total + layer_cross_bytes(layer, setting.k, setting.v, tp=tp, encoder_tokens=spec.encoder_tokens)


@dataclass(frozen=True, slots=True)
class Sequences:
    """Sequences side by side: each takes its tokens' bytes, or in a static cache those of full length."""

    setting: Setting
    static: bool

    def reserved(self, tokens: int) -> int:
        length = self.setting.max_model_len
        return max(1, sequence_bytes(self.setting, length if self.static and length else tokens))

    def holds(self, size: int, tokens: int) -> int:
        length = self.setting.max_model_len
        if tokens <= 0 or (self.static and length and tokens > length):
            return 0
        return max(0, size) // self.reserved(tokens)

    def longest(self, size: int) -> int:
        return largest(lambda tokens: sequence_bytes(self.setting, tokens) <= size, _SEARCH_LIMIT_TOKENS)

    @property
    def bounded(self) -> bool:
        """Windows and states alone: a sequence of any length takes the same."""
        half, whole = (sequence_bytes(self.setting, _SEARCH_LIMIT_TOKENS // part) for part in (2, 1))
        return half == whole


def transformers_pool(setting: Setting, available: ByteRange) -> Pool:
    """What `generate` can hold in `available` bytes: sequences side by side, of equal length."""
    static = setting.options.static_cache is True
    sequences = Sequences(setting, static)
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
