"""Hugging Face transformers: no blocks; a dynamic cache that grows, or a static one of full length.

A dynamic cache holds the tokens of each sequence (sliding layers their window); every growth copies the
layer, so that old and new exist together for a moment. A static cache (`cache_implementation="static"`)
reserves the whole length at the first call, and is what `static_cache` asks for.
"""

from __future__ import annotations

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


def transformers_pool(setting: Setting, available: ByteRange) -> Pool:
    """What `generate` can hold in `available` bytes: sequences side by side, of equal length."""
    static = setting.options.static_cache is True
    length = setting.max_model_len

    def reserved(tokens: int) -> int:
        """Bytes of one sequence: of its tokens, or of the whole length in a static cache."""
        return sequence_bytes(setting, length if static and length else tokens)

    def longest(size: int) -> int:
        return largest(lambda tokens: sequence_bytes(setting, tokens) <= size, _SEARCH_LIMIT_TOKENS)

    def holds(tokens: int) -> int:
        if tokens <= 0 or (static and length and tokens > length):
            return 0
        return max(0, available.nominal) // max(1, reserved(tokens))

    def concurrency(size: int) -> float:
        return max(0, size) / max(1, sequence_bytes(setting, length)) if length else 0.0

    tokens, tokens_range = spread(available, longest)
    return Pool(
        engine="transformers",
        version=setting.version.text,
        fits=tokens > 0 and (length is None or holds(length) >= 1),
        available_bytes=available.nominal,
        tokens=tokens,
        tokens_range=tokens_range,
        max_model_len=length,
        max_concurrency=concurrency(available.nominal) if length else None,
        max_concurrency_range=(concurrency(available.lo), concurrency(available.hi)) if length else None,
        max_requests=setting.options.max_num_seqs,
        estimated_max_model_len=tokens,
        estimated_max_model_len_range=tokens_range,
        needed_bytes=reserved(length) if length else None,
        assumptions=(
            "a static cache: every sequence reserves the whole length"
            if static
            else "a dynamic cache: it grows by copying, so the peak is higher for a moment",
        ),
        holds=holds,
    )
