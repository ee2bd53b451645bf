"""Start, steer and end one load worker (`python -m kvprobe.load.worker`) from the parent.

The worker has the event loop, the users and the clock that stamps; the parent only says go,
drain or stop, and reads what the worker tells. Requests never cross this pipe.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
from pathlib import Path

import msgspec

from kvprobe import children
from kvprobe.load.job import Command, LoadJob, WorkerEvent


class WorkerProcess:
    """One worker. All waiting is bounded; `events` yields what it says, in order."""

    def __init__(self, job: LoadJob, log_path: Path) -> None:
        self.job = job
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._events: queue.SimpleQueue[WorkerEvent | None] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None
        self.ended = False

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                children.module_command("kvprobe.load.worker"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # the parent alone decides what a Ctrl-C means
                env=children.environment(),
            )
        self._send(msgspec.json.encode(self.job))
        self._reader = threading.Thread(target=self._read, name="worker-events", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                self._events.put(msgspec.json.decode(line, type=WorkerEvent))
            except msgspec.DecodeError:
                continue  # a library printed to stdout; the worker's own lines are all JSON
        self._events.put(None)

    def _send(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; next_event() will say so
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def send(self, command: Command) -> None:
        self._send(msgspec.json.encode(command))

    def next_event(self, timeout_s: float) -> WorkerEvent | None:
        """The next event, or None when none came in time or the worker has ended (see `ended`)."""
        try:
            event = self._events.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if event is None:
            self.ended = True
        return event

    def log_tail(self) -> str:
        try:
            text = self._log_path.read_text("utf-8", "replace").strip()
        except OSError:
            return "(no log)"
        return text[-2000:] or "(nothing in its log)"

    def wait(self, timeout_s: float) -> int | None:
        """Exit code, or None when it is still running after `timeout_s`."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def close(self, grace_s: float = 3.0) -> None:
        """End it whatever it does: close its stdin (it stops at once), then kill it by its pid."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None and not process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        if self.wait(grace_s) is None:
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.join(grace_s)
        if process.stdout is not None:
            process.stdout.close()
