"""SGLang's two pools, llama.cpp's cells, TensorRT-LLM's rounding, and the plain engines, by counting."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.plan.engines import pool_for
from kvprobe.plan.pool import ByteRange, EngineOptions, Pool
from tests.plan.engines.models import EVERY, full, latent, model

GIB = 2**30
FULL, SLIDING = 4 * 4096, 20 * 4096  # bytes a token of GEMMA's layers


def pool(engine: str, name: str, size: int | None, version: str | None = None, **options: object) -> Pool:
    available = None if size is None else ByteRange.of(size)
    return pool_for(engine, version, EVERY[name], EngineOptions(**options), available)  # type: ignore[arg-type]


@settings(max_examples=80, deadline=None)
@given(size=st.integers(2**20, 2**33), page=st.sampled_from([1, 16, 64]), percent=st.integers(1, 100))
def test_sglangs_two_pools_use_the_budget_and_no_more(size: int, page: int, percent: int) -> None:
    ratio = Fraction(percent, 100)
    layout = pool("sglang", "gemma", size, block_size=page, swa_full_tokens_ratio=percent / 100)
    tokens, small = layout.full_tokens or 0, layout.swa_tokens or 0
    assert tokens * FULL + small * SLIDING <= size
    assert tokens % page == small % page == 0
    assert small <= ratio * tokens < small + page
    # A page more, or what the first rounding (to pages of all layers) may have cost, and it is too much.
    lost = (FULL + SLIDING) * page
    more = tokens + page + 1
    assert more * (FULL + ratio * SLIDING) > size - lost


@settings(max_examples=60, deadline=None)
@given(size=st.integers(2**26, 2**33), ratio=st.sampled_from([0.1, 0.9, 2.0]))
def test_sglangs_states_take_their_share_first(size: int, ratio: float) -> None:
    layout = pool("sglang", "hybrid", size, mamba_full_memory_ratio=ratio)
    state = 12 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
    share = Fraction(str(ratio)) / (1 + Fraction(str(ratio)))
    slots = layout.state_slots or 0
    assert slots * state <= size * share < (slots + 1) * state
    assert layout.tokens == (size - slots * state) // (4 * 2048)
    assert layout.requests_of(1) <= slots // 3


def test_sglangs_states_by_options() -> None:
    assert pool("sglang", "hybrid", GIB, state_slots=7).state_slots == 7
    bound = pool("sglang", "hybrid", GIB, prefix_caching=False, max_running_requests=9)
    assert (bound.state_slots, bound.requests_of(1)) == (9, 9)
    drafting = {"speculative_tokens": 2, "max_running_requests": 4}
    new = pool("sglang", "hybrid", GIB, version="0.5.9", **drafting)
    old = pool("sglang", "hybrid", GIB, version="0.5.6", **drafting)
    assert (new.state_slots or 0) > (old.state_slots or 0)


def test_sglang_counts_the_indexer_since_october_2025() -> None:
    cell = 6 * (656 + 132)
    assert pool("sglang", "sparse", GIB, version="2025-11", kv_dtype_k="fp8").tokens == GIB // cell // 64 * 64
    old = pool("sglang", "sparse", GIB, version="2025-10 main before the PR", kv_dtype_k="fp8")
    assert old.tokens == GIB // (6 * 656) // 64 * 64
    assert any("indexer" in note for note in old.assumptions)


def count_cells(context: int, slots: int, unified: bool, window: int, ubatch: int) -> tuple[int, int]:
    """llama.cpp's cells by stepping up in blocks of 256."""

    def padded(cells: int) -> int:
        total = 0
        while total < cells:
            total += 256
        return total

    streams = [padded(context)] if unified else [padded(padded(context) // slots)] * slots
    sharing = slots if unified else 1
    return sum(streams), sum(padded(min(cells, window * sharing + ubatch)) for cells in streams)


@settings(max_examples=100, deadline=None)
@given(
    context=st.integers(1, 70_000),
    slots=st.integers(1, 9),
    unified=st.booleans(),
    ubatch=st.sampled_from([64, 512, 2048]),
)
def test_llama_cpp_allocates_cells_by_stream(context: int, slots: int, unified: bool, ubatch: int) -> None:
    layout = pool("llama.cpp", "gemma", None, ctx=context, parallel=slots, kv_unified=unified, ubatch=ubatch)
    base, small = count_cells(context, slots, unified, 1024, ubatch)
    assert layout.parts_bytes == {"base": base * FULL, "sliding": small * SLIDING}
    assert (layout.tokens, layout.swa_tokens) == (base, small)
    whole = pool("llama.cpp", "gemma", None, ctx=context, parallel=slots, kv_unified=unified, swa_full=True)
    assert whole.parts_bytes == {"base": base * FULL, "sliding": base * SLIDING}


def test_llama_cpp_requests_and_the_largest_context() -> None:
    split = pool("llama.cpp", "llama", GIB, ctx=8192, parallel=4, kv_unified=False)
    assert (split.requests_of(2048), split.requests_of(2049), split.requests_of(0)) == (4, 0, 0)
    shared = pool("llama.cpp", "llama", GIB, ctx=8192, parallel=4)
    assert (shared.requests_of(2048), shared.requests_of(2049), shared.requests_of(8192)) == (4, 3, 1)
    best = shared.estimated_max_model_len or 0
    assert pool("llama.cpp", "llama", GIB, ctx=best, parallel=4).fits
    assert not pool("llama.cpp", "llama", GIB, ctx=best + 256, parallel=4).fits


def test_llama_cpp_before_windows_had_a_cache_of_their_own() -> None:
    for version in ("b5000", "2025-04", "ik_llama 2026-04"):
        layout = pool("llama.cpp", "gemma", None, version=version, ctx=4096)
        assert layout.parts_bytes == {"base": 4096 * (FULL + SLIDING)}


def test_llama_cpp_and_mla() -> None:
    spec = model(*[latent()] * 2, family="deepseek_v3")

    def base(version: str, **options: object) -> int:
        asked = EngineOptions(ctx=256, **options)  # type: ignore[arg-type]
        layout = pool_for("llama.cpp", version, spec, asked, None)
        return (layout.parts_bytes or {})["base"] // 256 // 2

    assert base("2026-09") == 576 * 2
    assert base("2025-11") == (576 + 512) * 2
    assert base("2025-02") == 16 * (192 + 128) * 2
    assert base("2026-09", latent_cache=False) == 16 * (192 + 128) * 2
    assert base("2026-09", kv_dtype_k="q8_0") == 576 * 34 // 32


@settings(max_examples=60, deadline=None)
@given(size=st.integers(0, 2**30), block=st.sampled_from([16, 32, 64, 128]))
def test_trtllm_rounds_tokens_up_to_a_block(size: int, block: int) -> None:
    layout = pool("trtllm", "llama", size, block_size=block)
    tokens = size // (8 * 4096)
    assert layout.num_blocks == next(
        count for count in range(tokens // block, tokens + 2) if count * block >= tokens
    )


@pytest.mark.parametrize(("engine", "block"), [("trtllm", 32), ("lmdeploy", 64), ("reference", 16)])
def test_plain_blocks(engine: str, block: int) -> None:
    layout = pool(engine, "llama", GIB, max_model_len=4096)
    null = 1 if engine == "reference" else 0
    assert (layout.block_size, layout.null_blocks) == (block, null)
    assert layout.num_blocks == GIB // (8 * 4096 * block)
    assert layout.requests_of(block + 1) == ((layout.num_blocks or 0) - null) // 2
    assert pool("lmdeploy", "llama", GIB, version="0.2.1").block_size == 128
    assert pool("trtllm", "llama", GIB, version="0.13.0.dev2024").block_size == 64


def test_lmdeploys_int8_keeps_a_scale_and_a_zero() -> None:
    layout = pool("lmdeploy", "llama", GIB, kv_dtype_k="int8", kv_dtype_v="int8")
    assert layout.block_bytes == 64 * 8 * 8 * 2 * (128 + 2 * 2)


def test_transformers_caches() -> None:
    grows = pool("transformers", "gemma", GIB, max_model_len=4096)
    assert grows.requests_of(512) == GIB // (512 * (FULL + SLIDING))
    assert grows.requests_of(2048) == GIB // (2048 * FULL + 1024 * SLIDING)
    static = pool("transformers", "gemma", GIB, max_model_len=4096, static_cache=True)
    assert static.requests_of(1) == static.requests_of(4096) == GIB // (4096 * FULL + 1024 * SLIDING)
    assert static.requests_of(4097) == 0
    assert pool("transformers", "mistral", GIB).tokens is None


def test_tensor_parallel_repeats_heads() -> None:
    spec = model(*[full(2, 128)] * 4)
    sizes = {
        tp: pool_for("lmdeploy", None, spec, EngineOptions(tp=tp), ByteRange.of(GIB)).block_bytes
        for tp in (1, 2, 4, 8)
    }
    assert sizes[1] == 2 * (sizes[2] or 0)
    assert sizes[2] == sizes[4] == sizes[8]
