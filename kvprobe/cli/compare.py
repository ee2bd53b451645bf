"""`kvprobe compare RUN_A RUN_B`: what changed between two runs of one workload, and how sure that is.

Settings that differ come first. A difference is named only when chance within the runs does not
explain it; else it says `no difference shown`. Runs that did not send the same work are refused.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from kvprobe.cli.options import add_common, from_environment
from kvprobe.errors import Exit, Problem, UsageError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("compare", help="what changed between two runs", description=__doc__)
    parser.add_argument("run_a", metavar="RUN_A", type=Path, help="a run directory: before")
    parser.add_argument("run_b", metavar="RUN_B", type=Path, help="a run of the same workload: after")
    add_common(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    from_environment(args, (), ("no_color",))
    from kvprobe.cli.present import show
    from kvprobe.cli.streams import emit
    from kvprobe.compare.build import compare_runs
    from kvprobe.report.compare_text import render_comparison

    found = compare_runs(_judged(args.run_a), _judged(args.run_b))
    if args.json:
        emit(json.dumps(found.to_json(), allow_nan=False) + "\n")
    else:
        show(lambda page: render_comparison(found, page), no_color=args.no_color)
    return Exit.INVALID if False in (found.a.valid, found.b.valid) else Exit.OK


def _judged(path: Path) -> Any:
    from kvprobe.diagnose.judge import diagnose_run
    from kvprobe.evidence.rundir import RunDir
    from kvprobe.summary.build import summarise

    if not (path / "requests.parquet").exists() and not (path / "spool").is_dir() and path.is_dir():
        parts = sorted(p.name for p in path.iterdir() if (p / "requests.parquet").exists())
        if parts:
            message = f"this folder holds {len(parts)} runs, and two single runs are compared"
            fix = f"name one of them: {', '.join(str(path / name) for name in parts[:4])}"
            raise UsageError(Problem("not_a_run", message, fix, str(path)))
    data = RunDir.open(path).load()
    summary = summarise(data)
    return data, summary, diagnose_run(data, summary)
