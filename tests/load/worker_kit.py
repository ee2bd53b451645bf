"""Drives a real worker process, as the parent does."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kvprobe.evidence.spool import SpoolContent, read_spool
from kvprobe.load.job import BreakerSpec, Calibration, Command, LoadJob, TargetSpec, WorkerEvent
from kvprobe.load.workload import Workload

ROOT = Path(__file__).resolve().parents[2]


def workload(arrival: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A small workload, as a LoadJob carries it."""
    document = {"name": "test", "kind": "distinct", "prompt": {"tokens": 32}, "output": {"tokens": 4}}
    return Workload.model_validate(document | {"arrival": arrival} | fields).model_dump(mode="json")


class WorkerUnderTest:
    """One worker; its events are collected until `finished`."""

    def __init__(self, process: subprocess.Popen[bytes], spool: Path) -> None:
        self.process = process
        self._spool = spool
        self.events: list[WorkerEvent] = []

    def hear(self, name: str | None = None) -> WorkerEvent:
        """The next event, or the next of that name."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = msgspec.json.decode(line, type=WorkerEvent)
            self.events.append(event)
            if name is None or event.event == name:
                return event
        raise AssertionError(f"the worker ended without {name or 'an event'}: {self.events}")

    def say(self, command: str, **fields: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(Command(command=command, **fields)) + b"\n")  # type: ignore[arg-type]
        self.process.stdin.flush()

    def go(self) -> int:
        """Wait until it is ready, and start it in a moment; returns t0."""
        self.hear("ready")
        t0_ns = time.monotonic_ns() + 50_000_000
        self.say("go", t0_ns=t0_ns)
        return t0_ns

    def finish(self) -> WorkerEvent:
        """The last event; the process has ended with 0 after it."""
        last = self.hear("finished")
        assert self.process.stdout is not None
        assert self.process.stdout.read() == b"", "nothing comes after `finished`"
        assert self.process.wait(10) == 0
        assert last.active == 0
        assert last.sent == last.ok + last.failed
        return last

    def spooled(self) -> SpoolContent:
        return read_spool(self._spool)


@contextlib.contextmanager
def worker(
    target: str | TargetSpec,
    plan: dict[str, Any],
    spool: Path,
    breaker: BreakerSpec | None = None,
    defect: str | None = None,
    **fields: Any,
) -> Iterator[WorkerUnderTest]:
    """A worker with its job given; `defect` is code that spoils it before it starts."""
    job = LoadJob(
        workload=plan,
        calibration=Calibration(source="assumed"),
        salt="test",
        target=TargetSpec(base_url=target, model="truth") if isinstance(target, str) else target,
        breaker=breaker or BreakerSpec(),
        spool_path=str(spool),
        **fields,
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "kvprobe.load.worker"]
    if defect is not None:
        script = f"import sys\nfrom kvprobe.load import worker\n{defect}\nsys.exit(worker.main())"
        command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(msgspec.json.encode(job) + b"\n")
            process.stdin.flush()
            yield WorkerUnderTest(process, spool)
        finally:
            process.kill()
