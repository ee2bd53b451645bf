"""`kvprobe schema [NAME]`: print a JSON Schema."""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Callable
from typing import Any

from kvprobe.cli.options import add_common
from kvprobe.cli.streams import emit
from kvprobe.errors import Exit, Problem, UsageError


def _workload() -> dict[str, Any]:
    from kvprobe.load.suite_spec import with_suite
    from kvprobe.load.workload import Workload

    return with_suite(Workload.model_json_schema())


def _run() -> dict[str, Any]:
    from kvprobe.report.document import run_schema

    return run_schema()


def _diagnosis() -> dict[str, Any]:
    from kvprobe.report.document import diagnosis_schema

    return diagnosis_schema()


def _plan() -> dict[str, Any]:
    from kvprobe.plan.document import plan_schema

    return plan_schema()


def _compare() -> dict[str, Any]:
    from kvprobe.compare.model import compare_schema

    return compare_schema()


def _quality() -> dict[str, Any]:
    from kvprobe.quality.model import quality_schema

    return quality_schema()


def _doctor() -> dict[str, Any]:
    from kvprobe.doctor.model import doctor_schema

    return doctor_schema()


def _watch() -> dict[str, Any]:
    from kvprobe.watch.model import watch_schema

    return watch_schema()


def _replay() -> dict[str, Any]:
    from kvprobe.plan.simulate.replay import replay_schema

    return replay_schema()


def _error() -> dict[str, Any]:
    from kvprobe.report.document import error_schema

    return error_schema()


SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "workload": _workload,
    "run": _run,
    "diagnosis": _diagnosis,
    "plan": _plan,
    "replay": _replay,
    "compare": _compare,
    "quality": _quality,
    "doctor": _doctor,
    "watch": _watch,
    "error": _error,
}


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("schema", help="print a JSON Schema", description=__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help=f"one of: {', '.join(SCHEMAS)}")
    add_common(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    if args.name is None:
        emit((json.dumps({"schemas": list(SCHEMAS)}) if args.json else "\n".join(SCHEMAS)) + "\n")
        return Exit.OK
    if args.name not in SCHEMAS:
        close = difflib.get_close_matches(args.name, SCHEMAS, n=1)
        meant = f"did you mean `{close[0]}`? " if close else ""
        raise UsageError(
            Problem(
                "unknown_schema",
                f"there is no schema `{args.name}`",
                f"{meant}available: {', '.join(SCHEMAS)}",
            )
        )
    emit(json.dumps(SCHEMAS[args.name](), indent=2, ensure_ascii=True) + "\n")
    return Exit.OK
