"""Greedy tokens of each family equal transformers' `generate`, alone and in company."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from parity_rig import Compared, ParityRig, Reference, reference

from reference_server.errors import ConfigError
from tests.reference_server.models.checkpoints import FAMILIES, VOCABULARY, make_model

LENGTHS = (3, 90, 41, 130)
MAX_TOKENS = 24
Made = tuple[str, list[list[int]], Reference]


MOST_BEND = {"bf16": 0.5, "fp16": 0.1, "fp8": 3.0, "int8": 1.0}
"""Largest logit error, in standard deviations of the logits; these weights exaggerate it."""


ON_A_DEVICE: dict[str, Any] = {"device_memory_bytes": 8 * 1024**2, "pool_from_device": True}


def same(found: list[Compared], expected: Reference) -> None:
    assert [compared.chosen for compared in found] == expected.tokens
    assert sum(compared.ties for compared in found) <= 2


def worst(found: list[Compared]) -> float:
    return max(max(compared.errors) for compared in found)


def prompts_for(seed: int) -> list[list[int]]:
    """Two of them share their first 40 tokens."""
    rng = random.Random(seed)
    shared = [rng.randrange(3, VOCABULARY) for _ in range(40)]
    own = [[rng.randrange(3, VOCABULARY) for _ in range(length)] for length in LENGTHS]
    return [own[0], shared + own[1][40:], own[2], shared + own[3][40:]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """A family's checkpoint, prompts and reference, made once."""
    kept: dict[str, Made] = {}

    def make(family: str) -> Made:
        if family not in kept:
            torch.set_num_threads(1)
            directory = tmp_path_factory.mktemp(family)
            model = make_model(family, directory)
            prompts = prompts_for(7)
            kept[family] = str(directory), prompts, reference(model, prompts, MAX_TOKENS)
        return kept[family]

    return make


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_speaks_as_transformers_does(family: str, made: Callable[[str], Made]) -> None:
    directory, prompts, expected = made(family)
    assert len({tuple(tokens) for tokens in expected.tokens}) == len(prompts), "the prompts matter"
    same(ParityRig(directory).run(prompts, expected, together=False), expected)
    chunks = ParityRig(directory, max_num_batched_tokens=30)
    same(chunks.run(prompts, expected, together=True), expected)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_torch_alone_does_as_well(
    family: str, made: Callable[[str], Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no compiler: torch's products, gathers, torch's attention."""
    monkeypatch.setattr("reference_server.native.packed.library", lambda: None)
    directory, prompts, expected = made(family)
    rig = ParityRig(directory, attention="sdpa")
    same(rig.run(prompts, expected, together=True), expected)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize("kv_dtype", ["bf16", "fp16", "fp8", "int8"])
def test_a_smaller_cache_bends_the_logits_a_little(
    family: str, kv_dtype: str, made: Callable[[str], Made]
) -> None:
    directory, prompts, expected = made(family)
    exact = ParityRig(directory).run(prompts, expected, together=True, follow=True)
    found = ParityRig(directory, kv_dtype=kv_dtype).run(prompts, expected, together=True, follow=True)
    gathered = ParityRig(directory, kv_dtype=kv_dtype, attention="sdpa")
    also = gathered.run(prompts, expected, together=True, follow=True)
    spread = float(expected.logits[0].std())
    assert worst(exact) < 1e-3 * spread
    assert 1e-3 * spread < worst(found) < MOST_BEND[kv_dtype] * spread
    assert worst(also) < MOST_BEND[kv_dtype] * spread


VARIANTS: dict[str, dict[str, Any]] = {
    "no prefix caching": {"prefix_caching": False},
    "preempted and computed again": {"blocks": 14, "preemption": "recompute"},
    "preempted and swapped": {"blocks": 14, "preemption": "swap"},
    "preempted without prefix caching": {"blocks": 14, "preemption": "swap", "prefix_caching": False},
    "contiguous": {"allocator": "contiguous", "max_model_len": 160},
    "contiguous and moving": {"allocator": "contiguous-exact"},
    "contiguous and computed again": {"allocator": "contiguous-exact", "blocks": 15},
    "contiguous and swapped": {"allocator": "contiguous-exact", "blocks": 15, "preemption": "swap"},
    "contiguous on a device": {"allocator": "contiguous", "max_model_len": 160, **ON_A_DEVICE},
    "moving on a device": {"allocator": "contiguous-exact", **ON_A_DEVICE},
    "reserving pages": {"allocator": "paged-reserve"},
    "reserving pages, no prefix caching": {"allocator": "paged-reserve", "prefix_caching": False},
    "blocks of 4": {"block_size": 4, "blocks": 120},
}
FULL_ATTENTION = [family for family in FAMILIES if family != "gemma3"]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", FULL_ATTENTION)
def test_memory_changes_no_token(family: str, variant: str, made: Callable[[str], Made]) -> None:
    directory, prompts, expected = made(family)
    rig = ParityRig(directory, **VARIANTS[variant])
    same(rig.run(prompts, expected, together=True), expected)
    if VARIANTS[variant].get("blocks", 400) < 20:
        assert rig.preemptions > 0


@pytest.mark.parametrize("device", [{}, ON_A_DEVICE], ids=["of a size", "on a device"])
@pytest.mark.parametrize("allocator", ["contiguous", "contiguous-exact", "paged-reserve"])
def test_a_hybrid_is_refused_by_allocators_with_one_table(
    allocator: str, device: dict[str, Any], made: Callable[[str], Made]
) -> None:
    words = f"--allocator {allocator} cannot hold .*look back over different lengths; use --allocator paged"
    with pytest.raises(ConfigError, match=words):
        ParityRig(made("gemma3")[0], allocator=allocator, **device)


@pytest.mark.parametrize("block_size", [8, 32])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_a_hybrid_reuses_no_prefix_and_says_so(
    block_size: int, prefix_caching: bool, made: Callable[[str], Made], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    directory, prompts, expected = made("gemma3")
    rig = ParityRig(directory, block_size=block_size, prefix_caching=prefix_caching)
    assert "allocator paged; prefix caching off" in caplog.text
    same(rig.run(prompts, expected, together=True), expected)
    same(rig.run(prompts, expected, together=True), expected)
    assert rig.core.state.usage.blocks_cached == 0


def test_the_hybrid_gives_up_what_no_window_sees(made: Callable[[str], Made]) -> None:
    directory, prompts, expected = made("gemma3")
    rig = ParityRig(directory, blocks=60)
    seen_most = 0

    def look() -> None:
        nonlocal seen_most
        for sequence in rig.core.scheduler.running:
            full, local, other = sequence.block_table, *sequence.extra_tables
            behind = max(sequence.num_computed - 24 + 1, 0) // 16
            assert not any(local[:behind])
            assert not any(other[:behind])
            assert 0 not in full
            seen_most = max(seen_most, behind)

    same(rig.run(prompts, expected, together=True, after_step=look), expected)
    assert seen_most >= 6
    assert rig.core.allocator.usage(()).blocks_used == 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_preempted_hybrid_speaks_on(preemption: str, made: Callable[[str], Made]) -> None:
    directory, prompts, expected = made("gemma3")
    rig = ParityRig(directory, blocks=22, preemption=preemption)
    same(rig.run(prompts, expected, together=True), expected)
    assert rig.preemptions > 0
