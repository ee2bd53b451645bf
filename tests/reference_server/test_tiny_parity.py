"""Greedy text of the served model, with prefix caching on and off, alone and in a batch."""

from __future__ import annotations

import random

import torch

from reference_server.models.tiny import TINY
from tests.reference_server.server_rig import Rig, count_ties

PROMPTS = 24


def _prompts() -> list[str]:
    rng = random.Random(11)
    letters = "abcdefghij klmnop qrstuvw xyz .,"
    families = ["".join(rng.choice(letters) for _ in range(rng.randint(150, 620))) for _ in range(4)]
    return [
        families[i % 4] + "".join(rng.choice(letters) for _ in range(rng.randint(1, 60)))
        for i in range(PROMPTS)
    ]


def test_prefix_caching_and_batching_change_no_text() -> None:
    torch.set_num_threads(1)
    prompts = _prompts()
    cached = Rig(shape=TINY, blocks=1500, max_num_batched_tokens=512)
    one_by_one = [cached.generate([prompt], 16)[0] for prompt in prompts]
    assert cached.value("prefix_cache_hits_total") > 0.4 * cached.value("prefix_cache_queries_total")
    plain = Rig(shape=TINY, blocks=1500, prefix_caching=False, max_num_batched_tokens=300, max_num_seqs=7)
    assert plain.generate(prompts, 16) == one_by_one
    assert len(set(one_by_one)) == PROMPTS, "each prompt leads to a text of its own"


def test_the_served_model_follows_the_oracle() -> None:
    rig = Rig(shape=TINY, blocks=200)
    sequences = [rig.add(prompt[:300] + prompt[-20:], 12) for prompt in _prompts()[:4]]
    rig.drain()
    assert sum(count_ties(TINY, sequence) for sequence in sequences) <= 1
