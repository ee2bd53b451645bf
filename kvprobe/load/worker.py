"""A load worker: `python -m kvprobe.load.worker`, one `LoadJob` line on stdin, events on stdout.

The parent decides about signals: SIGINT and SIGTERM are ignored here, and the end of stdin means
that the parent is gone, so the worker stops at once. Whatever ends the load, the rows of what was
under way are written and `finished` comes last.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    gc.disable()  # what imports make lives until the end; to look through it again and again is wasted

import locust  # noqa: F401  # isort: skip  # first of all: it patches sockets, threads and ssl for gevent

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import gevent
import gevent.os
import msgspec

from kvprobe.checked_addresses import remember
from kvprobe.errors import KvprobeError
from kvprobe.evidence.spool import SpoolWriter
from kvprobe.load.conductor import Conductor
from kvprobe.load.end_reasons import reason_of
from kvprobe.load.health import HealthMonitor
from kvprobe.load.job import Command, LoadJob, WorkerEvent
from kvprobe.load.job_setup import plan_of, prompts_of, spec_of
from kvprobe.load.users import Crowd, Journal, LoadContext
from kvprobe.load.waits import Waits
from kvprobe.load.workload import Workload

PROGRESS_S = 0.5
MAX_LINE_BYTES = 64 << 20
GC_THRESHOLDS = (20_000, 20, 50)


class Events:
    """Events to the parent, on a descriptor of their own: what libraries print to stdout goes to
    stderr instead."""

    def __init__(self) -> None:
        sys.stdout.flush()
        self._fd = os.dup(1)
        os.dup2(2, 1)

    def put(self, event: WorkerEvent) -> None:
        """Write one line; a parent that is gone is noticed on stdin, not here."""
        line = msgspec.json.encode(event) + b"\n"
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except BrokenPipeError:
            return


def read_lines(fd: int) -> Iterator[bytes]:
    """Lines of a descriptor, read in a thread so that the loop goes on; ends at end of file."""
    rest = b""
    while True:
        data = gevent.os.tp_read(fd, 65536)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
        if len(rest) > MAX_LINE_BYTES:
            return


class Worker:
    """One load, from the job to `finished`."""

    def __init__(
        self,
        job: LoadJob,
        put: Callable[[WorkerEvent], None],
        lines: Iterator[bytes],
        crowd: Callable[[LoadContext], Crowd] = Crowd,
    ) -> None:
        self._tell = put
        self._lines = lines
        workload = Workload.model_validate(job.workload)
        prompts = prompts_of(job, workload)
        self._plan = plan_of(job, workload, prompts)
        spec = spec_of(job, workload)
        self._conductor = Conductor(self._plan, job.breaker, prompts.request)
        self._spool = SpoolWriter(Path(job.spool_path), f"worker {job.worker}")
        self._journal = Journal(self._spool, self._conductor)
        self._health = HealthMonitor(job.worker, self._journal.write)
        self._waits = Waits(workload.abort, job.worker, self._journal.write)
        target = job.target
        remember(urlsplit(target.base_url).hostname or "", target.addresses)
        self._crowd = crowd(
            LoadContext(self._conductor, self._journal, spec, target.base_url, target.insecure, self._waits)
        )

    def run(self, deliver: Callable[[], None] = lambda: None) -> None:
        """Spawn users, obey commands, end; `deliver` is called when every row is in the spool."""
        self._crowd.spawn(self._plan.users)
        _tune_gc()
        self._health.start()
        listener = gevent.spawn(self._obey)
        self._put("ready")
        reporter = gevent.spawn(self._report)
        self._conductor.closing.wait()
        self._put("draining")
        self._conductor.await_end()
        self._crowd.cancel()
        gevent.killall([reporter, listener], block=False)
        self._health.stop()
        self._crowd.close()
        self._spool.close()
        deliver()
        self._put("finished", self._conductor.reason, self._conductor.detail)

    def _obey(self) -> None:
        conductor = self._conductor
        for line in self._lines:
            command = msgspec.json.decode(line, type=Command)
            if command.command == "go":
                conductor.start(command.t0_ns or 0)
            elif command.command == "drain":
                conductor.end("drained", command.reason, command.within_s)
            else:
                conductor.end("stopped", command.reason, 0.0)
        conductor.end("stopped", "the parent process is gone", 0.0)

    def _report(self) -> None:
        alarm = self._conductor.alarm
        while True:
            trouble = self._conductor.trouble if alarm.wait(PROGRESS_S) else None
            alarm.clear()
            self._waits.report()
            self._put("progress", detail=trouble)

    def _put(self, event: Any, reason: str | None = None, detail: str | None = None) -> None:
        conductor = self._conductor
        self._tell(
            WorkerEvent(
                event=event,
                sent=conductor.sent,
                ok=conductor.ok,
                failed=conductor.failed,
                active=conductor.active,
                intended=conductor.intended(),
                reason=reason,
                detail=detail,
            )
        )


def _tune_gc() -> None:
    """Keep the collector out of the measurement.

    What exists now (modules, users, prompts) lives until the end: frozen, it is never walked
    again. What a request makes is freed by reference counts; cycles are few (tracebacks), so the
    young generation is looked at rarely and is then small enough for a pause below a millisecond.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(*GC_THRESHOLDS)


def ignore_signals() -> None:
    """SIGINT and SIGTERM are the parent's business."""
    for name in ("SIGINT", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)


def main() -> int:
    """Exit code 0 whenever `finished` could be told; its reason says how the load ended."""
    ignore_signals()
    logging.getLogger("locust").setLevel(logging.ERROR)
    events = Events()
    lines = read_lines(0)
    try:
        line = next(lines, None)
        if line is None:
            return 0  # the parent ended before it gave a job
        Worker(msgspec.json.decode(line, type=LoadJob), events.put, lines).run()
    except KvprobeError as error:
        events.put(WorkerEvent(event="finished", reason=reason_of(error), detail=str(error)))
    except Exception as error:
        # The parent must hear of it, whatever it was; the traceback goes to its log.
        traceback.print_exc()
        events.put(WorkerEvent(event="finished", reason="error", detail=f"{type(error).__name__}: {error}"))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # The thread that reads stdin may still be inside a read, which a normal exit would wait for.
    os._exit(code)
