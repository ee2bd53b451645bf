"""The load itself: the worker sends, the sampler watches, this loop steers and waits."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from kvprobe.errors import Exit, KvprobeError, Problem, StorageError
from kvprobe.evidence.spool import SpoolWriter
from kvprobe.load.job import BreakerSpec, Command, LoadJob, TargetSpec, WorkerEvent
from kvprobe.load.prompts import PromptSource
from kvprobe.load.runner import WorkerProcess
from kvprobe.observe.sampler import Sampler
from kvprobe.run.interrupts import Interrupts
from kvprobe.run.options import LoadEnding, Prepared
from kvprobe.run.progress import Progress

log = logging.getLogger("kvprobe.run")

READY_TIMEOUT_S = 60.0
START_DELAY_S = 0.3
"""From `go` to the schedule's zero, so that the worker has the command before its first tick."""
MAX_LOAD_S = 3600.0
"""Bound of a load that is limited by its number of requests alone."""
STOP_GRACE_S = 15.0
POLL_S = 0.1


def run_load(prepared: Prepared, progress: Progress, interrupts: Interrupts) -> LoadEnding:
    """Run until the worker has finished, by itself or because it was told to. Never raises for
    what happens in the load: the ending says it."""
    run_dir = prepared.run_dir
    worker = WorkerProcess(_job(prepared), run_dir.path / "log.txt")
    try:
        with SpoolWriter(run_dir.spool_dir / "samples.jsonl", "sampler") as spool:
            return _with_sampler(prepared, worker, spool, progress, interrupts)
    except StorageError as error:
        return LoadEnding(
            reason="storage", detail=str(error), exit_code=Exit.STORAGE, problems=list(error.problems)
        )
    finally:
        worker.close()
        progress.close()


def _job(prepared: Prepared) -> LoadJob:
    workload, target = prepared.workload, prepared.target
    breaker = workload.breaker
    return LoadJob(
        workload=workload.model_dump(mode="json"),
        calibration=prepared.calibration,
        salt=prepared.salt,
        target=TargetSpec(
            base_url=target.base_url,
            model=target.model,
            api_key_env=prepared.options.api_key_env,
            insecure=prepared.options.insecure,
        ),
        breaker=BreakerSpec(
            consecutive_failures=breaker.consecutive_failures,
            window=breaker.window,
            error_rate=breaker.error_rate,
        ),
        spool_path=str(prepared.run_dir.spool_dir / "worker-0.jsonl"),
    )


def _with_sampler(
    prepared: Prepared, worker: WorkerProcess, spool: SpoolWriter, progress: Progress, interrupts: Interrupts
) -> LoadEnding:
    sampler = Sampler(
        prepared.metrics_url,
        prepared.workload.sampling.metrics_interval_s,
        spool,
        server_pid=prepared.server.pid if prepared.server is not None else None,
        headers=_metrics_headers(prepared),
        insecure=prepared.options.insecure,
    )
    worker.start()
    worker.await_ready(READY_TIMEOUT_S)
    sampler.start()
    try:
        sampler.mark("load_start")
        t0_ns = time.monotonic_ns() + int(START_DELAY_S * 1e9)
        worker.send(Command(command="go", t0_ns=t0_ns))
        progress.say(f"loading; the run is kept in {prepared.run_dir.path} ...")
        ending = _Steering(prepared, worker, progress, interrupts, t0_ns).run()
    except BaseException:
        sampler.stop()
        raise
    _end_sampling(sampler, ending)
    return ending


def _metrics_headers(prepared: Prepared) -> dict[str, str]:
    """The key goes to the target's own origin only, never to another address of --metrics."""
    here, there = urlsplit(prepared.target.base_url), urlsplit(prepared.metrics_url)
    same_origin = (here.scheme, here.netloc) == (there.scheme, there.netloc)
    return {"authorization": f"Bearer {prepared.api_key}"} if prepared.api_key and same_origin else {}


def _end_sampling(sampler: Sampler, ending: LoadEnding) -> None:
    """The last full scrape; a sampler that had to give up is a problem of the run, not its end."""
    try:
        sampler.mark("load_end")
    except StorageError as error:
        ending.problems.extend(error.problems)
        ending.exit_code = ending.exit_code or Exit.STORAGE
    sampler.stop()
    if isinstance(sampler.failure, KvprobeError):
        ending.problems.extend(p for p in sampler.failure.problems if p not in ending.problems)
        ending.exit_code = ending.exit_code or sampler.failure.exit_code
    elif sampler.failure is not None:
        ending.problems.append(
            Problem("sampler", f"sampling stopped early: {sampler.failure!r}", "the records are complete")
        )


@dataclass
class _Steering:
    """Follows one worker from `go` to `finished`."""

    prepared: Prepared
    worker: WorkerProcess
    progress: Progress
    interrupts: Interrupts
    t0_ns: int
    signals_seen: int = 0
    t_drain_ns: int | None = None
    last: WorkerEvent | None = None
    out_of_time: bool = False

    def run(self) -> LoadEnding:
        workload = self.prepared.workload
        planned = PromptSource(workload, self.prepared.calibration, "").total
        deadline_s = (workload.duration_s or MAX_LOAD_S) + workload.drain_s + STOP_GRACE_S
        while True:
            event = self.worker.next_event(POLL_S)
            elapsed_s = (time.monotonic_ns() - self.t0_ns) / 1e9
            if event is not None:
                self.last = event
                if event.event == "finished":
                    return self._ending(event)
                if event.event == "draining":
                    self.t_drain_ns = self.t_drain_ns or time.monotonic_ns()
                self.progress.load(event, max(0.0, elapsed_s), planned, workload.duration_s)
            elif self.worker.ended:
                return self._worker_died()
            self._obey_signals()
            self._bound(elapsed_s, deadline_s)

    def _obey_signals(self) -> None:
        count = self.interrupts.count
        if count > self.signals_seen:
            command: Literal["drain", "stop"] = "drain" if self.signals_seen == 0 and count == 1 else "stop"
            self.signals_seen = count
            self.worker.send(Command(command=command, reason="signal"))
            self.progress.close()
            self.progress.say(
                "stopping: no new requests, waiting for those in flight (again to stop at once) ..."
                if command == "drain"
                else "stopping at once ..."
            )

    def _bound(self, elapsed_s: float, deadline_s: float) -> None:
        """Nothing here runs for ever: drain at the bound, stop after the drain's own bound."""
        if elapsed_s > deadline_s and not self.out_of_time:
            self.out_of_time = True
            log.warning("the load did not end by itself within %.0f s", deadline_s)
            self.worker.send(Command(command="drain", reason="deadline"))
        if elapsed_s > deadline_s + self.prepared.workload.drain_s + STOP_GRACE_S:
            self.worker.send(Command(command="stop", reason="deadline"))

    def _ending(self, event: WorkerEvent) -> LoadEnding:
        reason = event.reason or "error"
        exit_code, problem = self._judge(reason, event.detail)
        if self.interrupts.exit_code is not None:
            exit_code = self.interrupts.exit_code
        return LoadEnding(
            reason=reason,
            detail=event.detail,
            exit_code=exit_code,
            problems=[problem] if problem else [],
            t_start_ns=self.t0_ns,
            t_drain_ns=self.t_drain_ns,
            t_end_ns=time.monotonic_ns(),
            intended=event.intended,
            server_exit_code=self._server_exit_code(),
        )

    def _server_exit_code(self) -> int | None:
        return self.prepared.server.exit_code() if self.prepared.server is not None else None

    def _judge(self, reason: str, detail: str | None) -> tuple[Exit, Problem | None]:
        """Exit code and problem of a reason; `planned` and `drained` are no problem."""
        match reason:
            case "planned" | "drained" | "stopped":
                return Exit.OK, None
            case "breaker":
                return Exit.ABORTED, Problem(
                    "aborted", f"the load stopped itself: {detail}", self._server_fix()
                )
            case "auth":
                return Exit.TARGET, Problem(
                    "auth",
                    f"the target refused the key: {detail}",
                    "name the key's variable with --api-key-env",
                )
            case "storage":
                return Exit.STORAGE, Problem(
                    "storage",
                    detail or "the disk refused to take the records",
                    "free space, or choose another --out",
                )
            case _:
                return Exit.INTERNAL, Problem("worker", f"the load worker failed: {detail}", "see log.txt")

    def _server_fix(self) -> str:
        server = self.prepared.server
        if server is not None and not server.alive():
            code = server.exit_code()
            return f"the bundled server ended with code {code}: see server.log in the run directory"
        return "look at the server's log for the time of the first failure"

    def _worker_died(self) -> LoadEnding:
        code = self.worker.wait(1.0)
        detail = f"the load worker ended with code {code}: {self.worker.log_tail()}"
        return LoadEnding(
            reason="error",
            detail=detail,
            exit_code=self.interrupts.exit_code or Exit.INTERNAL,
            problems=[Problem("worker", detail, "what it had recorded is kept; see log.txt")],
            t_start_ns=self.t0_ns,
            t_drain_ns=self.t_drain_ns,
            t_end_ns=time.monotonic_ns(),
            intended=self.last.intended if self.last else None,
        )
