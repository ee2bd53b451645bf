"""Driving the public simulators that `replay_speed.py` compares with, each in its own Python."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from mooncake_like import rows

RATE = 5.0
"""Requests a second, on average."""
POOL: dict[str, int] = {
    "usable_blocks": 200_000,
    "block_size": 16,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
}
STEP: dict[str, float] = {"fixed_s": 0.008, "token_s": 1e-5, "kv_token_s": 2e-8}
"""The server that is simulated, and how long its steps take: the same for every simulator that asks."""
LIMIT_S = 400
KVCACHE, VIDUR = "kvcache-simulator", "vidur"
NOTES = {
    KVCACHE: "replays the block hits of a trace file under one pool (LRU, 400 GiB at 128 KiB a token: the "
    "same 3.2 M tokens) and under an unlimited one. It knows no time: no scheduler, no batches, no queue, no "
    "output tokens, no preemption. Measured is its command as a whole, compiled before; beside it kvprobe as "
    "a whole process too, which reads the same file and simulates the server over time.",
    VIDUR: "simulates scheduler, queue, batches, paged blocks and preemption, step by step (its Sarathi "
    "scheduler: chunked prefill, as here). It has no prefix reuse, and its traces no hash ids; so kvprobe "
    "beside it serves the same requests without reuse. It takes the time of each kernel of a step from "
    "a table that profiles fill. Its wheel holds no profiles: they were made, not measured, from the "
    "step times that kvprobe is told. Its speed is measured here, not its accuracy. Timed is its event loop "
    "alone, with metrics, plots and traces switched off by its own options; reading the trace and filling "
    "the table are not timed.",
}
_METER = """
import json, os, resource, signal, subprocess, sys, time
begin = time.perf_counter()
child = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         errors="replace", start_new_session=True)
try:
    out, err = child.communicate(timeout=float(sys.argv[1]))
except subprocess.TimeoutExpired:
    os.killpg(child.pid, signal.SIGKILL)
    print(json.dumps({"late": True})); raise SystemExit
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps({"wall_s": time.perf_counter() - begin, "cpu_s": used.ru_utime + used.ru_stime,
    "peak_memory_bytes": used.ru_maxrss * 1024, "code": child.returncode, "out": out, "err": err}))
"""


def metered(argv: list[str], limit_s: float = LIMIT_S) -> dict[str, Any]:
    """A command as a whole, with all that it starts: time, memory, output; `why` where it failed."""
    meter = [sys.executable, "-c", _METER, str(limit_s), *argv]
    done = subprocess.run(meter, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    if found.get("late"):
        return {"why": f"not done in {limit_s:g} s"}
    if found["code"]:
        found["why"] = (found["err"].strip().splitlines() or [f"exit code {found['code']}"])[-1]
    return found


def drive_kvcache(command: Path, trace: Path) -> dict[str, Any]:
    """kvcache-simulator's `run` on a trace file."""
    argv = [str(command), "run", "--trace", str(trace), *_ARGUMENTS]
    warm = metered([*argv, "--max-records", "10"])
    return warm if "why" in warm else metered(argv)


def drive_vidur(python: str, count: int, rate: float) -> dict[str, Any]:
    """vidur's event loop on so many requests."""
    with tempfile.TemporaryDirectory() as folder:
        write_csv(Path(folder) / "trace.csv", count, rate)
        driver = str(Path(__file__).with_name("vidur_drive.py"))
        done = metered([python, driver, folder, json.dumps({**POOL, **STEP})])
    if "why" in done:
        return done
    found: dict[str, Any] = json.loads(done["out"].splitlines()[-1])
    if found["requests"] != count:
        found["why"] = f"served {found['requests']:,} of {count:,} requests"
    return found


def write_trace(path: Path, count: int) -> None:
    """In Mooncake's format."""
    with path.open("w") as file:
        for chunk in rows(count, rate=RATE):
            for row in range(len(chunk)):
                ids = chunk.ids[chunk.first[row] : chunk.first[row + 1]]
                line = {
                    "timestamp": round(1e3 * float(chunk.times_s[row])),
                    "input_length": int(chunk.in_tokens[row]),
                    "output_length": int(chunk.out_tokens[row]),
                    "hash_ids": ids.astype(np.int64).tolist(),
                }
                file.write(json.dumps(line) + "\n")


def write_csv(path: Path, count: int, rate: float) -> None:
    """In the format of vidur's trace replay."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("Date", "Time", "PromptTokenCount", "CompletionTokenCount"))
        table.writerows(_csv_rows(count, rate))


def _csv_rows(count: int, rate: float) -> Iterator[tuple[str, float, int, int]]:
    for chunk in rows(count, rate=rate):
        for row in range(len(chunk)):
            time_s = float(chunk.times_s[row])
            yield "day", time_s, int(chunk.in_tokens[row]), int(chunk.out_tokens[row])


_ARGUMENTS = (
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
