"""Output tokens a second at 1, 8 and 16 streams: this server, vLLM, transformers' continuous batching.

    python benchmarks/server_speed.py --model DIR [--vllm VENV/bin/vllm] [--transformers VENV/bin/python]
                                      [--threads 1] [--streams 1 8 16] [--rounds 3] [--most-seconds 450]
                                      [--out FILE.md]

The same model, the same prompts (65 random token ids each, new ones every round), 64 tokens out, greedy,
end of sequence ignored, the same number of threads, fp32. All are started first; then they take turns,
round by round, so that a noisy machine is noisy for each. The best round counts, the median stands
beside it. This server and vLLM are asked over HTTP, streaming; transformers runs in a process of its
own without HTTP. An engine that is not given is left out. No round is begun that would probably end
after `--most-seconds`, the start of the servers included.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import time
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from speed_contestants import OUTPUT_TOKENS, Contestant, contestants

PROMPT_TOKENS = 65


def prompts(streams: int, seed: int, vocabulary: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, vocabulary) for _ in range(PROMPT_TOKENS)] for _ in range(streams)]


@dataclass
class Figures:
    """Of one contestant at one number of streams, a figure a round."""

    a_second: list[float] = field(default_factory=list)
    a_cpu_second: list[float] = field(default_factory=list)


Speeds = dict[tuple[str, int], Figures]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its children so far."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(float(one.user + one.system) for one in times)


def measure(found: list[Contestant], options: argparse.Namespace) -> Speeds:
    """Each contestant's turn in each round."""
    vocabulary = json.loads((options.model / "config.json").read_text())["vocab_size"]
    speeds: Speeds = defaultdict(Figures)
    for one in found:
        one.generate(prompts(max(options.streams), 0, vocabulary))  # warm
    last = time.monotonic()
    for turn in range(1, options.rounds + 1):
        began = time.monotonic()
        if turn > 1 and began + (began - last) > options.end:
            print(f"no time for round {turn} of {options.rounds}", flush=True)
            break
        last = began
        for streams in options.streams:
            for one in found:
                tokens, before = streams * OUTPUT_TOKENS, cpu_seconds(one.pid)
                seconds = one.generate(prompts(streams, 1000 * turn + streams, vocabulary))
                own = speeds[one.name, streams]
                own.a_second.append(tokens / seconds)
                own.a_cpu_second.append(tokens / (cpu_seconds(one.pid) - before))
                figures = f"{own.a_second[-1]:.1f}/s, {own.a_cpu_second[-1]:.1f} a CPU second"
                print(f"round {turn}, {streams} streams, {one.name}: {figures}", flush=True)
    return speeds


def table(
    title: str, figures: dict[tuple[str, int], list[float]], names: list[str], streams: list[int]
) -> str:
    """Best figures, medians, and how many times as large the first contestant's best is."""
    rows = [
        f"| {title} | " + " | ".join(f"{n} streams" for n in streams) + " |",
        "|" + " --- |" * (len(streams) + 1),
    ]
    for name in names:
        cells = []
        for n in streams:
            best, middle = max(figures[name, n]), statistics.median(figures[name, n])
            times = f"; ours is {max(figures[names[0], n]) / best:.1f}x" if name != names[0] else ""
            cells.append(f"{best:.1f} (median {middle:.1f}{times})")
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def report(speeds: Speeds, found: list[Contestant], options: argparse.Namespace) -> str:
    names = [one.name for one in found]
    rounds = len(next(iter(speeds.values())).a_second)
    head = (
        f"{PROMPT_TOKENS} tokens in, {OUTPUT_TOKENS} out, greedy, fp32, {options.threads} thread(s), best of "
        f"{rounds} rounds; {platform.machine()}, {os.cpu_count()} cores, load average "
        f"{os.getloadavg()[0]:.1f} at the end (some 1.5 is this benchmark's own). Tokens a CPU second: by "
        "the time that a server and its children computed, whatever else the machine was doing. Every engine "
        "computes in fp32; kvprobe keeps bf16 weights as they are in memory and widens them in registers."
    )
    by_wall = {key: own.a_second for key, own in speeds.items()}
    by_cpu = {key: own.a_cpu_second for key, own in speeds.items()}
    return "\n\n".join(
        (
            "# Output tokens a second on a CPU",
            head,
            table("output tokens/s", by_wall, names, options.streams),
            table("output tokens / CPU s", by_cpu, names, options.streams),
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--vllm")
    parser.add_argument("--transformers")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most-seconds", type=float, default=450)
    parser.add_argument("--logs", type=Path, default=Path("/tmp"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.end = time.monotonic() + options.most_seconds
    with ExitStack() as stack:
        found = contestants(options, stack)
        text = report(measure(found, options), found, options)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
