"""The parent folder of a suite or a sweep: `suite.json` first, a run directory for each run, STATUS last.

The parent holds no evidence of its own: `suite.json` says what was planned, and a fact in each run
directory says which part it was, so that a suite that was killed can be read like any other.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvprobe.errors import KvprobeError, Problem, UsageError
from kvprobe.evidence.rundata import RunData, Status, read_status
from kvprobe.evidence.rundir import RunDir, make_folder

PLAN = "suite.json"
PART = "suite_part"
"""Fact of a run: {"suite", "part", "role", "round", "load"}."""
MAX_PLAN_BYTES = 2**20


@dataclass(slots=True)
class SuiteRun:
    """One run of a suite, as its directory says."""

    part: str
    role: str | None
    round: int
    load: float | None
    """Of a sweep: the rate or the number of users."""
    data: RunData


@dataclass(slots=True)
class SuiteData:
    """What the parent folder holds: the plan and the runs in the order in which they were made."""

    path: Path
    status: Status
    plan: dict[str, Any]
    runs: list[SuiteRun] = field(default_factory=list)
    unreadable: list[Problem] = field(default_factory=list)


class SuiteDir(RunDir):
    """Writes the parent's own files; `RunDir` says how."""

    @classmethod
    def make(cls, parent: Path, name: str, content_hash: str, plan: dict[str, Any]) -> SuiteDir:
        """A new parent folder with its plan. Raises StorageError, UsageError."""
        home = cls(make_folder(parent, name, content_hash))
        try:
            home.write_json(PLAN, plan)
        except KvprobeError:
            home.discard()
            raise
        return home


def is_suite_dir(path: Path) -> bool:
    """Whether a folder is the parent of a suite."""
    with contextlib.suppress(OSError, ValueError):
        return (path / PLAN).is_file() and not (path / PLAN).is_symlink()
    return False


def load_suite_dir(path: Path) -> SuiteData:
    """The plan and every run that can be read. Raises UsageError when the plan cannot be."""
    try:
        text = (path / PLAN).read_bytes()[: MAX_PLAN_BYTES + 1]
        plan = json.loads(text) if len(text) <= MAX_PLAN_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, str(error)) from error
    if not isinstance(plan, dict):
        raise _damaged(path, "it holds no JSON object of a plan's size")
    found = SuiteData(path.resolve(), read_status(path), plan)
    for folder in sorted(p for p in path.iterdir() if p.is_dir() and not p.is_symlink()):
        try:
            data = RunDir.open(folder).load()
        except KvprobeError as error:
            found.unreadable.extend(error.problems)
            continue
        if (run := suite_run(data)) is not None:
            found.runs.append(run)
    found.runs.sort(key=lambda r: (first_ns(r.data), r.data.path.name))
    return found


def suite_run(data: RunData) -> SuiteRun | None:
    """Which part a run directory is of; null for a run that is of no suite."""
    values = [f.value for f in data.facts if f.name == PART and isinstance(f.value, dict)]
    if not values:
        return None
    said = values[-1]
    role, number, load = said.get("role"), said.get("round"), said.get("load")
    return SuiteRun(
        part=str(said.get("part", data.path.name)),
        role=role if isinstance(role, str) else None,
        round=number if isinstance(number, int) and not isinstance(number, bool) else 1,
        load=float(load) if isinstance(load, int | float) and not isinstance(load, bool) else None,
        data=data,
    )


def first_ns(data: RunData) -> int:
    """When the run's first request was wanted; the latest possible instant for a run without one."""
    return min((r.intended_ns for r in data.records), default=2**63 - 1)


def _damaged(path: Path, why: str) -> UsageError:
    message = f"the suite's plan cannot be read: {why}"
    return UsageError(
        Problem("run_damaged", message, "name one of the run directories in it instead", str(path / PLAN))
    )
