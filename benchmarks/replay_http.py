#!/usr/bin/env python3
"""How near is `kvprobe replay --fit` to runs over HTTP? On a quiet machine, in about four minutes.

    python benchmarks/replay_http.py [--seconds 40] [--write]
    python benchmarks/replay_http.py --target http://127.0.0.1:8000 --seconds 90 --rate 0.4 \
        --blocks 728 --block-size 32 --seats 16 --budget 2048

Two made-up traces go through `kvprobe run` (kind trace_replay) against the bundled server with a small pool;
`kvprobe replay --fit` is fitted to the first run and simulates the second one's trace. Hit rate, preemptions
and times to first token are printed beside each other. `--target` does the same with a running vLLM. The
sessions' turns wait for one another in a run and come at the trace's instants in a replay: the traces have
one turn a session, so that both are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from replay_report import OVER_HTTP, VLLM_HTTP, put

ROOT = Path(__file__).resolve().parents[1]
TOKEN_BYTES = 4096
BLOCKS, BLOCK, SEATS, BUDGET = 401, 16, 32, 256
WORKLOAD = """\
name: replay_http
kind: trace_replay
prompt:
  trace: trace.jsonl
arrival:
  open:
    trace: {}
    max_in_flight: 256
warmup:
  requests: 1
timeouts: {first_token: 300s, gap: 120s, total: 600s}
"""


def make(folder: Path, seconds: float, rate: float, seed: int) -> Path:
    """A trace whose prompts share one of six beginnings, in a folder with its workload."""
    folder.mkdir(parents=True)
    rng, at, fresh, lines = random.Random(seed), 0.5, 1000, []
    while at < seconds:
        at += rng.gammavariate(0.5, 2 / rate)
        begin, more = rng.randrange(6), rng.choice([1, 2, 4, 8])
        ids = [*range(10 * begin, 10 * begin + 4), *range(fresh, fresh + more)]
        fresh += more
        out = rng.choice([8, 30, 60, 120])
        lines.append({"t": round(at, 4), "in": 64 * len(ids) - 5, "out": out, "hash_ids": ids, "block": 64})
    (folder / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "workload.yaml").write_text(WORKLOAD)
    return folder / "workload.yaml"


def served_by(options: argparse.Namespace) -> list[str]:
    """The running server, or the bundled one with its options."""
    if options.target:
        return ["--target", options.target]
    server = (
        f"--kv-memory {options.blocks * options.block_size * TOKEN_BYTES}B --block-size {options.block_size} "
        f"--max-num-seqs {options.seats} --max-num-batched-tokens {options.budget} --max-model-len 4096"
    )
    return ["--serve-args", server]


def run(workload: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Times to first token, hits and preemptions of one run, and its directory."""
    from kvprobe.evidence.rundata import load_run
    from kvprobe.summary.build import summarise

    out = workload.parent / "runs"
    call = [sys.executable, "-m", "kvprobe", "run", str(workload), *served_by(options)]
    # An INVALID run (exit 4) has its numbers too, and the table says so.
    done = subprocess.run([*call, "--out", str(out), "--json"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode not in (0, 4):
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    path = next(one for one in out.iterdir() if one.is_dir())
    data = load_run(path)
    good = [r for r in data.records if r.failure is None and not r.warmup and r.first_token_ns]
    ttft = sorted((r.first_token_ns - (r.intended_ns or 0)) / 1e9 for r in good if r.first_token_ns)
    prompt = sum(r.prompt_tokens or 0 for r in good)
    told = any(r.cached_tokens is not None for r in good)
    return {
        "path": path,
        "valid": done.returncode == 0,
        "n": len(good),
        "ttft_p50": ttft[len(ttft) // 2],
        "ttft_p95": ttft[int(len(ttft) * 0.95)],
        "hit": sum(r.cached_tokens or 0 for r in good) / prompt if told else None,
        "preemptions": summarise(data).metrics.preemptions or 0.0,
    }


def replayed(trace: Path, fit: Path, options: argparse.Namespace) -> dict[str, Any]:
    call = [sys.executable, "-m", "kvprobe", "replay", str(trace), "--fit", str(fit), "--json"]
    call += ["--engine", "vllm" if options.target else "reference", "--max-model-len", str(options.context)]
    call += ["--blocks", str(options.blocks), "--block-size", str(options.block_size)]
    call += ["--max-num-seqs", str(options.seats), "--max-num-batched-tokens", str(options.budget)]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def report(
    first: dict[str, Any], second: dict[str, Any], found: dict[str, Any], options: argparse.Namespace
) -> list[str]:
    ttft, step = found["metrics"]["ttft_s"], found["step_time"]
    validity = ["VALID" if one["valid"] else "INVALID" for one in (first, second)]
    rows = [
        ("hit rate", second["hit"], found["prefix"]["hit_rate"]),
        ("preemptions", second["preemptions"], found["preemptions"]["events"]),
        ("TTFT p50, ms", 1e3 * second["ttft_p50"], 1e3 * ttft["p50"]),
        ("TTFT p95, ms", 1e3 * second["ttft_p95"], 1e3 * ttft["p95"]),
    ]
    lines = [
        f"`python benchmarks/replay_http.py {'--target URL ' if options.target else ''}--seconds "
        f"{options.seconds:g} --rate {options.rate:g}`, {os.cpu_count()} cores. "
        f"Fitted to a run of {first['n']} requests ({validity[0]}): {1e3 * step['fixed_s']:.2f} ms a step, "
        f"{1e6 * step['token_s']:.1f} us a token, {1e3 * step['front_s']:.2f} ms a request besides. Compared "
        f"with a run of {second['n']} requests ({validity[1]}).",
        "",
        "| what | measured | simulated | error |",
        "| --- | ---: | ---: | ---: |",
    ]
    for what, real, told in rows:
        error = f"{100 * (told / real - 1):+.1f} %" if real else "-"
        measured = "not told" if real is None else f"{real:.4g}"
        lines.append(f"| {what} | {measured} | {told:.4g} | {error} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=40.0, help="of each trace")
    parser.add_argument("--rate", type=float, default=3.0, help="requests a second")
    parser.add_argument("--target", metavar="URL", help="a running vLLM, instead of the bundled server")
    parser.add_argument("--blocks", type=int, default=BLOCKS, help="of the pool, the null block among them")
    parser.add_argument("--block-size", type=int, default=BLOCK)
    parser.add_argument("--seats", type=int, default=SEATS)
    parser.add_argument("--budget", type=int, default=BUDGET, help="tokens a step")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--write", action="store_true", help="to reports/replay_accuracy.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        one = run(make(Path(folder) / "first", options.seconds, options.rate, 1), options)
        workload = make(Path(folder) / "second", options.seconds, 1.3 * options.rate, 2)
        two = run(workload, options)
        found = replayed(workload.parent / "trace.jsonl", one["path"], options)
        lines = report(one, two, found, options)
    print("\n".join(lines))
    if options.write:
        put(VLLM_HTTP if options.target else OVER_HTTP, lines)


if __name__ == "__main__":
    main()
