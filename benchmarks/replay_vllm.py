"""The part of `replay_accuracy.py` that asks a running vLLM: hit rate and preemptions of one burst."""

from __future__ import annotations

import argparse
import json
import random
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from kvprobe.plan.simulate import books as b
from kvprobe.plan.simulate.cost import StepCost
from kvprobe.plan.simulate.replay import simulate
from kvprobe.plan.simulate.rows import chunks
from kvprobe.plan.simulate.settings import SimSettings
from kvprobe.traces.rows import TraceRow

TRACE_BLOCK = 16
COUNTERS = ("prefix_cache_queries", "prefix_cache_hits", "num_preemptions")
TIMEOUT_S = 240
APART_S = 0.01


def burst(count: int, seed: int) -> list[TraceRow]:
    """Requests at one instant: a common beginning, a part of their own, answers that outgrow the pool."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        own = [1000 * (number + 1) + i for i in range(rng.choice([4, 8, 12]))]
        ids = (1, 2, 3, 4, *own)
        rows.append(
            TraceRow(
                0.0,
                len(ids) * TRACE_BLOCK,
                rng.choice([40, 70, 100]),
                ids,
                TRACE_BLOCK,
                None,
                None,
                number + 1,
            )
        )
    return rows


def tokens(row: TraceRow, salt: int) -> list[int]:
    """Token ids, equal where hash ids are; `salt` keeps two bursts apart."""
    found: list[int] = []
    for one in row.hash_ids or ():
        rng = random.Random(one * 7919 + salt)
        found += [rng.randrange(1000, 40000) for _ in range(TRACE_BLOCK)]
    return found


def counters(url: str) -> dict[str, float]:
    """vLLM's counters, by the middle of their names."""
    found = dict.fromkeys(COUNTERS, 0.0)
    with urllib.request.urlopen(f"{url}/metrics", timeout=20) as page:
        for line in page.read().decode().splitlines():
            for name in COUNTERS:
                if line.startswith(f"vllm:{name}_total"):
                    found[name] += float(line.rsplit(" ", 1)[1])
    return found


def send(url: str, model: str, prompt: list[int], out: int) -> int:
    """Tokens of the answer."""
    body = {"model": model, "prompt": prompt, "max_tokens": out, "ignore_eos": True, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        used: int = json.load(answer)["usage"]["completion_tokens"]
        return used


def vllm_part(options: argparse.Namespace) -> list[str]:
    url = options.vllm.rstrip("/")
    with urllib.request.urlopen(f"{url}/v1/models", timeout=20) as answer:
        model = json.load(answer)["data"][0]["id"]
    lines = [
        f"`python benchmarks/replay_accuracy.py --vllm URL --vllm-blocks {options.vllm_blocks} "
        f"--vllm-requests {options.vllm_requests}`: bursts of {options.vllm_requests} requests, "
        f"{options.vllm_blocks} blocks of {options.vllm_block_size}.",
        "",
        "| burst | what | measured | simulated |",
        "| ---: | --- | ---: | ---: |",
    ]
    for number in range(options.vllm_bursts):
        rows = burst(options.vllm_requests, seed=5 + number)
        told, (hits, preempted) = _served(url, model, rows), _simulated(rows, options)
        rate = told["prefix_cache_hits"] / max(told["prefix_cache_queries"], 1)
        lines += [
            f"| {number + 1} | prefix hit rate | {100 * rate:.1f} % | {100 * hits:.1f} % |",
            f"| {number + 1} | preemptions | {told['num_preemptions']:.0f} | {preempted} |",
        ]
    return lines


def _served(url: str, model: str, rows: list[TraceRow]) -> dict[str, float]:
    """What vLLM counted in one burst."""
    salt, before = time.time_ns() % 10**9, counters(url)
    with ThreadPoolExecutor(len(rows)) as pool:
        waiting = []
        for row in rows:
            waiting.append(pool.submit(send, url, model, tokens(row, salt), row.out_tokens))
            time.sleep(APART_S)  # so that they arrive in order
        for one in waiting:
            one.result()
    after = counters(url)
    return {name: after[name] - before[name] for name in COUNTERS}


def _simulated(rows: list[TraceRow], options: argparse.Namespace) -> tuple[float, int]:
    """Hit rate and preemptions of the same burst."""
    settings = SimSettings(
        usable_blocks=options.vllm_blocks - 1,
        block_size=options.vllm_block_size,
        engine="vllm",
        full_prompt=True,
        max_num_seqs=options.vllm_seqs,
        max_num_batched_tokens=options.vllm_budget,
        max_model_len=2048,
    )
    # The first request is alone in its step on the real server, too.
    spaced = [_later(row, APART_S * n) for n, row in enumerate(rows)]
    n = simulate(chunks(spaced), settings, StepCost(fixed_s=0.05, token_s=2e-3)).sim.n
    return float(n[b.HIT]) / float(n[b.QUERIED]), int(n[b.PREEMPTIONS])


def _later(row: TraceRow, t_s: float) -> TraceRow:
    return TraceRow(t_s, row.in_tokens, row.out_tokens, row.hash_ids, row.block_tokens, None, None, row.line)
