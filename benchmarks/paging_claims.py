#!/usr/bin/env python3
"""Are the usual claims for paged KV memory true here? Measured on the reference server's engine.

Same memory, same requests, all there from the start; only the owner of the memory differs. Lengths
are drawn from quantiles published for the conversation trace of the Azure LLM inference dataset 2023
(input p50 1020, p95 4083, p99 4142; output 129, 451, 601 tokens; github.com/Azure/AzurePublicDataset,
CC-BY 4.0), linear between them. The model is a very small one with random weights: how much memory a
request holds does not depend on what is computed with it.

    python benchmarks/paging_claims.py [--requests 240] [--pool-tokens 65536] [--quick]

writes reports/paging_claims.md. Times are of this machine and moment; the rest repeats exactly.
"""

from __future__ import annotations

import argparse
import logging
import platform
import random
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence as Sequences
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from reference_server.build import build_core
from reference_server.config import ServerConfig
from reference_server.core import EngineCore
from reference_server.detokenizer import TextStream
from reference_server.metrics import Metrics
from reference_server.models.shape import LlamaConfig
from reference_server.models.tokenizer import VOCABULARY_SIZE, ByteTokenizer
from reference_server.sampler import SamplingParams, TokenChooser
from reference_server.sequence import Sequence, Timeline

SHAPE = LlamaConfig(
    name="claims",
    vocabulary_size=VOCABULARY_SIZE,
    hidden=32,
    intermediate=32,
    layers=1,
    heads=2,
    kv_heads=1,
    head_dim=16,
    max_positions=32768,
)
CONTEXT_TOKENS = 8192
INPUT_QUANTILES = ((0.0, 1), (0.5, 1020), (0.95, 4083), (0.99, 4142), (1.0, 4200))
OUTPUT_QUANTILES = ((0.0, 1), (0.5, 129), (0.95, 451), (0.99, 601), (1.0, 700))
SYSTEM_PROMPT_TOKENS = 2048
REPORT = Path(__file__).resolve().parents[1] / "reports" / "paging_claims.md"


@dataclass(slots=True)
class Ran:
    """One way of owning the memory, over all requests. Averages are over steps with a queue."""

    name: str
    running_max: int = 0
    steps: int = 0
    seconds: float = 0.0
    running: list[int] = field(default_factory=list)
    use: list[float] = field(default_factory=list)
    """Stored tokens over held slots."""
    tail: list[float] = field(default_factory=list)
    """Empty tail slots over stored tokens."""
    tail_slots: list[int] = field(default_factory=list)
    tables: list[int] = field(default_factory=list)
    schedule_s: list[float] = field(default_factory=list)
    preemptions: float = 0.0


def draw(quantiles: Sequences[tuple[float, int]], rng: random.Random) -> int:
    """A whole number from a quantile function that is linear between its points."""
    at = rng.random()
    right = max(bisect_left([q for q, _ in quantiles], at), 1)
    (q0, v0), (q1, v1) = quantiles[right - 1], quantiles[right]
    return max(1, round(v0 + (v1 - v0) * (at - q0) / (q1 - q0)))


def requests(count: int) -> list[tuple[int, int]]:
    """(prompt tokens, output tokens)."""
    rng = random.Random(20231116)
    return [(draw(INPUT_QUANTILES, rng), draw(OUTPUT_QUANTILES, rng)) for _ in range(count)]


def make_core(pool_tokens: int, **options: Any) -> EngineCore:
    """`pool_tokens` slots, and the null block beside them."""
    null_tokens = (
        1 if options.get("allocator", "").startswith("contiguous") else options.get("block_size", 16)
    )
    config = ServerConfig(
        **{
            "kv_memory_bytes": (pool_tokens + null_tokens) * SHAPE.kv_bytes_per_token(),
            "max_num_seqs": 1024,
            "max_num_batched_tokens": 2048,
            "max_model_len": CONTEXT_TOKENS,
            "prefix_caching": False,
            **options,
        }
    )
    return build_core(config, Metrics("claims", vllm_names=False), SHAPE)


def add(core: EngineCore, number: int, prompt: list[int], output: int) -> Sequence:
    sequence = Sequence(
        request_id=f"r{number}",
        tokens=prompt,
        num_prompt_tokens=len(prompt),
        max_tokens=output,
        chooser=TokenChooser(SamplingParams()),
        text=TextStream(ByteTokenizer()),
        chain=core.chain(None),
        timeline=Timeline(arrived=time.monotonic()),
        stop_tokens=frozenset(),
    )
    core.add(sequence)
    return sequence


def prompt_of(number: int, length: int) -> list[int]:
    rng = random.Random(number)
    return [rng.randrange(32, 127) for _ in range(length)]


def run(name: str, wanted: Sequences[tuple[int, int]], pool_tokens: int, **options: Any) -> Ran:
    """All requests at once, to their end."""
    core, ran = make_core(pool_tokens, **options), Ran(name)
    for number, (length, output) in enumerate(wanted):
        add(core, number, prompt_of(number, length), output)
    schedule = core.scheduler.schedule

    def timed() -> Any:
        started = time.perf_counter()
        step = schedule()
        ran.schedule_s.append(time.perf_counter() - started)
        return step

    core.scheduler.schedule = timed  # type: ignore[method-assign]
    started = time.monotonic()
    while core.has_work:
        core.step()
        sample(core, ran)
    ran.seconds = time.monotonic() - started
    ran.steps, ran.running_max = core.state.steps, core.state.running_max
    ran.preemptions = core._metrics.preemptions._value.get()
    return ran


def sample(core: EngineCore, ran: Ran) -> None:
    usage = core.state.usage
    if not core.state.waiting or not usage.table_blocks:
        return
    held = usage.stored_tokens + usage.tail_slots + usage.reserved_slots
    ran.running.append(core.state.running)
    ran.use.append(usage.stored_tokens / held)
    ran.tail.append(usage.tail_slots / max(usage.stored_tokens, 1))
    ran.tail_slots.append(usage.tail_slots)
    ran.tables.append(usage.table_bytes)


def shared_prompt(count: int, block_size: int = 16) -> tuple[int, int]:
    """Bytes held, and bytes that would be held without sharing, while `count` requests run."""
    pool = (count + 1) * (SYSTEM_PROMPT_TOKENS + 5000)
    core = make_core(pool, prefix_caching=True, block_size=block_size, max_num_batched_tokens=8192)
    system = prompt_of(-1, SYSTEM_PROMPT_TOKENS)
    add(core, -1, [*system, 65], 1)
    while core.has_work:
        core.step()
    # Long enough outputs that all run at once; the prompts' own parts are those of the trace.
    for number, (length, _) in enumerate(requests(count)):
        add(core, number, [*system, *prompt_of(number, length)], 2000)
    while any(s.num_output_tokens < 1 for s in core.scheduler.running) or core.state.waiting:
        core.step()
    usage = core.state.usage
    return usage.blocks_used * core.state.block_bytes, usage.table_blocks * core.state.block_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=240)
    parser.add_argument("--pool-tokens", type=int, default=65536)
    parser.add_argument("--quick", action="store_true", help="24 requests, two block sizes; writes no report")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    wanted = requests(24 if options.quick else options.requests)
    sizes = (16, 64) if options.quick else (4, 8, 16, 32, 64)
    counts = (4,) if options.quick else (4, 16, 64)
    owners = [
        run(name, wanted, options.pool_tokens, allocator=name)
        for name in ("contiguous", "contiguous-exact", "paged-reserve", "paged")
    ]
    blocks = [run(str(size), wanted, options.pool_tokens, block_size=size) for size in sizes]
    shared = [(count, *shared_prompt(count)) for count in counts]
    text = report(options, wanted, owners, blocks, shared)
    print(text)
    if not options.quick:
        REPORT.write_text(text)


def report(
    options: argparse.Namespace,
    wanted: Sequences[tuple[int, int]],
    owners: list[Ran],
    blocks: list[Ran],
    shared: list[tuple[int, int, int]],
) -> str:
    """The page."""
    parts = (head(options, wanted), owner_part(owners), shared_part(shared), block_part(blocks))
    return "\n".join(line for part in parts for line in part)


def head(options: argparse.Namespace, wanted: Sequences[tuple[int, int]]) -> list[str]:
    means = [fmean(column) for column in zip(*wanted, strict=True)]
    return [
        "# Claims for paged KV memory, tried on the reference server",
        "",
        f"`python benchmarks/paging_claims.py --requests {len(wanted)} --pool-tokens {options.pool_tokens}`, "
        f"Python {platform.python_version()}, {platform.machine()}, a shared machine of 2 cores: "
        "times are worth little, all other columns repeat exactly.",
        "",
        f"{len(wanted)} requests, all waiting from the start: {means[0]:.0f} tokens in, {means[1]:.0f} out "
        f"on average (quantiles of the Azure 2023 conversation trace, source in the script). The pool has "
        f"{options.pool_tokens} token slots, the context limit is {CONTEXT_TOKENS} tokens. Averages are over "
        "the steps in which somebody waited.",
        "",
    ]


def owner_part(owners: list[Ran]) -> list[str]:
    base, paged = owners[0], owners[-1]
    return [
        "## Same memory, same requests",
        "",
        "| memory owned by | most at once | at once, mean | x contiguous | held slots in use | steps "
        "| preempted |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(owner_row(ran, base) for ran in owners),
        "",
        f"- Claimed: 2-4 times the concurrency of contiguous reservation. Here: {_ratio(paged, base)} times. "
        "(The 2-4 times of arXiv 2309.06180 is throughput, of whole systems of 2023, on other lengths.)",
        f"- Claimed: 20-40 % of what is reserved is used. Here: {100 * fmean(base.use):.1f} % under "
        f"`contiguous`, which reserves {CONTEXT_TOKENS} tokens for each.",
        "- The ratio follows from the lengths: a context limit of twice the size would double it. "
        "Concurrency is not speed: steps are counted, not seconds.",
        "",
    ]


def shared_part(shared: list[tuple[int, int, int]]) -> list[str]:
    return [
        "## One system prompt for all",
        "",
        f"{SYSTEM_PROMPT_TOKENS} tokens of system prompt, then each request's own input; KV bytes held "
        "while all run.",
        "",
        "| requests at once | held, shared | held, were nothing shared | saved |",
        "| ---: | ---: | ---: | ---: |",
        *(
            f"| {count} | {held / 2**20:.2f} MiB | {without / 2**20:.2f} MiB "
            f"| {100 - 100 * held / without:.1f} % |"
            for count, held, without in shared
        ),
        "",
        "Claimed: 30-50 %. The share grows with the number of requests towards system / (system + own), and "
        "is small for few of them or long inputs of their own.",
        "",
    ]


def block_part(blocks: list[Ran]) -> list[str]:
    return [
        "## Block size",
        "",
        "| block | tail slots, mean | bound A x (B-1), mean | tail / stored | tables, mean | at once, mean "
        "| scheduling a step, median |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(block_row(ran) for ran in blocks),
        "",
        "A is the number of running requests, B the block size; every step kept the bound. Tables are 8 "
        "bytes an entry (a Python list). `scheduling` is the scheduler's own time, allocation included.",
        "",
    ]


def _ratio(ran: Ran, base: Ran) -> str:
    return f"{fmean(ran.running) / fmean(base.running):.1f}"


def owner_row(ran: Ran, base: Ran) -> str:
    return (
        f"| `{ran.name}` | {ran.running_max} | {fmean(ran.running):.1f} | {_ratio(ran, base)} "
        f"| {100 * fmean(ran.use):.1f} % | {ran.steps} | {ran.preemptions:.0f} |"
    )


def block_row(ran: Ran) -> str:
    size = int(ran.name)
    bounds = [count * (size - 1) for count in ran.running]
    assert all(tail <= bound for tail, bound in zip(ran.tail_slots, bounds, strict=True))
    median = sorted(ran.schedule_s)[len(ran.schedule_s) // 2]
    return (
        f"| {size} | {fmean(ran.tail_slots):.1f} | {fmean(bounds):.1f} | {100 * fmean(ran.tail):.2f} % "
        f"| {fmean(ran.tables) / 1024:.1f} KiB | {fmean(ran.running):.1f} | {median * 1e6:.0f} us |"
    )


if __name__ == "__main__":
    main()
