"""What the benchmarks of the client share: the truth server, child processes, and a load worker."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

from kvprobe.load.job import BreakerSpec, Calibration, LoadJob, TargetSpec
from kvprobe.load.workload import Workload

ROOT = Path(__file__).resolve().parent.parent
TTFT_MS, ITL_MS, TOKENS = 200.0, 20.0, 32


@contextlib.contextmanager
def truth_server(*switches: str) -> Iterator[str]:
    """Its URL; later switches win."""
    script = ROOT / "benchmarks" / "truth_server.py"
    command = [
        sys.executable,
        str(script),
        "--ttft",
        str(TTFT_MS),
        "--itl",
        str(ITL_MS),
        "--max-seconds",
        "3600",
        *switches,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def call(url: str, *, post: bool = False) -> Any:
    """A page of the truth server, as JSON."""
    request = urllib.request.Request(url, method="POST" if post else "GET")
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


class Child:
    """A client process whose CPU is known: at the start signal, and in all."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        self.start_cpu_s = 0.0

    def say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def hear(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def hear_until(self, word: bytes) -> None:
        """Until a line holds `word`. Raises when the process ends without having said it."""
        while word not in (line := self.hear()):
            if not line:
                raise RuntimeError(f"the client ended without {word.decode()}")

    def note_start(self) -> None:
        """The CPU so far is that of the start."""
        times = psutil.Process(self.process.pid).cpu_times()
        self.start_cpu_s = times.user + times.system

    def cpu_at_end_s(self) -> float:
        """Wait for the end; all CPU of the process."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        _, status, usage = os.wait4(self.process.pid, 0)
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self.process.stdin.close()
        self.process.stdout.close()
        return usage.ru_utime + usage.ru_stime


def start_worker(url: str, streams: int, rounds: int, index: int, spools: list[Path]) -> Child:
    """Worker `index` of `len(spools)`, with its job on its stdin."""
    workload = Workload.model_validate(
        {
            "name": "client_truth",
            "kind": "distinct",
            "prompt": {"tokens": 32},
            "output": {"tokens": TOKENS},
            "arrival": {"closed": {"users": streams}},
            "requests": streams * rounds,
        }
    )
    job = LoadJob(
        workload=workload.model_dump(mode="json"),
        calibration=Calibration(source="assumed"),
        salt="truth",
        target=TargetSpec(base_url=url, model="truth"),
        breaker=BreakerSpec(),
        spool_path=str(spools[index]),
        worker=str(index),
        worker_index=index,
        workers=len(spools),
    )
    child = Child([sys.executable, "-m", "kvprobe.load.worker"], {**os.environ, "PYTHONPATH": str(ROOT)})
    child.say(msgspec.json.encode(job))
    return child
