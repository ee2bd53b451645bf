"""vLLM's closed forms against an allocator that hands out blocks one by one."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.plan.engines import pool_for
from kvprobe.plan.engines.versions import parse_version
from kvprobe.plan.engines.vllm_groups import Grouping, group
from kvprobe.plan.engines.vllm_specs import CacheSpec, Rules
from kvprobe.plan.pool import ByteRange, EngineOptions, Pool
from tests.plan.engines.models import (
    EVERY,
    GEMMA,
    HYBRID,
    LLAMA,
    MISTRAL,
    VARYING,
    delta_net,
    full,
    latent,
    model,
    sliding,
)

GIB = 2**30
NEW = parse_version("vllm", "0.24.0")


def pool(spec_name: str, size: int, version: str = "0.24.0", **options: object) -> Pool:
    return pool_for("vllm", version, EVERY[spec_name], EngineOptions(**options), ByteRange.of(size))  # type: ignore[arg-type]


class Prefill:
    """One request of one sliding layer, prefilled in batches; blocks before the window are freed."""

    def __init__(self, window: int, batch: int, block: int) -> None:
        self.window, self.batch, self.block = window, batch, block

    def peak(self, tokens: int, first_batch: int) -> int:
        """Most blocks held at once; `first_batch` shifts where the batches begin."""
        held: set[int] = set()
        peak, done = 0, 0
        step = first_batch
        while done < tokens:
            step = min(step, tokens - done)
            # A step's tokens need blocks before anything behind the window can go.
            kept_from = max(0, done - (self.window - 1))
            held = {number for number in held if (number + 1) * self.block > kept_from}
            held |= {position // self.block for position in range(done, done + step)}
            done += step
            peak = max(peak, len(held))
            step = self.batch
        return peak


@pytest.mark.parametrize(("window", "batch", "block"), [(33, 64, 16), (16, 16, 16), (100, 48, 8), (7, 5, 4)])
def test_a_sliding_request_never_holds_more_than_is_reserved(window: int, batch: int, block: int) -> None:
    rules = Rules(
        in_flight_tokens=batch, encoder_tokens=0, state_mode="none", state_extra=0, all_adds_extra=False
    )
    spec = CacheSpec(kind="sliding", block_size=block, page_bytes=1, window_tokens=window)
    prefill = Prefill(window, batch, block)
    slack = []
    for tokens in range(1, 5 * (window + batch), 3):
        peak = max(prefill.peak(tokens, first) for first in range(1, batch + 1))
        assert peak <= rules.blocks(spec, tokens)
        slack.append(rules.blocks(spec, tokens) - peak)
    assert min(slack) <= 1


def hand_out(layout: Pool, per_group: list[int]) -> int:
    """Requests that a pool serves when blocks are handed out one by one; the null block stays back."""
    free = (layout.num_blocks or 0) - layout.null_blocks
    served = 0
    while True:
        for _ in itertools.chain.from_iterable(itertools.repeat(0, count) for count in per_group):
            if not free:
                return served
            free -= 1
        served += 1


@settings(max_examples=60, deadline=None)
@given(tokens=st.integers(1, 4000), mib=st.integers(1, 200))
def test_requests_of_one_kind(tokens: int, mib: int) -> None:
    layout = pool("llama", mib * 2**20, max_model_len=4096)
    needed = len({position // 16 for position in range(tokens)})
    assert layout.blocks_for(tokens) == needed
    assert layout.requests_of(tokens) == hand_out(layout, [needed])


@settings(max_examples=40, deadline=None)
@given(tokens=st.integers(1, 20_000), mib=st.integers(64, 2048))
def test_requests_of_a_hybrid(tokens: int, mib: int) -> None:
    """HYBRID: one attention group and three groups of states, two states each with prefix caching."""
    layout = pool("hybrid", mib * 2**20, max_model_len=32768, prefix_caching=True)
    attention = len({position // (layout.block_size or 1) for position in range(tokens)})
    assert layout.groups == (1, 3)
    assert layout.requests_of(tokens) == hand_out(layout, [attention, 2, 2, 2])


def test_a_state_fits_the_grown_attention_block() -> None:
    layout = pool("hybrid", GIB, max_model_len=4096)
    state = 32 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 32 * 128) * 2
    page = 2 * 2 * 256 * 2
    assert layout.block_size == next(block for block in itertools.count(16, 16) if block * page >= state)
    assert layout.page_bytes == (layout.block_size or 0) * page


@settings(max_examples=100, deadline=None)
@given(
    full=st.integers(1, 40), window=st.integers(0, 60), version=st.sampled_from(["0.9.2", "0.12.0", "0.24.0"])
)
def test_groups_hold_every_layer_once(full: int, window: int, version: str) -> None:
    specs = [CacheSpec(kind="full", block_size=16, page_bytes=65536, shape=(8,))] * full
    specs += [
        CacheSpec(kind="sliding", block_size=16, page_bytes=65536, shape=(8,), window_tokens=128)
    ] * window
    found = group((tuple(specs),), parse_version("vllm", version), hybrid=True)
    assert sum(len(members) for members in found.groups) == full + window
    assert all(len(members) <= found.size for members in found.groups)
    assert found.size * len(found.groups) == full + window + found.padding
    if window:
        # Nothing smaller than the rarest kind, and never more than one group's worth of padding a kind.
        assert found.size in (min(full, window), max(full, window))
        assert found.padding < 2 * found.size


def test_padding_by_version() -> None:
    """12 sliding and 13 full layers (gpt-oss with a draft): 13 in a group since 0.12, 12 before."""
    specs = (CacheSpec(kind="full", block_size=16, page_bytes=1, shape=(1,)),) * 13
    specs += (CacheSpec(kind="sliding", block_size=16, page_bytes=1, shape=(1,), window_tokens=128),) * 12
    sizes = {
        version: (found.size, found.padding)
        for version in ("0.11.0", "0.12.0", "0.18.0")
        if (found := group((specs,), parse_version("vllm", version), hybrid=True))
    }
    assert sizes == {"0.11.0": (12, 11), "0.12.0": (13, 1), "0.18.0": (13, 1)}
    # 10 and 14: below 1.5 times, above 1.25 times.
    specs = specs[:10] + specs[-12:] + specs[-2:]
    assert group((specs,), parse_version("vllm", "0.17.0"), hybrid=True).size == 10
    assert group((specs,), parse_version("vllm", "0.18.0"), hybrid=True).size == 14


def test_padding_of_three_kinds() -> None:
    """vllm issue 46462: 30 states, 10 attention layers and a draft of 8 are padded by 2 and by 6 layers."""
    states = (CacheSpec(kind="state", block_size=16, page_bytes=1, shape=(1,)),) * 30
    target = (CacheSpec(kind="full", block_size=16, page_bytes=1, shape=(2,)),) * 10
    draft = (CacheSpec(kind="full", block_size=16, page_bytes=1, shape=(8,)),) * 8
    found = group((states + target + draft,), NEW, hybrid=True)
    assert (found.size, found.padding) == (8, 2 + 6)
    assert found.per_kind == (2, 1, 4)


def test_pages_are_made_equal_by_larger_blocks() -> None:
    """Gemma 4: global layers with half the bytes a token get blocks of 32."""
    narrow = CacheSpec(kind="full", block_size=16, page_bytes=32768, shape=(2, 512))
    wide = CacheSpec(kind="sliding", block_size=16, page_bytes=65536, shape=(8, 256), window_tokens=1024)
    found = group(((narrow,) + (wide,) * 5,), NEW, hybrid=True)
    blocks = {member.spec.kind: member.spec.block_size for members in found.groups for member in members}
    assert blocks == {"full": 32, "sliding": 16}
    assert found.page_bytes == 65536
    assert found.refused is None
    odd = CacheSpec(kind="sliding", block_size=16, page_bytes=50000, shape=(3,), window_tokens=1024)
    assert group(((narrow, odd),), parse_version("vllm", "0.20.0"), hybrid=True).refused
    padded = group(((narrow, odd),), NEW, hybrid=True)
    assert (padded.page_bytes, padded.refused) == (50000, None)


def test_without_the_hybrid_manager_every_layer_costs_every_token() -> None:
    layout = pool("gemma", GIB, hybrid_manager=False)
    assert layout.groups == (1,)
    assert layout.block_bytes == 24 * 16 * 4096
    assert layout.tokens == GIB // (24 * 16 * 4096) * 16


def test_layers_of_unequal_size_share_one_group() -> None:
    layout = pool("varying", GIB)
    assert layout.block_bytes == 16 * 2 * 2 * 64 * (2 + 4 + 8)
    assert (layout.groups, layout.padding_layers, layout.page_bytes) == ((1,), 0, None)
    assert not pool("varying", GIB, version="0.10.2").fits


def test_chunked_layers_are_promoted_where_the_version_does_so() -> None:
    assert pool("llama4", GIB, version="0.10.2").groups == (1,)
    assert pool("llama4", GIB, version="0.10.2", hybrid_manager=True).groups == (1, 3)
    assert pool("llama4", GIB, version="0.14.0").groups == (1, 3)
    layout = pool("llama4", GIB, version="0.24.0", max_model_len=131072, max_num_batched_tokens=8192)
    assert layout.blocks_per_request == 131072 // 16 + 3 * (8192 + 8192) // 16


def test_cross_attention_costs_the_encoder_once() -> None:
    layout = pool("whisper", GIB, max_model_len=448)
    assert layout.groups == (1, 1)
    assert layout.blocks_per_request == 448 // 16 + -(-1500 // 16)


def test_windows_reserve_every_batch_in_flight_in_new_versions() -> None:
    options = {"max_model_len": 131072, "max_num_batched_tokens": 2048}
    old = pool("mistral", GIB, version="0.25.0", **options)
    new = pool("mistral", GIB, version="0.26.0", **options)
    assert old.blocks_per_request == -(-(4095 + 2048) // 16) + 1
    assert new.blocks_per_request == -(-(4095 + 2 * 2048) // 16) + 1


@settings(max_examples=60, deadline=None)
@given(
    stages=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    mib=st.integers(1, 500),
    gemma=st.booleans(),
)
def test_the_fullest_stage_decides(stages: list[int], mib: int, gemma: bool) -> None:
    """Without groups in the way: each stage's blocks alone, and the smallest count wins."""
    base = GEMMA.layers[5] if not gemma else GEMMA.layers[0]
    spec = model(*[base.mixers[0]] * sum(stages))
    layout = pool_for(
        "vllm",
        "0.24.0",
        spec,
        EngineOptions(pp=len(stages), layer_partition=tuple(stages)),
        ByteRange.of(mib * 2**20),
    )
    assert layout.num_blocks == min(mib * 2**20 // (layers * 65536) for layers in stages)


def test_old_versions_charge_each_stage_for_all_layers() -> None:
    options = {"pp": 2, "max_model_len": 131072}
    broken = pool("llama", GIB, version="0.15.2rc1", **options)
    mended = pool("llama", GIB, version="0.17.0", **options)
    assert broken.needed_bytes == 2 * (mended.needed_bytes or 0) == 131072 * 8 * 4096
    assert (mended.estimated_max_model_len or 0) == 2 * (broken.estimated_max_model_len or 0)
    assert broken.num_blocks == mended.num_blocks


@pytest.mark.parametrize("version", ["0.8.5", "0.11.0", "0.19.0", "0.24.0", "0.29.0"])
@pytest.mark.parametrize("name", ["llama", "gemma", "hybrid"])
def test_the_estimated_length_is_the_largest_that_starts(version: str, name: str) -> None:
    layout = pool(name, 96 * 2**20, version=version, max_model_len=131072)
    best = layout.estimated_max_model_len or 0
    if best:
        assert pool(name, 96 * 2**20, version=version, max_model_len=best).fits
    if best < 131072:
        assert not pool(name, 96 * 2**20, version=version, max_model_len=best + 1).fits


def test_the_null_block_is_set_apart_in_new_versions() -> None:
    exact = 64 * 16 * 8 * 4096  # 64 blocks of LLAMA
    assert pool("llama", exact, version="0.28.0", max_model_len=1024).fits
    layout = pool("llama", exact, version="0.29.0", max_model_len=1024)
    assert (layout.fits, layout.estimated_max_model_len) == (False, 63 * 16)


def test_the_log_line_changed_its_meaning() -> None:
    old = pool("gemma", GIB, version="0.20.0", max_model_len=32768, max_num_batched_tokens=2048)
    new = pool("gemma", GIB, version="0.20.1", max_model_len=32768, max_num_batched_tokens=2048)
    assert old.num_blocks == new.num_blocks
    assert old.log_line_tokens == (old.num_blocks or 0) // 6 * 16
    assert new.log_line_tokens == int((new.max_concurrency or 0) * 32768)
    assert new.log_line_tokens > 2 * old.log_line_tokens


def test_states_by_mode_and_speculation() -> None:
    def blocks(**options: object) -> int:
        layout = pool("hybrid", 4 * GIB, max_model_len=1056, **options)
        return (layout.blocks_per_request or 0) - 1

    assert blocks(mamba_cache_mode="none") == 3
    assert blocks(mamba_cache_mode="align") == 6
    assert blocks(prefix_caching=False, mamba_cache_mode="align") == 3
    assert blocks(prefix_caching=True) == 6
    assert blocks(version="0.26.0") == 6
    assert blocks(version="0.25.0") == 3
    assert blocks(version="0.14.0", prefix_caching=True) == 3
    speculative = pool("hybrid", 4 * GIB, max_model_len=1056, speculative_tokens=2, mamba_cache_mode="align")
    assert speculative.group_size == 5  # four attention layers and the draft's
    assert speculative.blocks_per_request == 1 + 3 * (2 + 2)


def test_a_drafts_attention_joins_the_full_group() -> None:
    assert pool("llama", GIB, draft_layers=1).block_bytes == 9 * 65536
    assert LLAMA.draft_layers == ()
    assert HYBRID.family == "qwen3_5_text"


def test_a_window_alone_bounds_every_request() -> None:
    layout = pool("mistral", GIB, version="0.24.0", max_num_batched_tokens=2048)
    assert layout.blocks_for(10**6) == layout.blocks_for(10**5)
    assert layout.tokens == (layout.num_blocks or 0) * 16
    assert MISTRAL.layers[0].mixers[0] == sliding(4096)
    assert VARYING.family == "openelm"
    assert isinstance(group(((),), NEW, hybrid=True), Grouping)


def test_hybrids_with_mla_align_to_its_kernels() -> None:
    """A state of 1.1 MB over 576 x 2 bytes a token: 932 tokens at least, in multiples of 16, 64 or 128."""
    spec = model(*([delta_net(16, 16)] * 3 + [latent()]) * 4, family="kimi_linear")

    def block(version: str, **options: object) -> int | None:
        asked = EngineOptions(max_model_len=8192, **options)  # type: ignore[arg-type]
        return pool_for("vllm", version, spec, asked, ByteRange.of(GIB)).block_size

    least = -(-(16 * 128 * 128 * 4 + 3 * 6144 * 2) // (576 * 2))
    assert block("0.11.0") == -(-least // 16) * 16
    assert block("0.12.0") == -(-least // 64) * 64
    assert block("0.27.0") == -(-least // 128) * 128
    assert block("0.24.0", block_size=256) == -(-least // 256) * 256


def test_mode_all_aligns_to_the_kernels_chunk() -> None:
    """Mamba-2 models with prefix caching keep a state per block, whose size is a multiple of the chunk."""
    mamba = replace(delta_net(), kind="mamba2")
    spec = replace(model(*[mamba, mamba, full(2, 256)]), raw={"mamba_chunk_size": 256})
    asked = EngineOptions(max_model_len=10_000, prefix_caching=True)
    layout = pool_for("vllm", "0.24.0", spec, asked, ByteRange.of(GIB))
    assert (layout.block_size or 1) % 256 == 0
    assert layout.blocks_per_request == 3 * -(-10_000 // (layout.block_size or 1))
    assert pool_for("vllm", "0.28.0", spec, asked, ByteRange.of(GIB)).block_size == 1056
    untold = replace(spec, raw={})
    assert pool_for("vllm", "0.24.0", untold, asked, ByteRange.of(GIB)).block_size == 2048


def test_states_have_the_models_dtype_where_vllm_ignores_the_configuration() -> None:
    plain = pool_for("vllm", "0.24.0", replace(HYBRID, family="other"), EngineOptions(), ByteRange.of(GIB))
    stated = pool_for("vllm", "0.24.0", HYBRID, EngineOptions(), ByteRange.of(GIB))
    assert (plain.block_size, stated.block_size) == (544, 1056)


def test_old_versions_group_each_stage_alone() -> None:
    """Two stages of GEMMA, 2 full and 10 sliding layers each: 6 groups of 2 there, not of 4."""
    layout = pool("gemma", GIB, version="0.10.2", pp=2)
    assert (layout.group_size, layout.groups) == (2, (1, 5))
    assert layout.num_blocks == GIB // (2 * 65536)


@pytest.mark.parametrize(
    ("gib", "name", "version", "batch"),
    [
        (24, "RTX 4090", "0.24.0", 2048),
        (79, "H100", "0.24.0", 8192),
        (79, "NVIDIA A100", "0.24.0", 2048),
        (179, "B200", "0.24.0", 8192),
        (179, "B200", "0.28.0", 2 * 16384),
    ],
)
def test_the_batch_depends_on_the_card(gib: int, name: str, version: str, batch: int) -> None:
    layout = pool(
        "mistral", GIB, version=version, max_model_len=131072, gpu_memory_bytes=gib * GIB, gpu_name=name
    )
    assert layout.blocks_per_request == -(-(4095 + batch) // 16) + 1
