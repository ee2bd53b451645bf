"""What rounding leaves open, what grows with what, and input that no engine could run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from kvprobe.errors import UsageError
from kvprobe.model.spec import ModelSpec
from kvprobe.plan.engines import ENGINES, as_cached, pool_for, uses_v0
from kvprobe.plan.engines.versions import CHANGES, HABITS, NEWEST, has, parse_version, since
from kvprobe.plan.pool import ByteRange, EngineOptions
from kvprobe.plan.sizes import parse_size
from tests.plan.engines.models import EVERY, HYBRID, LLAMA, latent, model

GIB = 2**30
WITH_MEMORY = [engine for engine in ENGINES if engine != "llama.cpp"]


@settings(max_examples=80, deadline=None)
@given(
    hundredths=st.integers(50, 4000),
    share=st.floats(0, 1),
    name=st.sampled_from(sorted(EVERY)),
    engine=st.sampled_from(WITH_MEMORY),
)
def test_the_range_holds_every_amount_that_prints_so(
    hundredths: int, share: float, name: str, engine: str
) -> None:
    printed = parse_size(f"{hundredths / 100:.2f}GiB", "--available-kv")
    true = int(printed.lo + share * (printed.hi - printed.lo))
    assert abs(true / GIB - hundredths / 100) <= 0.0051 + 1e-9
    options = EngineOptions(max_model_len=2048)
    ranged = pool_for(engine, None, EVERY[name], options, printed)
    exact = pool_for(engine, None, EVERY[name], options, ByteRange.of(true))
    for field in ("num_blocks", "tokens", "log_line_tokens", "swa_tokens", "state_slots", "max_concurrency"):
        bounds, value = getattr(ranged, field + "_range"), getattr(exact, field)
        nominal = getattr(ranged, field)
        if bounds is not None and value is not None:
            assert bounds[0] <= value <= bounds[1], field
            assert bounds[0] <= nominal <= bounds[1], field


@settings(max_examples=80, deadline=None)
@given(
    size=st.integers(0, 8 * GIB),
    more=st.integers(0, GIB),
    tokens=st.integers(0, 50_000),
    name=st.sampled_from(sorted(EVERY)),
    engine=st.sampled_from(WITH_MEMORY),
)
def test_more_memory_never_holds_less(size: int, more: int, tokens: int, name: str, engine: str) -> None:
    # SGLang's states come in slots: one more of them leaves less to tokens.
    assume(engine != "sglang" or name not in ("hybrid", "pure_state"))
    options = EngineOptions(max_model_len=65536)
    small = pool_for(engine, None, EVERY[name], options, ByteRange.of(size))
    large = pool_for(engine, None, EVERY[name], options, ByteRange.of(size + more))
    assert large.requests_of(tokens) >= small.requests_of(tokens)
    assert (large.num_blocks or 0) >= (small.num_blocks or 0)
    assert large.blocks_for(tokens) == small.blocks_for(tokens)
    assert large.fits or not small.fits


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.integers(1, 60_000), name=st.sampled_from(sorted(EVERY)), engine=st.sampled_from(WITH_MEMORY)
)
def test_longer_requests_never_take_less(tokens: int, name: str, engine: str) -> None:
    layout = pool_for(engine, None, EVERY[name], EngineOptions(max_model_len=65536), ByteRange.of(4 * GIB))
    assert layout.blocks_for(tokens + 1) >= layout.blocks_for(tokens) >= 1
    assert layout.requests_of(tokens + 1) <= layout.requests_of(tokens)


@pytest.mark.parametrize("engine", WITH_MEMORY)
@pytest.mark.parametrize("size", [0, -5 * GIB])
def test_no_memory_is_no_blocks(engine: str, size: int) -> None:
    for name in sorted(EVERY):
        layout = pool_for(engine, None, EVERY[name], EngineOptions(), ByteRange.of(size))
        assert layout.fits is False
        assert not layout.num_blocks
        assert layout.requests_of(100) == 0
    printed = ByteRange(-GIB, -GIB + 10)
    assert pool_for("vllm", "0.19.0", LLAMA, EngineOptions(), printed).num_blocks_range == (0, 0)


def test_a_length_above_the_pool_does_not_fit() -> None:
    layout = pool_for("vllm", "0.24.0", LLAMA, EngineOptions(max_model_len=131072), ByteRange.of(GIB))
    assert layout.fits is False
    assert 0 < (layout.max_concurrency or 0) < 1
    assert layout.estimated_max_model_len == layout.tokens == 32768


def test_blocks_of_one_token() -> None:
    layout = pool_for("vllm", "0.24.0", LLAMA, EngineOptions(block_size=1), ByteRange.of(GIB))
    assert (layout.num_blocks, layout.blocks_for(35)) == (32768, 35)


def refused(engine: str, options: EngineOptions, spec: object = LLAMA) -> tuple[str, str | None]:
    with pytest.raises(UsageError) as caught:
        pool_for(engine, None, spec, options, ByteRange.of(GIB))  # type: ignore[arg-type]
    problem = caught.value.problems[0]
    assert problem.fix
    return problem.code, problem.fix


def test_options_that_no_engine_could_run() -> None:
    assert refused("vllm", EngineOptions(pp=9))[0] == "pp_too_large"
    assert refused("vllm", EngineOptions(tp=3))[0] == "tp_split"
    assert refused("vllm", EngineOptions(pp=2, layer_partition=(3, 4)))[0] == "layer_partition"
    assert refused("sglang", EngineOptions(block_size=0))[0] == "option_range"
    assert refused("sglang", EngineOptions(swa_full_tokens_ratio=0))[0] == "option_range"
    assert refused("vllm", EngineOptions(speculative_tokens=-1))[0] == "option_range"
    code, fix = refused("vlm", EngineOptions())
    assert code == "unknown_engine"
    assert fix is not None
    assert "vllm" in fix


def test_only_llama_cpp_plans_without_memory() -> None:
    assert pool_for("llama.cpp", None, LLAMA, EngineOptions(ctx=512), None).fits
    with pytest.raises(UsageError, match="memory"):
        pool_for("vllm", None, LLAMA, EngineOptions(), None)


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("0.6.6-era", (0, 6, 6)),
        ("0.8.x", (0, 8, 99)),
        ("0.9.x V1", (0, 9, 99)),
        ("0.9.2-era V1", (0, 9, 2)),
        ("0.29.1rc1", (0, 29, 1)),
        ("v0.11.0", (0, 11, 0)),
        ("0.22", (0, 22, 0)),
        ("0.19.1rc1.dev301+g60995c05b", (0, 19, 1)),
        ("0.24.0+rhaiv.13", (0, 24, 0)),
        ("2026-04", (0, 20, 0)),
        ("V0", (0, 8, 5)),
        ("V1", NEWEST),
        ("0.1.dev20073+g8e685d198", NEWEST),
        ("nightly", NEWEST),
        (None, NEWEST),
    ],
)
def test_versions_as_people_write_them(text: str | None, release: tuple[int, int, int]) -> None:
    version = parse_version("vllm", text)
    assert version.release == release
    assert bool(version.assumption) == (release == NEWEST or text in ("0.8.x", "0.9.x V1", "2026-04"))


def test_an_assumed_version_is_told() -> None:
    layout = pool_for("vllm", "nightly", LLAMA, EngineOptions(), ByteRange.of(GIB))
    assert any("nightly" in note for note in layout.assumptions)
    assert not pool_for("vllm", "0.24.0", LLAMA, EngineOptions(), ByteRange.of(GIB)).assumptions


def test_which_vllm_is_meant() -> None:
    swap = EngineOptions(swap_space_bytes=4 * GIB)
    cases = [("0.6.6", EngineOptions(), True), ("0.8.5", EngineOptions(), False), ("0.8.x", swap, True)]
    cases += [("0.12.0", swap, False), ("0.9.2 V0", EngineOptions(), True), ("V1", EngineOptions(), False)]
    for text, options, expected in cases:
        assert uses_v0(parse_version("vllm", text), options) is expected, text


def test_builds_and_months_of_llama_cpp() -> None:
    assert not since(parse_version("llama.cpp", "b4321"), "iswa")
    assert since(parse_version("llama.cpp", "b6000"), "iswa")
    assert since(parse_version("llama.cpp", "2025-11"), "iswa")
    assert not since(parse_version("llama.cpp", "2025-11"), "v_less")
    assert since(parse_version("llama.cpp", None), "v_less")


def test_the_boundary_table_names_a_source_for_each_row() -> None:
    names = [(habit.engine, habit.name) for habit in HABITS]
    assert len(set(names)) == len(names)
    assert all(habit.source and habit.what for habit in HABITS)
    assert all(habit.until is None or habit.since < habit.until for habit in HABITS)
    assert all(change.source for change in CHANGES)
    newest = parse_version("vllm", None)
    assert has(newest, "log_concurrency")
    assert not has(newest, "pp_charges_all")


def test_speculation_without_a_count_uses_the_models_own_layer() -> None:
    def drafts(options: EngineOptions, engine: str = "vllm", spec: ModelSpec = HYBRID) -> int:
        return as_cached(engine, None, spec, options).options.draft_layers

    speculating = EngineOptions(speculative_tokens=3)
    assert drafts(speculating) == 1
    assert drafts(EngineOptions()) == 0
    assert drafts(EngineOptions(speculative_tokens=3, draft_layers=2)) == 2
    assert drafts(speculating, spec=LLAMA) == 0
    assert drafts(speculating, engine="sglang") == 0
    layout = pool_for("vllm", "0.24.0", HYBRID, speculating, ByteRange.of(GIB))
    assert any("MTP" in note for note in layout.assumptions)


def test_what_an_engine_makes_of_a_cache_format() -> None:
    fp8 = EngineOptions(kv_dtype_k="fp8", kv_dtype_v="fp8")

    def kept(engine: str, version: str | None, options: EngineOptions = fp8) -> str:
        cached = as_cached(engine, version, EVERY["sparse"], options)
        again = as_cached(engine, version, cached.spec, cached.options)
        assert (again.spec, again.options) == (cached.spec, cached.options)
        return cached.options.kv_dtype_k

    assert kept("sglang", None) == "fp8_ds_mla"
    assert kept("vllm", "0.11.0") == "fp8_ds_mla"
    assert kept("vllm", "0.24.0") == "fp8"
    assert kept("vllm", "0.24.0", replace(fp8, gpu_name="NVIDIA H200")) == "fp8_ds_mla"
    assert kept("trtllm", None) == "fp8"
    assert kept("llama.cpp", None, EngineOptions()) == "fp16"


def test_mla_before_it_was_kept_compressed() -> None:
    spec = model(*[latent()] * 2, family="deepseek_v3")
    old = pool_for("vllm", "0.6.6", spec, EngineOptions(), ByteRange.of(GIB))
    assert old.block_bytes == 16 * 2 * 16 * (256 + 256) * 2
    new = pool_for("vllm", "0.8.5 V0", spec, EngineOptions(), ByteRange.of(GIB))
    assert new.block_bytes == 16 * 2 * 576 * 2
    plain = pool_for("vllm", "0.24.0", spec, EngineOptions(latent_cache=False), ByteRange.of(GIB))
    assert plain.block_bytes == 16 * 2 * 16 * (192 + 128) * 2


def test_a_check_that_counts_too_little_is_told() -> None:
    """0.14 to 0.18 counted the first group only: states, which are one block."""
    options = EngineOptions(max_model_len=131072)
    size = 20 * 4 * 1056 * 2048
    passed = pool_for("vllm", "0.15.0", HYBRID, options, ByteRange.of(size))
    assert not passed.fits
    assert any("39734" in note for note in passed.assumptions)
    assert not pool_for("vllm", "0.19.0", HYBRID, options, ByteRange.of(size)).assumptions


def test_cpu_blocks_of_v0() -> None:
    layout = pool_for("vllm", "0.6.6", LLAMA, EngineOptions(swap_space_bytes=GIB), ByteRange.of(GIB))
    assert layout.num_cpu_blocks == layout.num_blocks == GIB // (16 * 8 * 4096)
    assert pool_for("vllm", "0.6.6", LLAMA, EngineOptions(), ByteRange.of(GIB)).num_cpu_blocks == 8192
    assert pool_for("vllm", "0.24.0", LLAMA, EngineOptions(), ByteRange.of(GIB)).num_cpu_blocks is None
