"""`kvprobe report RUN`: rebuild the report of a run from its directory, offline. Only reads."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvprobe.cli.options import add_common, from_environment
from kvprobe.errors import Exit

if TYPE_CHECKING:
    from kvprobe.diagnose.model import Diagnosis
    from kvprobe.evidence.rundata import RunData
    from kvprobe.summary.build import Summary


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("report", help="rebuild the report of a run, offline", description=__doc__)
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="a run directory")
    parser.add_argument("--html", metavar="FILE", type=Path, help="also write the report as one HTML page")
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
    diagnosis = diagnose_run(data, summary)
    if args.html is not None:
        _write_page(args.html, data, summary, diagnosis)
    present(data, summary, diagnosis, as_json=args.json, no_color=args.no_color)
    return Exit.OK


def _write_page(path: Path, data: RunData, summary: Summary, diagnosis: Diagnosis) -> None:
    from kvprobe.evidence.spool import storage_error
    from kvprobe.report.html import render_html
    from kvprobe.report.terminal import banner

    try:
        path.write_text(render_html(summary, diagnosis, banner(data)), encoding="utf-8")
    except OSError as error:
        raise storage_error(error, path) from error
