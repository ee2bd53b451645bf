"""What must hold whatever the trace and the settings: nothing is lost, nothing comes from nowhere."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from kvprobe.errors import UsageError
from kvprobe.plan.simulate import books as b
from kvprobe.plan.simulate.outcome import Rows
from kvprobe.plan.simulate.replay import simulate
from kvprobe.plan.simulate.rows import chunks
from kvprobe.plan.simulate.server import Server
from kvprobe.plan.simulate.settings import ENGINES, SimSettings
from kvprobe.traces.rows import TraceRow
from tests.replay.traces import COSTS, random_settings, random_trace, row


def any_settings(rng: random.Random) -> SimSettings:
    """Of any engine, down to a pool of one block."""
    while True:
        given = random_settings(rng)
        engine = rng.choice(ENGINES)
        try:
            return replace(
                given,
                engine=engine,
                full_prompt=engine == "vllm" and rng.random() < 0.7,
                watermark=rng.choice([0, 0, 0.01, 0.5]),
                max_tokens=rng.choice([None, None, 5, 100]),
                usable_blocks=rng.choice([given.usable_blocks, given.usable_blocks, 1, 2, 3]),
            )
        except UsageError:
            continue


def ceiling(rows: Sequence[TraceRow], block: int) -> int:
    """Tokens that a cache without an end, which forgets nothing, finds in whole blocks of the pool."""
    known: set[tuple[int, ...]] = set()
    found = 0
    for one in rows:
        if one.hash_ids is None or one.block_tokens is None:
            continue
        named = min(one.in_tokens, len(one.hash_ids) * one.block_tokens)
        names = []
        for end in range(block, named + 1, block):
            # Position and all ids up to the trace block in which the pool block ends.
            names.append((end, *one.hash_ids[: (end - 1) // one.block_tokens + 1]))
        hits = 0
        for name in names[: (one.in_tokens - 1) // block]:
            if name not in known:
                break
            hits += block
        found += hits
        known.update(names)
    return found


@pytest.mark.parametrize("seed", range(150))
def test_nothing_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    trace, settings = random_trace(rng), any_settings(rng)
    server = simulate(chunks(trace, size=rng.choice([1, 7, 1000])), settings, rng.choice(COSTS))
    n, rows = server.sim.n, Rows(server)
    ok, refused, failed = (int((rows.status == kind).sum()) for kind in (b.OK, b.REFUSED, b.FAILED_ROW))
    assert ok + refused + failed == len(trace)
    assert n[b.FINISHED] == ok
    assert n[b.FAILED] == failed
    assert n[b.AVAIL] == settings.total, "every block came back"
    assert n[b.FREE] + n[b.CACHED] == settings.total
    assert n[b.USED] == n[b.RUN] == n[b.TABLE_NOW] == n[b.SWAPPED] == 0
    assert n[b.PEAK_USED] <= settings.total
    if not failed:
        assert n[b.GENERATED] == rows.out_tokens[rows.ok].sum(), "each answer token once"
    assert n[b.HIT] <= ceiling(trace, settings.slot_size)
    _times(rows)
    _moments(server)


def _times(rows: Rows) -> None:
    queue, ttft, e2e = (column[rows.ok] for column in (rows.queue_s, rows.ttft_s, rows.e2e_s))
    assert not np.isnan(e2e).any()
    assert (queue >= 0).all()
    assert (ttft > queue).all()
    assert (e2e >= ttft).all()


def _moments(server: Server) -> None:
    """Room was refused for want of room."""
    seen = server.sim.snap[: server.sim.n[b.SNAPS]]
    assert (seen[:, b.N_WANTED] > seen[:, b.N_AVAIL]).all()


def test_blocks_of_one_step_are_found_in_it_by_vllm_alone() -> None:
    """vLLM names blocks as it hands them out; the reference server when they are computed."""
    twice = [row(0.0, 16, 2, (1, 2, 3, 4)), row(0.0, 16, 2, (1, 2, 3, 4))]
    hits = {}
    for engine in ("vllm", "reference"):
        settings = SimSettings(usable_blocks=50, block_size=4, engine=engine)
        hits[engine] = int(simulate(chunks(twice), settings).sim.n[b.HIT])
    assert hits == {"vllm": 12, "reference": 0}


def test_ids_that_repeat_inside_one_prompt_name_different_blocks() -> None:
    """A block's content is all ids up to it."""
    settings = SimSettings(usable_blocks=50, block_size=4, engine="reference")
    alone = simulate(chunks([row(0.0, 16, 2, (1, 1, 1, 1))]), settings)
    assert alone.sim.n[b.HIT] == 0
    later = [row(0.0, 16, 2, (1, 1, 1, 1)), row(9.0, 16, 2, (1, 1, 2, 1))]
    assert simulate(chunks(later), settings).sim.n[b.HIT] == 8


@pytest.mark.parametrize("engine", ENGINES)
def test_a_pool_that_holds_all_at_once_preempts_nobody(engine: str) -> None:
    rng = random.Random(5)
    trace = [row(0.0, rng.randint(1, 200), rng.randint(1, 50)) for _ in range(60)]
    blocks = sum(-(-(one.in_tokens + one.out_tokens) // 4) for one in trace)
    settings = SimSettings(
        usable_blocks=blocks,
        block_size=4,
        engine=engine,  # type: ignore[arg-type]
        max_num_seqs=64,
    )
    server = simulate(chunks(trace), settings)
    assert server.sim.n[b.PREEMPTIONS] == server.sim.n[b.REFUSALS] == 0


def test_hours_without_a_request_are_skipped() -> None:
    settings = SimSettings(usable_blocks=50, block_size=4)
    server = simulate(chunks([row(36_000.0 * at, 16, 4) for at in range(100)]), settings)
    assert server.events < 1_000
    assert server.now_s > 36_000.0 * 99


def test_lengths_beyond_32_bits_stay_what_they_are() -> None:
    settings = SimSettings(usable_blocks=50, block_size=4)
    rows = Rows(simulate(chunks([row(0.0, 2**33, 2**34)]), settings))
    assert rows.in_tokens.tolist() == [2**33]
    assert rows.out_tokens.tolist() == [2**34]
