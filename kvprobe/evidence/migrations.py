"""Run directories of other versions: what is read as it is, what is brought up to date, what is refused.

A run directory says in `summary.json` (`schema`) and in `environment.json` (`layout`) how it was written.
`kvprobe report`, `diagnose` and `compare` judge the rows again with today's rules, so only the rows' own
form has versions. Columns that an older version did not have are null, columns that are unknown are left
alone (`columns.read_requests`); what changed its meaning has a step here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kvprobe.errors import Problem, UsageError
from kvprobe.evidence.environment import LAYOUT
from kvprobe.evidence.rundata import RunData, load_run, read_environment
from kvprobe.evidence.spool import open_regular

_SCHEMA = re.compile(r'"schema"\s*:\s*"kvprobe\.run/([0-9]{1,6})"')
_HEAD_BYTES = 4_096
"""`schema` is the first field of summary.json."""

_MAX_PLAN_BYTES = 2**24

Migration = Callable[[RunData], None]
MIGRATIONS: Final[dict[int, Migration]] = {}
"""By the layout that it starts from: brings a run in memory one layout up. Empty: there was one so far."""


def layout_of(path: Path, environment: dict[str, Any]) -> int:
    """The layout of a run directory: what it says, else what its summary says, else the first one."""
    stated = environment.get("layout")
    if isinstance(stated, int) and not isinstance(stated, bool) and stated > 0:
        return stated
    try:
        with open_regular(path / "summary.json") as file:
            found = _SCHEMA.search(file.read(_HEAD_BYTES).decode("utf-8", "replace"))
    except OSError:
        return 1  # killed before its end: the rows are there all the same
    return int(found[1]) if found is not None else 1


def load_up_to_date(path: Path) -> RunData:
    """The run at `path` in today's form. Raises UsageError: `newer_run` before a row of it is read,
    `run_damaged` when the rows cannot be."""
    environment = read_environment(path / "environment.json")
    layout = layout_of(path, environment)
    if layout > LAYOUT:
        raise _newer(path, environment, layout)
    run = load_run(path)
    for step in range(layout, LAYOUT):
        MIGRATIONS[step](run)
    return run


def _newer(path: Path, environment: dict[str, Any], layout: int) -> UsageError:
    version = environment.get("kvprobe")
    by = f" (kvprobe {version})" if isinstance(version, str) else ""
    return UsageError(
        Problem(
            code="newer_run",
            message=f"a newer version{by} wrote the run: layout {layout}, this one knows up to {LAYOUT}",
            fix="update kvprobe, or read the report.html that stands in the directory",
            path=str(path),
        )
    )


def read_plan(path: Path) -> dict[str, Any]:
    """The JSON of `kvprobe plan --json`. Raises UsageError for what is none, or is of a newer version."""
    try:
        with open_regular(path) as file:
            data = file.read(_MAX_PLAN_BYTES + 1)
        plan = json.loads(data) if len(data) <= _MAX_PLAN_BYTES else None
    except OSError as error:
        fix = "save one with `kvprobe plan ... --json > PLAN.json`"
        raise UsageError(
            Problem("no_plan", f"the plan cannot be read: {error.strerror}", fix, str(path))
        ) from error
    except (ValueError, RecursionError):
        plan = None
    schema = plan.get("schema") if isinstance(plan, dict) else None
    if isinstance(plan, dict) and schema == "kvprobe.plan/1":
        return plan
    known = isinstance(schema, str) and schema.startswith("kvprobe.plan/")
    message = (
        f"the plan is of a version that this kvprobe does not know ({schema})" if known else "this is no plan"
    )
    raise UsageError(
        Problem("not_a_plan", message, "save one with `kvprobe plan ... --json > PLAN.json`", str(path))
    )
