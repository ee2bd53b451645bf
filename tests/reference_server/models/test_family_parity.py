"""Greedy tokens of each family equal transformers' `generate`, alone and in company."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from tests.reference_server.models.checkpoints import FAMILIES, VOCABULARY, make_model
from tests.reference_server.models.model_rig import ModelRig, Reference, reference

LENGTHS = (3, 90, 41, 130)
MAX_TOKENS = 24
Made = tuple[str, list[list[int]], Reference]


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
    ties = ModelRig(directory).run(prompts, expected, together=False)
    ties += ModelRig(directory, max_num_batched_tokens=30).run(prompts, expected, together=True)
    assert ties <= 2


VARIANTS: dict[str, dict[str, Any]] = {
    "no prefix caching": {"prefix_caching": False},
    "preempted and computed again": {"blocks": 14, "preemption": "recompute"},
    "preempted and swapped": {"blocks": 14, "preemption": "swap"},
    "contiguous": {"allocator": "contiguous", "block_size": 16, "max_model_len": 160},
    "contiguous and moving": {"allocator": "contiguous-exact"},
    "reserving pages": {"allocator": "paged-reserve"},
    "blocks of 4": {"block_size": 4, "blocks": 120},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", ["qwen3"])
def test_memory_changes_no_token(family: str, variant: str, made: Callable[[str], Made]) -> None:
    directory, prompts, expected = made(family)
    rig = ModelRig(directory, **VARIANTS[variant])
    assert rig.run(prompts, expected, together=True) <= 2
    if "preempted" in variant:
        assert rig.preemptions > 0


def test_the_hybrid_gives_up_what_no_window_sees(made: Callable[[str], Made]) -> None:
    directory, prompts, expected = made("gemma3")
    rig = ModelRig(directory, blocks=60)
    seen_most = 0

    def look() -> None:
        nonlocal seen_most
        for sequence in rig.core.scheduler.running:
            full, local, other = sequence.block_table, *sequence.extra_tables
            behind = max(sequence.num_computed - 24 + 1, 0) // 16
            assert not any(local[:behind]) and not any(other[:behind])
            assert 0 not in full
            seen_most = max(seen_most, behind)

    assert rig.run(prompts, expected, together=True, after_step=look) <= 2
    assert seen_most >= 6
    assert rig.core.allocator.usage(()).blocks_used == 0


@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_a_preempted_hybrid_speaks_on(preemption: str, made: Callable[[str], Made]) -> None:
    directory, prompts, expected = made("gemma3")
    rig = ModelRig(directory, blocks=22, preemption=preemption)
    assert rig.run(prompts, expected, together=True) <= 2
    assert rig.preemptions > 0
