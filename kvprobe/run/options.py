"""What a run is asked, what stands ready before it, how its load ended, what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kvprobe.errors import Exit, Problem

if TYPE_CHECKING:
    from kvprobe.diagnose.model import Diagnosis
    from kvprobe.evidence.facts import Fact
    from kvprobe.evidence.rundata import RunData
    from kvprobe.evidence.rundir import RunDir
    from kvprobe.gates.abort import TokenBudget
    from kvprobe.gates.judge import GateResult
    from kvprobe.load.job import Calibration
    from kvprobe.load.workload import Workload
    from kvprobe.load.workload_sets import Setting
    from kvprobe.run.embedded import EmbeddedServer
    from kvprobe.run.logs_beside import LogMark
    from kvprobe.run.target import Target
    from kvprobe.summary.build import Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line asked for."""

    workload: str
    sets: tuple[tuple[str, str] | Setting, ...] = ()
    target: str | None = None
    model: str | None = None
    metrics_url: str | None = None
    api_key_env: str | None = None
    out: Path = Path("runs")
    serve_args: str | None = None
    insecure: bool = False
    own_target: bool = False
    yes: bool = False
    processes: str | None = None
    """As written; whoever starts the workers checks it."""
    master: bool = False
    worker_of: str | None = None
    """HOST[:PORT] of the master that this machine sends for."""
    bind: str | None = None
    """ADDRESS[:PORT] on which a master listens; null is 127.0.0.1."""
    expect_workers: str | None = None
    """As written: how many workers of other machines a master waits for."""
    web: bool = False
    thresholds: tuple[str, ...] = ()
    aborts: tuple[str, ...] = ()
    junit: Path | None = None
    logs: tuple[Path, ...] = ()
    investigate: bool = False
    serve_metrics_port: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a suite has ready for one of its runs. `server` is the suite's to start and to stop."""

    workload: Workload
    server: EmbeddedServer | None
    facts: tuple[Fact, ...] = ()
    """Go into the run directory before the load: which part of what this is."""


@dataclass(slots=True, kw_only=True)
class Prepared:
    """All that stands ready before the first request."""

    options: RunOptions
    workload: Workload
    target: Target
    metrics_url: str
    calibration: Calibration
    salt: str
    run_dir: RunDir
    server: EmbeddedServer | None
    api_key: str | None
    budgets: list[TokenBudget] = field(default_factory=list)
    """What may be used up while the load goes."""
    log_marks: list[LogMark] = field(default_factory=list)
    """Where the logs of --log ended before the load."""


@dataclass(slots=True, kw_only=True)
class LoadEnding:
    """How the load ended. `exit_code` is OK when it ran as planned."""

    reason: str
    detail: str | None
    exit_code: Exit
    problems: list[Problem] = field(default_factory=list)
    t_start_ns: int | None = None
    t_drain_ns: int | None = None
    t_end_ns: int | None = None
    intended: int | None = None
    """Requests that the schedule wanted, sent or not; null when the worker never said."""
    server_exit_code: int | None = None
    """Of the bundled server, when it had ended before the load did."""
    facts: list[Fact] = field(default_factory=list)
    """What became of the abort rules and budgets."""


@dataclass(slots=True)
class RunOutcome:
    """What came of it. Without a run directory (`data` is None) nothing was sent."""

    exit_code: Exit
    data: RunData | None = None
    summary: Summary | None = None
    diagnosis: Diagnosis | None = None
    problems: list[Problem] = field(default_factory=list)
    thresholds: list[GateResult] = field(default_factory=list)
