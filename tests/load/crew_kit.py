"""Real masters and workers as processes, without the command line around them."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from kvprobe.evidence.spool import SpoolContent, read_spool_into
from kvprobe.load.job import BreakerSpec, Calibration, Command, LoadJob, TargetSpec, WorkerEvent
from kvprobe.load.jobs_remote import AgentJob, MasterJob

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
"""For one event: only a hang takes so long."""


class Peer:
    """One process that takes a job line and tells events."""

    def __init__(self, module: str, job: Any, prefix: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.events: list[WorkerEvent] = []
        self._queue: queue.SimpleQueue[WorkerEvent | None] = queue.SimpleQueue()
        self._write(msgspec.json.encode(job))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._queue.put(msgspec.json.decode(line, type=WorkerEvent))
        self._queue.put(None)

    def _write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def say(self, command: str, **fields: Any) -> None:
        self._write(msgspec.json.encode(Command(command=command, **fields)))  # type: ignore[arg-type]

    def hear(self, *names: str) -> WorkerEvent:
        """The next event of one of these names."""
        while True:
            event = self._queue.get(timeout=PATIENCE_S)
            assert event is not None, f"it ended without {names}: {self.events}"
            self.events.append(event)
            if event.event in names:
                return event

    def hear_sent(self, count: int) -> WorkerEvent:
        """The first progress that tells of so many requests."""
        while (event := self.hear("progress", "finished")).sent < count:
            assert event.event == "progress", event
        return event

    def go(self, delay_s: float = 0.3) -> int:
        self.hear("ready")
        t0_ns = time.monotonic_ns() + int(delay_s * 1e9)
        self.say("go", t0_ns=t0_ns)
        return t0_ns

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join(5)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def load_job(url: str, plan: dict[str, Any], **fields: Any) -> LoadJob:
    return LoadJob(
        workload=plan,
        calibration=Calibration(source="assumed"),
        salt="test",
        target=TargetSpec(base_url=url, model="truth"),
        breaker=BreakerSpec(),
        **{"spool_path": "", **fields},
    )


def master(
    url: str,
    plan: dict[str, Any],
    spool_dir: Path,
    *,
    workers: int,
    port: int,
    host: str = "127.0.0.1",
    prefix: Sequence[str] = (),
    **fields: Any,
) -> Peer:
    spool_dir.mkdir(parents=True, exist_ok=True)
    job = MasterJob(
        job=load_job(url, plan),
        spool_dir=str(spool_dir),
        bind_host=host,
        bind_port=port,
        expect_workers=workers,
        **fields,
    )
    return Peer("kvprobe.load.master", job, prefix)


def agent(
    spool_dir: Path, port: int, host: str = "127.0.0.1", prefix: Sequence[str] = (), **fields: Any
) -> Peer:
    spool_dir.mkdir(parents=True, exist_ok=True)
    job = AgentJob(
        **{"master_host": host, "master_port": port, "spool_dir": str(spool_dir), "trusted": True, **fields}
    )
    return Peer("kvprobe.load.agent", job, prefix)


def spooled(folder: Path) -> SpoolContent:
    """All that lies in a spool folder."""
    content = SpoolContent()
    for path in sorted(folder.glob("*.jsonl")):
        read_spool_into(content, path)
    return content
