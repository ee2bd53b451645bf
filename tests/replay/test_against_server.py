"""The simulator makes block for block what the reference server's scheduler and allocators make."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from kvprobe.plan.simulate import books as b
from kvprobe.plan.simulate.cost import StepCost
from kvprobe.plan.simulate.rows import chunks
from kvprobe.plan.simulate.server import Server
from kvprobe.plan.simulate.settings import Groups, SimSettings
from kvprobe.traces.rows import TraceRow
from tests.replay import oracle
from tests.replay.traces import COSTS, random_settings, random_trace, row


def simulated(rows: list[TraceRow], settings: SimSettings, cost: StepCost, chunk: int = 1000) -> Server:
    server = Server(settings, cost)
    parts = list(chunks(rows, chunk))
    for number, part in enumerate(parts):
        server.feed(part, last=number == len(parts) - 1)
    return server


def facts(server: Server) -> dict[str, Any]:
    n, out = server.sim.n, server.sim.out
    rows = range(server.rows)
    return {
        "steps": server.steps,
        "now": round(server.now_s, 6),
        "peak used": n[b.PEAK_USED],
        "evicted": n[b.EVICTED],
        "free": n[b.FREE],
        "swapped": (n[b.SWAP_OUT], n[b.SWAP_IN]),
        "failed": n[b.FAILED],
        "hits": {i: out[i, b.O_HIT] for i in rows if out[i, b.O_HIT] >= 0},
        "preempted": {i: out[i, b.O_PREEMPTED] for i in rows if out[i, b.O_PREEMPTED]},
        "ttft": {i: pytest.approx(out[i, b.O_TTFT], rel=1e-5) for i in rows if out[i, b.O_TTFT] > 0},
        "e2e": {i: pytest.approx(out[i, b.O_E2E], rel=1e-5) for i in rows if out[i, b.O_E2E] > 0},
    }


def told(rows: list[TraceRow], settings: SimSettings, cost: StepCost) -> dict[str, Any]:
    t = oracle.serve(rows, settings, cost)
    return {
        "steps": t.steps,
        "now": round(t.now, 6),
        "peak used": t.peak_used,
        "evicted": t.evicted,
        "free": t.free,
        "swapped": t.swapped,
        "failed": t.failed,
        "hits": t.hits,
        "preempted": t.preempted,
        "ttft": t.ttft,
        "e2e": t.e2e,
    }


def books_are_empty(server: Server) -> bool:
    n = server.sim.n
    left = (b.USED, b.NDEC, b.CTX, b.TABLE_NOW, b.REMAINING, b.RUN)
    return not any(n[name] for name in left) and n[b.AVAIL] == server.settings.total


@pytest.mark.parametrize("tens", range(8))
def test_random_traces_agree_in_every_block(tens: int) -> None:
    for seed in range(15 * tens, 15 * tens + 15):
        rng = random.Random(seed)
        rows, settings, cost = random_trace(rng), random_settings(rng), rng.choice(COSTS)
        server = simulated(rows, settings, cost, chunk=rng.choice([1, 3, 7, 1000]))
        assert facts(server) == told(rows, settings, cost), (seed, settings)
        assert books_are_empty(server), (seed, settings)


def test_the_random_traces_preempt_evict_hit_and_swap() -> None:
    seen = {"preempted": 0, "hits": 0, "evicted": 0, "swapped": 0}
    for seed in range(60):
        rng = random.Random(seed)
        rows, settings, cost = random_trace(rng), random_settings(rng), rng.choice(COSTS)
        n = simulated(rows, settings, cost).sim.n
        seen["preempted"] += n[b.PREEMPTIONS]
        seen["hits"] += n[b.HIT]
        seen["evicted"] += n[b.EVICTED]
        seen["swapped"] += n[b.SWAP_IN]
    assert min(seen.values()) > 20, seen


def test_a_long_quiet_decode_is_taken_in_few_events() -> None:
    rows = [row(0.0, 100, 5000), row(0.0, 50, 4000)]
    settings = SimSettings(usable_blocks=1000, engine="reference", max_num_seqs=4)
    server = simulated(rows, settings, COSTS[1])
    assert server.steps == 5000
    assert server.events < 10
    assert facts(server) == told(rows, settings, COSTS[1])


def test_an_equal_prompt_computes_its_last_token() -> None:
    rows = [row(0.0, 16, 1, (1, 2, 3, 4)), row(50.0, 16, 1, (1, 2, 3, 4))]
    settings = SimSettings(usable_blocks=100, block_size=4, engine="reference")
    assert facts(simulated(rows, settings, COSTS[0]))["hits"] == {0: 0, 1: 12}


def test_a_block_larger_than_the_shared_prefix_never_hits() -> None:
    rows = [row(0.0, 16, 1, (1, 2, 3, 4)), row(50.0, 16, 1, (1, 2, 3, 9))]
    settings = SimSettings(usable_blocks=100, block_size=16, engine="reference")
    assert facts(simulated(rows, settings, COSTS[0]))["hits"] == {0: 0, 1: 0}


def two_and_a_window(block: int, tokens: int) -> int:
    """Blocks of two growing groups, and of one that keeps three blocks."""
    return 2 * -(-tokens // block) + min(3, -(-tokens // block))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("grouped", [False, True])
def test_other_engines_end_with_empty_books(engine: Any, grouped: bool) -> None:
    preempted = 0
    for seed in range(30):
        rng = random.Random(seed)
        rows, settings, cost = random_trace(rng), random_settings(rng), rng.choice(COSTS)
        groups = Groups(settings.block_size, 2, partial(two_and_a_window, settings.block_size))
        settings = replace(
            settings,
            engine=engine,
            allocator="paged",
            full_prompt=engine == "vllm",
            watermark=rng.choice([0.0, 0.05]),
            max_tokens=rng.choice([None, 100]),
            groups=groups if grouped else None,
        )
        server = simulated(rows, settings, cost, chunk=rng.choice([1, 5, 1000]))
        n = server.sim.n
        assert books_are_empty(server), seed
        assert n[b.FINISHED] + server.refused + n[b.FAILED] == len(rows), seed
        preempted += n[b.PREEMPTIONS]
    assert preempted or engine == "sglang"


def test_vllm_waits_until_the_whole_prompt_fits() -> None:
    rows = [row(0.0, 80, 30), row(1.0, 60, 3)]
    said = {"usable_blocks": 30, "block_size": 4, "max_num_seqs": 4, "max_num_batched_tokens": 16}
    queued = {}
    for engine, whole in (("reference", False), ("vllm", True)):
        settings = SimSettings(**said, engine=engine, full_prompt=whole)  # type: ignore[arg-type]
        queued[engine] = simulated(rows, settings, COSTS[0]).sim.out[1, b.O_QUEUE]
    assert queued["vllm"] > queued["reference"]
