"""Driving the public simulators that `replay_speed.py` compares with, each in its own Python."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from mooncake_like import rows

LIMIT_S = 300


def drive(python: str, name: str, count: int) -> dict[str, Any]:
    """What it took for so many requests; `why` where it could not be driven."""
    if name == "kvcache-simulator":
        return _kvcache(Path(python).parent / "kvcache-simulator", count)
    return {"why": "no command takes a trace without its own profiles of kernels"}


def write_trace(path: Path, count: int) -> None:
    """In Mooncake's format."""
    with path.open("w") as file:
        for chunk in rows(count, rate=5.0):
            for row in range(len(chunk)):
                ids = chunk.ids[chunk.first[row] : chunk.first[row + 1]]
                line = {
                    "timestamp": round(1e3 * float(chunk.times_s[row])),
                    "input_length": int(chunk.in_tokens[row]),
                    "output_length": int(chunk.out_tokens[row]),
                    "hash_ids": ids.astype(np.int64).tolist(),
                }
                file.write(json.dumps(line) + "\n")


def _kvcache(command: Path, count: int) -> dict[str, Any]:
    """Its `run` on a trace file; reading the file is part of its time."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        write_trace(trace, count)
        argv = [str(command), "run", "--trace", str(trace), *ARGUMENTS]
        begin = time.perf_counter()
        try:
            done = subprocess.run(["bash", "-c", 'time -p "$@"', "-", *argv], **_PIPES, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            return {"why": f"not done with {count:,} requests in {LIMIT_S} s"}
        wall = time.perf_counter() - begin
    times = dict(line.split() for line in done.stderr.splitlines() if line[:4] in ("user", "sys "))
    if done.returncode:
        return {"why": (done.stderr.strip().splitlines() or ["failed"])[0][:200]}
    note = "replays block hits of a trace file, reading it included; no time, no scheduler, no preemption"
    return {
        "requests": count,
        "wall_s": wall,
        "cpu_s": float(times.get("user", wall)) + float(times.get("sys", 0.0)),
        "note": note,
    }


ARGUMENTS = (
    "--model",
    "llama-3.1-8b",
    "--budgets-gib",
    "400",
    "--policies",
    "lru",
    "--no-progress",
    "--block-size",
    "512",
)
"""3.2 M tokens at 128 KiB are 400 GiB."""
_PIPES: dict[str, Any] = {"capture_output": True, "text": True, "check": False}
