"""Start, steer and end the load workers of this machine, each a process of its own.

A worker (`python -m kvprobe.load.worker`) has the event loop, the users and the clock that stamps;
the parent only says go, drain or stop, and reads what the workers tell. Rows never cross these
pipes. `Crew` makes several workers look like one.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvprobe import children
from kvprobe.load.crew import CrewState
from kvprobe.load.job import BreakerSpec, Command, LoadJob, WorkerEvent

Heard = tuple[str, WorkerEvent | None]
"""A worker's name and what it said; None when it has ended."""


class WorkerProcess:
    """One process that takes a job line on stdin and tells events on stdout, into `heard`."""

    def __init__(
        self,
        name: str,
        job: bytes,
        log_path: Path,
        heard: queue.SimpleQueue[Heard],
        module: str = "kvprobe.load.worker",
    ) -> None:
        self.name = name
        self._job = job
        self._log_path = log_path
        self._heard = heard
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                children.module_command(self._module),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # the parent alone decides what a Ctrl-C means
                env=children.environment(),
            )
        self._send(self._job)
        self._reader = threading.Thread(target=self._read, name=f"worker-{self.name}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._heard.put((self.name, msgspec.json.decode(line, type=WorkerEvent)))
            except msgspec.DecodeError:
                continue  # a library printed to stdout; the worker's own lines are all JSON
        self._heard.put((self.name, None))

    def _send(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # it has ended; its events will say so
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def send(self, command: Command) -> None:
        self._send(msgspec.json.encode(command))

    def wait(self, timeout_s: float) -> int | None:
        """Exit code, or None when it is still running after `timeout_s`."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def begin_close(self) -> None:
        """Close its stdin: it stops at once."""
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def close(self, grace_s: float = 3.0) -> None:
        """End it whatever it does: close its stdin, then kill it by its pid."""
        process = self._process
        if process is None:
            return
        self.begin_close()
        if self.wait(grace_s) is None:
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.join(grace_s)
        if process.stdout is not None:
            process.stdout.close()


class Member(NamedTuple):
    """A process to start: its name, the line that it gets on its stdin, and the module that it runs."""

    name: str
    job: bytes
    module: str = "kvprobe.load.worker"

    @classmethod
    def of(cls, job: LoadJob) -> Member:
        """A worker of this machine."""
        return cls(job.worker, msgspec.json.encode(job))


class Crew:
    """All workers of a run. All waiting is bounded; `next_event` yields what they say, summed.

    `helpers` are processes that are started and ended with the crew and say nothing here.
    """

    def __init__(
        self,
        members: Sequence[Member],
        log_path: Path,
        helpers: Sequence[Member] = (),
        breaker: BreakerSpec | None = None,
    ) -> None:
        self._log_path = log_path
        self._heard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self._unheard: queue.SimpleQueue[Heard] = queue.SimpleQueue()
        self.processes = {
            m.name: WorkerProcess(m.name, m.job, log_path, self._heard, m.module) for m in members
        }
        self.helpers = [WorkerProcess(m.name, m.job, log_path, self._unheard, m.module) for m in helpers]
        self.state = CrewState([m.name for m in members], breaker)
        self._told: deque[WorkerEvent] = deque()

    def start(self) -> None:
        """Start every process; one that cannot be started is an OSError."""
        for process in (*self.processes.values(), *self.helpers):
            process.start()

    def send(self, command: Command) -> None:
        """To every worker."""
        for process in self.processes.values():
            process.send(command)

    def next_event(self, timeout_s: float) -> WorkerEvent | None:
        """The next event of the crew, or None when there was none in time. `finished` is the last."""
        deadline = time.monotonic() + timeout_s
        while not self._told:
            try:
                name, event = self._heard.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                return None
            self._take(name, event)
        return self._told.popleft()

    def _take(self, name: str, event: WorkerEvent | None) -> None:
        if event is not None:
            told, command = self.state.note(name, event)
        elif self.state.over:
            return
        else:
            code = self.processes[name].wait(1.0)
            told, command = self.state.lose(name, f"ended with code {code}: {self.log_tail()}")
        self._told.extend(told)
        if command is not None:
            self.send(command)

    def log_tail(self) -> str:
        try:
            text = self._log_path.read_text("utf-8", "replace").strip()
        except OSError:
            return "(no log)"
        return text[-2000:] or "(nothing in its log)"

    def close(self, grace_s: float = 3.0) -> None:
        """End every worker: all are told before the first is waited for."""
        everyone = (*self.processes.values(), *self.helpers)
        for process in everyone:
            process.begin_close()
        for process in everyone:
            process.close(grace_s)
