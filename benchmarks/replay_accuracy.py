#!/usr/bin/env python3
"""How near is `kvprobe replay` to servers that really serve?

    python benchmarks/replay_accuracy.py [--requests 150] [--write]
    python benchmarks/replay_accuracy.py --vllm http://127.0.0.1:8000 --vllm-blocks 80 --vllm-block-size 32

The reference server's engine serves traces in real time, in this process, with the model `tiny`: arrivals
by the clock, prompts whose tokens are equal where the trace's hash ids are. The simulator's step time is
fitted to a *first* trace alone; each other trace is then simulated and served, and the relative errors are
printed, whatever they are. `--vllm` sends one burst of the same kind to a running vLLM and compares hit rate
and preemptions.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.rundata import RunData
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

ROOT = Path(__file__).resolve().parents[1]
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
    """Rows of the table: measured, simulated, relative error."""
    served = serve(rows, blocks)
    server = simulate(chunks(rows), settings(blocks), cost)
    found = Rows(server)
    ttft = spread(found.ttft_s)
    real = sorted(served.ttft())
    assert ttft is not None
    sim = server.sim.n
    from kvprobe.plan.simulate import books as b

    pairs = [
        ("peak blocks", float(served.peak_blocks), float(sim[b.PEAK_USED])),
        ("hit rate", served.hit_rate, float(sim[b.HIT]) / float(sim[b.QUERIED])),
        ("preemptions", float(served.preemptions), float(sim[b.PREEMPTIONS])),
        ("TTFT p50, ms", 1e3 * real[len(real) // 2], 1e3 * ttft.p50),
        ("TTFT p95, ms", 1e3 * real[int(len(real) * 0.95)], 1e3 * ttft.p95),
    ]
    return [_row(name, *pair) for pair in pairs]


def _row(name: str, what: str, measured: float, simulated: float) -> str:
    error = "-" if not measured else f"{100 * (simulated / measured - 1):+.1f} %"
    return f"| {name} | {what} | {measured:.4g} | {simulated:.4g} | {error} |"


def reference_part(count: int) -> list[str]:
    served = serve(trace(count, 12.0, seed=1), 400)
    run = RunData(path=Path("first"), status="complete", records=served.records)
    cost = fit_data(run, name="the first trace", budget_tokens=BUDGET)
    lines = [
        f"Step time fitted to a first trace ({count} requests, pool never full): {1e3 * cost.fixed_s:.2f} ms "
        f"a step, "
        f"{1e6 * cost.token_s:.1f} us a token, {1e9 * cost.kv_token_s:.1f} ns a KV token, "
        f"{1e9 * cost.pair_s:.2f} ns a pair. {cost.notes[1]}.",
        "",
        "| trace | what | measured | simulated | error |",
        "| --- | --- | ---: | ---: | ---: |",
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
    parser.add_argument("--vllm-requests", type=int, default=10)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    compiled.choose(0)
    title = "# How near `kvprobe replay` is to servers that serve"
    head = [title, "", "`python benchmarks/replay_accuracy.py`", ""]
    if options.vllm:
        from replay_vllm import vllm_part

        lines = [*head, *vllm_part(options)]
    else:
        lines = [*head, *reference_part(options.requests)]
    text = "\n".join(lines) + "\n"
    print(text)
    if options.write:
        name = "replay_accuracy_vllm.md" if options.vllm else "replay_accuracy.md"
        (ROOT / "reports" / name).write_text(text)


if __name__ == "__main__":
    main()
