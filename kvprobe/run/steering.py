"""Following the load workers from their start to `finished`: go, drain, stop, and how long each may take."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from kvprobe.errors import Exit, Problem, gravest
from kvprobe.evidence.secrets import masked
from kvprobe.gates.abort import AbortWatch
from kvprobe.load.job import Command, WorkerEvent
from kvprobe.load.prompts import PromptSource
from kvprobe.load.runner import Crew
from kvprobe.load.workload import Workload
from kvprobe.observe.sampler import Sampler
from kvprobe.run.guards import watch_of
from kvprobe.run.interrupts import Interrupts
from kvprobe.run.options import LoadEnding, Prepared
from kvprobe.run.progress import Progress

log = logging.getLogger("kvprobe.run")

READY_TIMEOUT_S = 60.0
READY_PER_ROW_S = 1e-4
"""More for each row of a trace, which each worker reads: some 20 times what a free core needs."""
START_DELAY_S = 0.3
"""From `go` to the schedule's zero, so that the worker has the command before its first tick."""
MAX_LOAD_S = 3600.0
"""Bound of a load, or of a warm-up, that is limited by its number of requests alone."""
DRAIN_GRACE_S = 15.0
"""Beyond the drain's own time, for a worker that is busy."""
STOP_GRACE_S = 5.0
"""From `stop` until the worker is given up."""
POLL_S = 0.1

_MORE_FILES = "the limit is this machine's: raise it (ulimit -n), or ask for fewer requests at once"
_DRAINING = "stopping: no new requests, waiting for those in flight (again to stop at once) ..."


def longest_load_s(workload: Workload) -> float:
    """When the load has ended by itself if all is well, seconds after its start. The duration
    counts from the first measured request; the warm-up comes before it."""
    warmup_s = workload.warmup.duration_s or (MAX_LOAD_S if workload.warmup_requests else 0.0)
    opened = workload.arrival.open
    stages_s = opened.planned_s if opened is not None else None
    return warmup_s + (workload.duration_s or stages_s or MAX_LOAD_S) + workload.drain_s + DRAIN_GRACE_S


def ready_within_s(trace_rows: int, processes: int) -> float:
    """How long workers may take to be ready, which together read a trace of so many rows once each."""
    return READY_TIMEOUT_S + READY_PER_ROW_S * trace_rows * max(processes, 1)


@dataclass
class Steering:
    """The workers and the instants by which they must have done what they were told."""

    prepared: Prepared
    worker: Crew
    sampler: Sampler
    progress: Progress
    interrupts: Interrupts
    t0_ns: int | None = None
    t_drain_ns: int | None = None
    last: WorkerEvent | None = None
    out_of_time: bool = False
    _ready_within_s: float = field(init=False)
    _ready_by_s: float = field(init=False)
    _drain_by_s: float | None = None
    _stop_by_s: float | None = None
    _abort: AbortWatch = field(init=False)
    _aborted: str | None = None

    def __post_init__(self) -> None:
        self._abort = watch_of(self.prepared)
        self._source = PromptSource(self.prepared.workload, self.prepared.calibration, "")
        rows = (self._source.trace_facts() or {}).get("rows", 0)
        self._ready_within_s = ready_within_s(
            rows if isinstance(rows, int) else 0, len(self.worker.processes)
        )
        self._ready_by_s = time.monotonic() + self._ready_within_s

    def run(self) -> LoadEnding:
        """Returns when the workers have finished, have died, or were given up."""
        planned = self._source.total
        while True:
            event = self.worker.next_event(POLL_S)
            if event is not None:
                self.last = event
                if event.event == "finished":
                    return self._finished(event)
                self._follow(event, planned)
            self._obey_signals()
            self._obey_rules()
            if (ending := self._bound()) is not None:
                return ending

    def _follow(self, event: WorkerEvent, planned: int | None) -> None:
        if event.event == "ready":
            self._go()
            return
        if event.event in ("waiting", "lost"):
            self._note_trouble(event)
            return
        if event.event == "draining":
            self.t_drain_ns = self.t_drain_ns or time.monotonic_ns()
        if self.t0_ns is not None:
            self.progress.load(event, self._elapsed_s(), planned, self.prepared.workload.duration_s)

    def _note_trouble(self, event: WorkerEvent) -> None:
        """Workers of other machines may be long in coming; one that goes without a word is named."""
        text = masked(event.detail or event.event)
        if event.event == "waiting":
            self._ready_by_s = time.monotonic() + self._ready_within_s
        log.info(text)
        self.progress.say(text)

    def _go(self) -> None:
        """Samples first, so that the load's start lies inside them."""
        if self.interrupts.count:
            return
        self.sampler.start()
        self.sampler.mark("load_start")
        self.t0_ns = time.monotonic_ns() + int(START_DELAY_S * 1e9)
        self.worker.send(Command(command="go", t0_ns=self.t0_ns))
        log.info("the load begins: %s on %s", self.prepared.workload.name, self.prepared.target.base_url)
        self.progress.say(f"loading; the run is kept in {self.prepared.run_dir.path} ...")

    def _elapsed_s(self) -> float:
        return 0.0 if self.t0_ns is None else max(0.0, (time.monotonic_ns() - self.t0_ns) / 1e9)

    def _obey_signals(self) -> None:
        if self.interrupts.count >= 1 and self._drain_by_s is None and self._stop_by_s is None:
            log.info("a signal: draining")
            self.progress.say(_DRAINING)
            self._drain("signal")
        if self.interrupts.count >= 2 and self._stop_by_s is None:
            self.progress.say("stopping at once ...")
            self._stop("signal")

    def _obey_rules(self) -> None:
        """An abort rule stops the load at once; a budget that is used up lets what is in flight end."""
        if self.t0_ns is None or self._aborted is not None or self._stop_by_s is not None:
            return
        tripped = self._abort.tripped()
        if tripped is None:
            return
        self._aborted = tripped.why
        log.warning("stopping: %s", tripped.why)
        self.progress.say(f"stopping: {tripped.why} ...")
        if tripped.at_once:
            self._stop("abort")
        elif self._drain_by_s is None:
            self._drain("abort")

    def _drain(self, reason: str) -> None:
        self._drain_by_s = time.monotonic() + self.prepared.workload.drain_s + DRAIN_GRACE_S
        self.worker.send(Command(command="drain", reason=reason))

    def _stop(self, reason: str) -> None:
        self._stop_by_s = time.monotonic() + STOP_GRACE_S
        self.worker.send(Command(command="stop", reason=reason))

    def _bound(self) -> LoadEnding | None:
        """Nothing here runs for ever: drain at the bound, then stop, then do without the worker."""
        now_s = time.monotonic()
        if self.t0_ns is None and self._drain_by_s is None and now_s > self._ready_by_s:
            return self._worker_failed(
                f"the load worker was not ready within {self._ready_within_s:g} s: {self.worker.log_tail()}"
            )
        if self._drain_by_s is None and self._elapsed_s() > longest_load_s(self.prepared.workload):
            self.out_of_time = True
            self._drain("deadline")
        if self._drain_by_s is not None and now_s > self._drain_by_s and self._stop_by_s is None:
            self._stop("deadline")
        if self._stop_by_s is not None and now_s > self._stop_by_s:
            return self._given_up()
        return None

    def _finished(self, event: WorkerEvent) -> LoadEnding:
        reason, detail = event.reason or "error", event.detail
        if self._aborted is not None and reason in ("drained", "stopped"):
            reason, detail = "abort", self._aborted
        exit_code, problem = self._judge(reason, detail)
        return self._ending(reason, detail, exit_code, problem)

    def _judge(self, reason: str, detail: str | None) -> tuple[Exit, Problem | None]:
        """Exit code and problem of a reason; `planned` and what was asked for are no problem."""
        match reason:
            case "drained" | "stopped" if self.out_of_time:
                message = f"the load was cut after {self._elapsed_s():.0f} s, which is the most it may take"
                fix = "ask for fewer requests, or say how long it may take with --duration"
                return Exit.ABORTED, Problem("time_limit", message, fix)
            case "planned" | "drained" | "stopped":
                return Exit.OK, None
            case "abort":
                message = f"the load was stopped: {detail}"
                return Exit.ABORTED, Problem("aborted", message, self._server_fix())
            case "breaker":
                message = f"the load stopped itself: {detail}"
                ours = "the last was client_fd" in (detail or "")
                fix = _MORE_FILES if ours else self._server_fix()
                return Exit.ABORTED, Problem("aborted", message, fix)
            case "auth":
                message = f"the target refused the key: {detail}"
                fix = "name the key's variable with --api-key-env"
                return Exit.TARGET, Problem("auth", message, fix)
            case "storage":
                message = detail or "the disk refused to take the records"
                fix = "free space, or choose another folder with --out"
                return Exit.STORAGE, Problem("storage", message, fix)
            case "usage" | "refused":
                code = Exit.USAGE if reason == "usage" else Exit.TARGET
                fix = "mend it on that machine, then start master and workers again"
                return code, Problem("worker_refused", f"the job was refused: {detail}", fix)
            case "lost":
                fix = "what it had recorded is kept; see log.txt"
                return Exit.INTERNAL, Problem("worker", detail or "a load worker was lost", fix)
            case _:
                return Exit.INTERNAL, Problem("worker", f"the load worker failed: {detail}", "see log.txt")

    def _server_fix(self) -> str:
        server = self.prepared.server
        if server is not None and not server.alive():
            code = server.exit_code()
            return f"the bundled server ended with code {code}: see server.log in the run directory"
        return "look at the server's log for the time of the first failure"

    def _worker_failed(self, detail: str) -> LoadEnding:
        problem = Problem("worker", detail, "what it had recorded is kept; see log.txt")
        return self._ending("error", detail, Exit.INTERNAL, problem)

    def _given_up(self) -> LoadEnding:
        """It was told to stop and says nothing: it is ended by force, what it spooled is kept."""
        detail = f"the load worker did not stop within {STOP_GRACE_S:g} s and was ended"
        if self.interrupts.count >= 2:
            log.warning(detail)
            return self._ending("stopped", detail, Exit.OK, None)
        return self._worker_failed(detail)

    def _ending(
        self, reason: str, detail: str | None, exit_code: Exit, problem: Problem | None
    ) -> LoadEnding:
        server = self.prepared.server
        return LoadEnding(
            reason=reason,
            detail=masked(detail) if detail is not None else None,
            exit_code=gravest(self.interrupts.exit_code or Exit.OK, exit_code),
            problems=[problem] if problem else [],
            t_start_ns=self.t0_ns,
            t_drain_ns=self.t_drain_ns,
            t_end_ns=time.monotonic_ns(),
            facts=self._abort.facts(),
            intended=self.last.intended if self.last else None,
            server_exit_code=server.exit_code() if server is not None else None,
        )
