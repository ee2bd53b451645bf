"""Decode graphs' buffers, with a recorder that calls the step again in place of a capture."""

from __future__ import annotations

import random

import pytest
import torch

from reference_server.attention.backend import TokenSpan
from reference_server.attention.graphs import DecodeGraphs, batch_sizes
from reference_server.attention.store import KVStore
from reference_server.models.llama import LlamaModel
from reference_server.models.shape import LlamaConfig
from reference_server.models.tiny import random_weights
from tests.reference_server.attention.test_backends import in_triton

SHAPE = LlamaConfig("s", 50, 32, 32, 2, 2, 1, 16, 64)


def test_sizes_are_few_and_the_largest_is_there() -> None:
    assert batch_sizes(1) == [1]
    assert batch_sizes(20) == [1, 2, 4, 8, 16, 20]


@torch.inference_mode()
def test_a_replay_computes_what_a_step_would() -> None:
    store = KVStore(layers=2, num_blocks=12, kv_heads=1, block_size=8, head_dim=16)
    attention = in_triton(SHAPE, store)
    model = LlamaModel(SHAPE, random_weights(SHAPE, 1), attention)
    graphs = DecodeGraphs(
        model.forward, attention, most_sequences=3, most_tokens=32, record=lambda step: step
    )
    rng = random.Random(2)
    prompts = [[rng.randrange(50) for _ in range(length)] for length in (9, 20)]
    tables = [[3, 7, 1], [2, 9, 4]]
    for prompt, table in zip(prompts, tables, strict=True):
        plan = attention.plan([TokenSpan((table,), 0, len(prompt), 0)], len(prompt))
        model.forward(torch.tensor(prompt), torch.arange(len(prompt)), plan, torch.tensor([0]))
    spans = [TokenSpan((t,), len(p), 1, row) for row, (p, t) in enumerate(zip(prompts, tables, strict=True))]
    found = graphs.run([5, 6], spans)
    plan = attention.plan(spans, 4)
    tokens, positions = torch.tensor([5, 6, 0, 0]), torch.tensor([9, 20, 0, 0])
    expected = model.forward(tokens, positions, plan, torch.tensor([0, 1]))
    assert found is not None
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
@pytest.mark.parametrize("spans", [[TokenSpan(([1],), 0, 2, 0)], [TokenSpan(([1] * 9,), 40, 1, 0)]])
def test_what_no_graph_fits_is_left_alone(spans: list[TokenSpan]) -> None:
    store = KVStore(layers=2, num_blocks=12, kv_heads=1, block_size=8, head_dim=16)
    attention = in_triton(SHAPE, store)
    model = LlamaModel(SHAPE, random_weights(SHAPE, 1), attention)
    graphs = DecodeGraphs(
        model.forward, attention, most_sequences=1, most_tokens=32, record=lambda step: step
    )
    assert graphs.run([1], spans) is None
    assert graphs.run([1, 2], [*spans, *spans]) is None
