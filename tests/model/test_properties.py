"""What must hold for any geometry: monotone growth, bounds under a split, the whole as the sum of parts."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.model.dtypes import KV_DTYPE_NAMES
from kvprobe.model.layouts import (
    bytes_at,
    layer_bytes_per_token,
    layer_state_bytes,
    parts,
    stage_layers,
    stage_sizes,
    tp_problem,
)
from tests.model import configs as c

_EXAMPLES = settings(max_examples=60, deadline=None)

models = st.sampled_from(
    [
        c.LLAMA_3_8B,
        c.GEMMA_3_27B,
        c.GEMMA_4_E4B,
        c.LLAMA_4_SCOUT,
        c.DEEPSEEK_R1,
        c.DEEPSEEK_V32,
        c.QWEN35_35B,
        c.NEMOTRON_NANO_9B,
        c.WHISPER_LARGE_V3,
        c.GPT_OSS_20B,
    ]
)
dtypes = st.sampled_from([name for name in KV_DTYPE_NAMES if name != "fp8_ds_mla"])


@given(models, dtypes, st.integers(0, 200_000), st.integers(0, 200_000))
@_EXAMPLES
def test_more_tokens_never_cost_less(config: dict[str, Any], dtype: str, one: int, other: int) -> None:
    fewer, more = sorted((one, other))
    assert c.sequence_bytes(config, fewer, dtype) <= c.sequence_bytes(config, more, dtype)


@given(models, dtypes, st.sampled_from([2, 4, 8]), st.integers(1, 50_000))
@_EXAMPLES
def test_a_split_never_goes_below_its_share(config: dict[str, Any], dtype: str, tp: int, tokens: int) -> None:
    spec = c.read(config)
    whole, share = c.sequence_bytes(config, tokens, dtype), c.sequence_bytes(config, tokens, dtype, tp=tp)
    assert share <= whole
    if tp_problem(spec, tp) is None:
        assert share >= Fraction(whole, tp)


@given(models, dtypes, st.integers(0, 50_000))
@_EXAMPLES
def test_layers_add_up(config: dict[str, Any], dtype: str, tokens: int) -> None:
    spec = c.read(config)
    k, v = c.formats(spec, dtype)
    found = parts(spec, k, v, tp=1)
    per_token = sum(layer_bytes_per_token(layer, k, v, tp=1) for layer in spec.owning())
    assert per_token == sum(p.bytes_per_token or 0 for p in found)
    states = sum(layer_state_bytes(layer, tp=1, model_dtype=spec.dtype) for layer in spec.owning())
    assert states == sum(p.bytes or 0 for p in found if p.kind != "cross")
    assert bytes_at(spec, tokens, k, v) >= sum(p.bytes_at(tokens) for p in found)


@given(models, st.integers(1, 8))
@_EXAMPLES
def test_stages_add_up(config: dict[str, Any], pp: int) -> None:
    spec = c.read(config)
    stages = [stage_layers(spec, pp=pp, stage=stage) for stage in range(pp)]
    assert tuple(layer for stage in stages for layer in stage) == spec.layers
    sizes = stage_sizes(len(spec.layers), pp)
    assert max(sizes) - min(sizes) <= 1
    whole = sum(c.sequence_bytes(config, 1000, pp=pp, stage=stage) for stage in range(pp))
    assert abs(whole - c.sequence_bytes(config, 1000)) <= pp


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 256), st.sampled_from([1, 2, 4, 8, 16]))
@_EXAMPLES
def test_kept_heads_are_those_a_rank_needs(layers: int, kv: int, width: int, tp: int) -> None:
    # Independent count: spread the query heads over the ranks and collect the KV heads they read.
    query = kv * 16
    spec = c.read(c.decoder("llama", layers, 64, query, num_key_value_heads=kv, head_dim=width))
    if tp_problem(spec, tp) is not None:
        return
    per_rank = query // tp
    needed = {head // 16 for head in range(per_rank)}
    k, v = c.formats(spec)
    assert layer_bytes_per_token(spec.layers[0], k, v, tp=tp) == len(needed) * 2 * width * 2
