#!/usr/bin/env python3
"""How near is `kvprobe replay` to servers that really serve?

    python benchmarks/replay_accuracy.py [--requests 150] [--write]
    python benchmarks/replay_accuracy.py --vllm http://127.0.0.1:8000 --vllm-blocks 80 --vllm-block-size 32

The reference server's engine serves traces in real time, in this process, with the model `tiny`: arrivals
by the clock, prompts whose tokens are equal where the trace's hash ids are. The simulator's step time is
fitted to a *first* trace alone; each other trace is then simulated and served, and the relative errors are
printed, whatever they are. Each is served twice: what the server itself gives the second time is the
measure of what can be expected of any prediction. `--vllm` sends bursts of the same kind to a running vLLM
and compares hit rate and preemptions.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replay_report import IN_PROCESS, VLLM, put

from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.rundata import RunData
from kvprobe.plan.simulate import books as b
from kvprobe.plan.simulate import compiled
from kvprobe.plan.simulate.cost import StepCost
from kvprobe.plan.simulate.fit import fit_data
from kvprobe.plan.simulate.outcome import Rows, spread
from kvprobe.plan.simulate.replay import simulate
from kvprobe.plan.simulate.rows import chunks
from kvprobe.plan.simulate.settings import SimSettings
from kvprobe.traces.rows import TraceRow
from reference_server.build import build_core
from reference_server.config import ServerConfig
from reference_server.core import EngineCore
from reference_server.detokenizer import TextStream
from reference_server.metrics import Metrics
from reference_server.models.tokenizer import ByteTokenizer
from reference_server.sampler import SamplingParams, TokenChooser
from reference_server.sequence import Sequence, Timeline

BLOCK = 16
SEATS, BUDGET = 32, 256
TOKEN_BYTES = 4096


@dataclass
class Served:
    """One trace on the real engine."""

    peak_blocks: int = 0
    hit_rate: float = 0.0
    preemptions: int = 0
    records: list[RequestRecord] = field(default_factory=list)

    def ttft(self) -> list[float]:
        return [((r.first_token_ns or 0) - (r.sent_ns or 0)) / 1e9 for r in self.records]


def trace(count: int, rate: float, seed: int) -> list[TraceRow]:
    """Chats that share a system prompt, and answers of very different lengths."""
    rng = random.Random(seed)
    rows, at, fresh = [], 0.0, 100
    chats: list[list[int]] = [[1, 2, 3, 4] for _ in range(12)]
    for number in range(count):
        at += rng.gammavariate(0.5, 2 / rate)
        place = rng.randrange(12)
        known = chats[place] if rng.random() < 0.5 else [1, 2, 3, 4]
        more = rng.choice([2, 4, 8, 20])
        ids = (known + list(range(fresh, fresh + more)))[:40]
        fresh += more
        chats[place] = ids
        tokens = len(ids) * BLOCK - rng.randrange(BLOCK)
        out = rng.choice([8, 30, 60, 60, 200])
        rows.append(TraceRow(at, tokens, out, tuple(ids), BLOCK, str(place), None, number + 1))
    return rows


def ramp(count: int, seed: int) -> list[TraceRow]:
    """The trace of the fit: the same kind, at first a light load and then one that fills the seats."""
    light, heavy = trace(count // 2, 12.0, seed), trace(count - count // 2, 60.0, seed + 1000)
    begin = light[-1].t_s + 1.0
    return light + [_moved(row, row.t_s + begin, len(light) + row.line) for row in heavy]


def _moved(row: TraceRow, t_s: float, line: int) -> TraceRow:
    """Later, and with ids of its own."""
    ids = tuple(one + 1_000_000 for one in row.hash_ids or ())
    return TraceRow(t_s, row.in_tokens, row.out_tokens, ids, BLOCK, None, None, line)


def prompt(row: TraceRow, low: int = 32, high: int = 127) -> list[int]:
    tokens: list[int] = []
    for one in row.hash_ids or ():
        rng = random.Random(one)
        tokens += [rng.randrange(low, high) for _ in range(BLOCK)]
    return tokens[: row.in_tokens]


def engine(blocks: int) -> EngineCore:
    config = ServerConfig(
        kv_memory_bytes=(blocks + 1) * BLOCK * TOKEN_BYTES,
        block_size=BLOCK,
        max_num_seqs=SEATS,
        max_num_batched_tokens=BUDGET,
        max_model_len=4096,
    )
    return build_core(config, Metrics("accuracy", vllm_names=False))


def serve(rows: list[TraceRow], blocks: int) -> Served:
    """In real time, to the end."""
    core, served, coming = engine(blocks), Served(), deque(enumerate(rows))
    prompts = [prompt(row) for row in rows]
    stamps: dict[str, list[int]] = {}
    cached: dict[str, int] = {}
    begin = time.monotonic_ns()
    while coming or core.has_work:
        now = (time.monotonic_ns() - begin) / 1e9
        while coming and coming[0][1].t_s <= now:
            number, row = coming.popleft()
            core.add(_sequence(core, number, prompts[number], row))
        if not core.has_work:
            time.sleep(min(0.001, max(coming[0][1].t_s - now, 0)))
            continue
        for name, event in core.step():
            if event.token is not None:
                stamps.setdefault(name, []).append(time.monotonic_ns())
                cached.setdefault(name, event.cached_tokens)
    served.peak_blocks = round(core.state.usage_ratio_max * core.state.usage.blocks_total)
    metrics = core._metrics
    served.preemptions = int(metrics.preemptions._value.get())
    served.hit_rate = metrics.prefix_hits._value.get() / metrics.prefix_queries._value.get()
    served.records = [_record(n, row, stamps[str(n)], cached[str(n)], begin) for n, row in enumerate(rows)]
    return served


def _sequence(core: EngineCore, number: int, tokens: list[int], row: TraceRow) -> Sequence:
    return Sequence(
        request_id=str(number),
        tokens=list(tokens),
        num_prompt_tokens=len(tokens),
        max_tokens=row.out_tokens,
        chooser=TokenChooser(SamplingParams()),
        text=TextStream(ByteTokenizer()),
        chain=core.chain(None),
        timeline=Timeline(arrived=time.monotonic()),
    )


def _record(number: int, row: TraceRow, stamps: list[int], cached: int, begin: int) -> RequestRecord:
    return RequestRecord(
        request_id=str(number),
        kind="trace",
        intended_ns=begin + round(row.t_s * 1e9),
        sent_ns=begin + round(row.t_s * 1e9),
        first_token_ns=stamps[0],
        last_token_ns=stamps[-1],
        gaps_ns=[b - a for a, b in pairwise(stamps)],
        prompt_tokens=row.in_tokens,
        cached_tokens=cached,
        completion_tokens=len(stamps),
        plan_index=number,
    )


def settings(blocks: int, **more: Any) -> SimSettings:
    said = {
        "usable_blocks": blocks,
        "block_size": BLOCK,
        "engine": "reference",
        "max_num_seqs": SEATS,
        "max_num_batched_tokens": BUDGET,
        "max_model_len": 4096,
    }
    return SimSettings(**{**said, **more})


def compare(name: str, rows: list[TraceRow], blocks: int, cost: StepCost) -> list[str]:
    """Rows of the table: measured twice, simulated, relative error against the mean of the two."""
    one, two = (_figures(serve(rows, blocks)) for _ in range(2))
    server = simulate(chunks(rows), settings(blocks), cost)
    ttft, sim = spread(Rows(server).ttft_s), server.sim.n
    assert ttft is not None
    simulated = (
        float(sim[b.PEAK_USED]),
        float(sim[b.HIT]) / float(sim[b.QUERIED]),
        float(sim[b.PREEMPTIONS]),
        1e3 * ttft.p50,
        1e3 * ttft.p95,
    )
    return [_row(name, *pair) for pair in zip(FIGURES, one, two, simulated, strict=True)]


FIGURES = ("peak blocks", "hit rate", "preemptions", "TTFT p50, ms", "TTFT p95, ms")


def _figures(served: Served) -> tuple[float, ...]:
    real = sorted(served.ttft())
    times = (1e3 * real[len(real) // 2], 1e3 * real[int(len(real) * 0.95)])
    return (float(served.peak_blocks), served.hit_rate, float(served.preemptions), *times)


def _row(name: str, what: str, one: float, two: float, simulated: float) -> str:
    measured = (one + two) / 2
    again = f"{100 * (two / one - 1):+.1f} %" if one else "-"
    error = f"{100 * (simulated / measured - 1):+.1f} %" if measured else "-"
    return f"| {name} | {what} | {one:.4g} | {two:.4g} | {again} | {simulated:.4g} | {error} |"


def reference_part(count: int) -> list[str]:
    served = serve(ramp(count, seed=1), 1000)
    run = RunData(path=Path("first"), status="complete", records=served.records)
    cost = fit_data(run, name="the first trace", budget_tokens=BUDGET)
    lines = [
        f"`python benchmarks/replay_accuracy.py --requests {count}`, {os.cpu_count()} cores, load "
        f"{os.getloadavg()[0]:.1f} (one is this benchmark's own).",
        "",
        f"Step time fitted to a first trace ({count} requests, light and then heavy load, pool never full, "
        f"{cost.seen_running} decoding at once at most): {1e3 * cost.fixed_s:.2f} ms "
        f"a step, {1e6 * cost.token_s:.1f} us a token, {1e9 * cost.kv_token_s:.1f} ns a KV token, "
        f"{1e9 * cost.pair_s:.2f} ns a pair. {' '.join(f'{note}.' for note in cost.notes[1:])}",
        "",
        "| trace | what | measured | again | differs by | simulated | error |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += compare("same load, 400 blocks", trace(count, 12.0, seed=2), 400, cost)
    lines += compare("twice the load, 200 blocks", trace(count, 24.0, seed=3), 200, cost)
    lines += compare("all at once, 150 blocks", [_at_zero(r) for r in trace(count, 12.0, seed=4)], 150, cost)
    return lines


def _at_zero(row: TraceRow) -> TraceRow:
    return TraceRow(0.0, row.in_tokens, row.out_tokens, row.hash_ids, row.block_tokens, None, None, row.line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=150)
    parser.add_argument("--write", action="store_true", help="to reports/replay_accuracy.md")
    parser.add_argument("--vllm", metavar="URL")
    parser.add_argument("--vllm-blocks", type=int, default=80)
    parser.add_argument("--vllm-block-size", type=int, default=32)
    parser.add_argument("--vllm-seqs", type=int, default=16)
    parser.add_argument("--vllm-budget", type=int, default=512)
    parser.add_argument("--vllm-requests", type=int, default=16)
    parser.add_argument("--vllm-bursts", type=int, default=3)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    compiled.choose(0)
    if options.vllm:
        from replay_vllm import vllm_part

        part, lines = VLLM, vllm_part(options)
    else:
        part, lines = IN_PROCESS, reference_part(options.requests)
    print("\n".join(lines))
    if options.write:
        put(part, lines)


if __name__ == "__main__":
    main()
