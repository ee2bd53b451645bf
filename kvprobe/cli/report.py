"""`kvprobe report RUN`: rebuild the report of a run from its directory, offline. Only reads."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kvprobe.cli.options import add_common, from_environment
from kvprobe.errors import Exit


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("report", help="rebuild the report of a run, offline", description=__doc__)
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="a run directory")
    add_common(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    from_environment(args, (), ("no_color",))
    from kvprobe.cli.present import present
    from kvprobe.diagnose.judge import diagnose_run
    from kvprobe.evidence.rundir import RunDir
    from kvprobe.summary.build import summarise

    data = RunDir.open(args.run_dir).load()
    summary = summarise(data)
    present(data, summary, diagnose_run(data, summary), as_json=args.json, no_color=args.no_color)
    return Exit.OK
