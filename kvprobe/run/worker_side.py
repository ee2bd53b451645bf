"""`kvprobe run W --worker HOST`: this machine sends for a master on another one.

The master says what is sent; this machine decides whether it may be: its own guard looks at the
target, TLS checks are left out only when this command line says so too, and the key comes from a
variable of this machine. Rows are kept here until the master has them.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kvprobe.checked_addresses import addresses_of_url
from kvprobe.errors import Exit, KvprobeError, Problem, StorageError, TargetError, UsageError, gravest
from kvprobe.evidence.environment import collect_environment
from kvprobe.evidence.rundir import RunDir
from kvprobe.evidence.secrets import masked
from kvprobe.load.end_reasons import reason_of
from kvprobe.load.job import Command, WorkerEvent
from kvprobe.load.jobs_remote import AgentJob, Offer, address_text
from kvprobe.load.runner import Crew, Member
from kvprobe.load.workload import Workload, load_workload
from kvprobe.run import target as targets
from kvprobe.run import target_guard
from kvprobe.run.crews import MAX_PROCESSES, parse_address, read_count
from kvprobe.run.interrupts import Interrupts
from kvprobe.run.options import RunOptions
from kvprobe.run.progress import Progress

log = logging.getLogger("kvprobe.run")

SCHEMA = "kvprobe.worker/1"
STOP_GRACE_S = 10.0
POLL_S = 0.1
_EXITS = {
    "breaker": Exit.ABORTED,
    "auth": Exit.TARGET,
    "refused": Exit.TARGET,
    "usage": Exit.USAGE,
    "storage": Exit.STORAGE,
    "lost": Exit.INTERNAL,
    "error": Exit.INTERNAL,
}
_FOR_THE_MASTER = {
    "target": "--target",
    "metrics_url": "--metrics",
    "model": "--model",
    "serve_args": "--serve-args",
    "web": "--web",
    "bind": "--bind",
    "expect_workers": "--expect-workers",
    "thresholds": "--threshold",
    "aborts": "--abort",
    "junit": "--junit",
    "logs": "--log",
    "investigate": "--investigate",
    "serve_metrics_port": "--serve-metrics",
}


@dataclass(slots=True)
class WorkerOutcome:
    """How a worker's part ended. `kept` is where its rows still lie, null when the master has them."""

    exit_code: Exit
    master: str
    last: WorkerEvent
    kept: Path | None
    problems: list[Problem]

    def document(self) -> dict[str, Any]:
        """`kvprobe.worker/1`."""
        last = self.last
        return {
            "schema": SCHEMA,
            "master": self.master,
            "reason": last.reason,
            "requests": {"sent": last.sent, "ok": last.ok, "failed": last.failed},
            "rows_kept_in": str(self.kept) if self.kept is not None else None,
        }


def conduct_worker(options: RunOptions, progress: Progress) -> WorkerOutcome:
    """Serve one run of the master. Raises `KvprobeError` for what is wrong before it."""
    for field, option in _FOR_THE_MASTER.items():
        if getattr(options, field):
            message = f"{option} is for the master, and --worker only sends what the master says"
            raise UsageError(Problem("conflict", message, "give it to the master", option))
    assert options.worker_of is not None
    host, port = parse_address(options.worker_of, "--worker", "")
    if not host:
        raise UsageError(Problem("bad_option", "--worker needs the master's address", "--worker HOST"))
    targets.api_key(options.api_key_env)
    workload = load_workload(options.workload, options.sets)
    processes = read_count(options.processes, "--processes", MAX_PROCESSES)
    run_dir = RunDir.create(options.out, f"{workload.name[:60]}-worker", workload.content_hash())
    run_dir.write_text("workload.yaml", workload.resolved_yaml())
    run_dir.write_json("environment.json", collect_environment())
    crew = Crew(
        [_agent(options, host, port, run_dir, index) for index in range(processes)], run_dir.path / "log.txt"
    )
    with Interrupts() as interrupts:
        interrupts.defer()
        service = _Service(options, workload, crew, progress, interrupts)
        try:
            crew.start()
            last, problems = service.run()
        except KvprobeError as error:
            # The master's user has to hear why, or sees a worker that went without a word.
            crew.send(Command(command="refuse", reason=reason_of(error), detail=_in_full(error)))
            crew.close()
            run_dir.discard()
            raise
        finally:
            crew.close()
            progress.close()
        return _concluded(address_text(host, port), run_dir, last, problems, interrupts)


def _in_full(error: KvprobeError) -> str:
    return "; ".join(f"{p.message} ({p.fix})" if p.fix else p.message for p in error.problems)


def _agent(options: RunOptions, host: str, port: int, run_dir: RunDir, index: int) -> Member:
    job = AgentJob(
        master_host=host, master_port=port, spool_dir=str(run_dir.spool_dir), api_key_env=options.api_key_env
    )
    return Member(str(index), msgspec.json.encode(job), "kvprobe.load.agent")


@dataclass
class _Service:
    """Follows the agents of this machine until they have finished."""

    options: RunOptions
    workload: Workload
    crew: Crew
    progress: Progress
    interrupts: Interrupts
    working: bool = False
    _told: int = 0
    _stop_by_s: float | None = None
    _began_s: float | None = None

    def run(self) -> tuple[WorkerEvent, list[Problem]]:
        """The last event and what was wrong. Raises `KvprobeError` for a job that is not allowed here."""
        while True:
            event = self.crew.next_event(POLL_S)
            if event is not None:
                if event.event == "finished":
                    _raise_if_never_begun(event)
                    return event, _problems(event)
                self._follow(event)
            if self.interrupts.count > self._told:
                self._told = self.interrupts.count
                if not self.working:
                    return WorkerEvent(event="finished", reason="stopped"), []
                self._end()
            if self._stop_by_s is not None and time.monotonic() > self._stop_by_s:
                last = self.crew.state.total(
                    "finished", "lost", "the load workers did not stop and were ended"
                )
                return last, _problems(last)

    def _follow(self, event: WorkerEvent) -> None:
        if event.event in ("waiting", "lost"):
            self.progress.say(masked(event.detail or event.event))
        elif event.event == "offered":
            self._judge(msgspec.json.decode(event.detail or "", type=Offer))
        elif event.event == "ready":
            self.working = True
            self.progress.say("ready; waiting for the master's start ...")
        elif event.event == "progress" and event.sent:
            self._began_s = self._began_s or time.monotonic()
            self.progress.load(event, time.monotonic() - self._began_s, None, None)

    def _judge(self, offer: Offer) -> None:
        """This machine's own rules, whatever the master's are."""
        if offer.workload != self.workload.name:
            message = f"the master runs the workload `{offer.workload}`, not `{self.workload.name}`"
            fix = f"start this worker with {offer.workload}, or name the right master"
            raise UsageError(Problem("unlike_workload", message, fix))
        if offer.insecure and not self.options.insecure:
            message = "the master asks not to check the target's certificate"
            raise UsageError(Problem("insecure", message, "add --insecure here too, if that is meant"))
        target_guard.guard(offer.base_url, own_target=self.options.own_target)
        target_guard.confirm_production(offer.base_url, yes=self.options.yes)
        self.progress.say(f"target {offer.base_url}, workload {offer.workload}")
        self.crew.send(Command(command="accept", addresses=list(addresses_of_url(offer.base_url))))

    def _end(self) -> None:
        if self._told == 1:
            self.progress.say(
                "stopping: no new requests here, waiting for those in flight (again to stop at once) ..."
            )
            self.crew.send(Command(command="drain", reason="signal"))
        else:
            self.progress.say("stopping at once ...")
            self.crew.send(Command(command="stop", reason="signal"))
            self._stop_by_s = self._stop_by_s or time.monotonic() + STOP_GRACE_S


def _raise_if_never_begun(event: WorkerEvent) -> None:
    """No master, one that does not take this worker, or a job that cannot be done here."""
    if event.sent or event.reason not in ("usage", "refused"):
        return
    problem = Problem("worker", masked(event.detail or event.reason), None)
    raise UsageError(problem) if event.reason == "usage" else TargetError(problem)


def _problems(event: WorkerEvent) -> list[Problem]:
    reason, detail = event.reason or "error", masked(event.detail or "")
    if reason not in _EXITS:
        return []
    return [Problem("worker" if reason != "auth" else "auth", detail or reason, None)]


def _concluded(
    master: str, run_dir: RunDir, last: WorkerEvent, problems: list[Problem], interrupts: Interrupts
) -> WorkerOutcome:
    reason = last.reason or "error"
    code = gravest(interrupts.exit_code or Exit.OK, _EXITS.get(reason, Exit.OK))
    kept: Path | None = None
    if reason in ("lost", "storage", "error") and any(run_dir.spool_dir.glob("*.jsonl")):
        kept = run_dir.path
        problems = [
            *problems,
            Problem(
                "rows_kept",
                "rows that the master may lack are kept on this machine",
                f"see them with `kvprobe report {kept}`",
                str(kept),
            ),
        ]
        try:
            run_dir.write_status("partial")
        except StorageError as error:
            problems.extend(error.problems)
    else:
        run_dir.discard()
    return WorkerOutcome(code, master, last, kept, problems)
