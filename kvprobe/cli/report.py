"""`kvprobe report RUN`: rebuild the report of a run from its directory, offline. Only reads.

RUN is a run directory of this or an older version, or the folder of a suite or sweep. With --plan the page
and the text become the pre-launch report: what the plan promises beside what the run measured.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvprobe.cli.options import add_common, from_environment
from kvprobe.errors import Exit, Problem, UsageError

if TYPE_CHECKING:
    from kvprobe.diagnose.model import Diagnosis
    from kvprobe.diagnose.suite_judge import JudgedRun, SuiteResult
    from kvprobe.evidence.rundata import RunData
    from kvprobe.report.content import Report
    from kvprobe.report.words import Language
    from kvprobe.summary.build import Summary

_FILES = (
    ("html", "also write the report as one HTML page that opens offline"),
    ("md", "also write it as Markdown, for a ticket"),
    ("junit", "also write thresholds and validity as JUnit XML"),
    ("openmetrics", "also write every series with its instants (UTC), for a database: OpenMetrics text"),
)
_VALUES = ("plan", "lang", "demand", "demand_at_once", "growth")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("report", help="rebuild the report of a run, offline", description=__doc__)
    parser.add_argument("run_dir", metavar="RUN", type=Path, help="a run directory, or the folder of a suite")
    for name, text in _FILES:
        parser.add_argument(f"--{name}", metavar="FILE", type=Path, help=text)
    parser.add_argument(
        "--plan", metavar="PLAN.json", help="what `kvprobe plan --json` said: a pre-launch report"
    )
    parser.add_argument(
        "--replay",
        metavar="REPLAY.json",
        type=Path,
        help="what `kvprobe replay --json` said: who held the cache",
    )
    add_page_options(parser)
    add_common(parser)
    parser.set_defaults(func=run)


def add_page_options(parser: argparse.ArgumentParser) -> None:
    """Of every command that writes a pre-launch page."""
    parser.add_argument(
        "--lang", choices=("en", "zh"), help="language of the page and of Markdown (default: en)"
    )
    parser.add_argument("--demand", metavar="RATE", help="pre-launch: requests a second that are expected")
    parser.add_argument(
        "--demand-at-once", metavar="N", help="pre-launch: requests at once that are expected"
    )
    parser.add_argument(
        "--growth", metavar="PERCENT", help="pre-launch: growth of demand a month, such as 10%%"
    )


def run(args: argparse.Namespace) -> int:
    from_environment(args, _VALUES, ("no_color",))
    demands = page_demands(args)
    from kvprobe.evidence.suitedir import is_suite_dir

    if args.replay is not None and (args.plan is not None or is_suite_dir(args.run_dir)):
        message = "--replay stands in the page of a single run, without --plan"
        raise UsageError(Problem("conflict", message, "leave out one of the two, or name one run"))
    if is_suite_dir(args.run_dir):
        return _suite(args, demands)
    from kvprobe.cli.present import present
    from kvprobe.diagnose.judge import diagnose_run
    from kvprobe.evidence.rundir import RunDir
    from kvprobe.summary.build import summarise

    data = RunDir.open(args.run_dir).load()
    summary = summarise(data)
    diagnosis = diagnose_run(data, summary)
    if args.plan is not None:
        return _prelaunch(args, demands, _view(args, data, summary, diagnosis))
    if args.html is not None or args.md is not None:
        _write_pages(args, _run_report(args, data, summary, diagnosis))
    _junit(args, data, summary, diagnosis)
    _openmetrics(args, data)
    present(data, summary, diagnosis, as_json=args.json, no_color=args.no_color)
    return Exit.OK


def _run_report(args: argparse.Namespace, data: RunData, summary: Summary, diagnosis: Diagnosis) -> Report:
    from kvprobe.report.document import run_document
    from kvprobe.report.run_page import run_report
    from kvprobe.report.terminal import banner

    document = run_document(data, summary, diagnosis)
    lang: Language = args.lang or "en"
    report = run_report(summary, diagnosis, banner(data), data=data, document=document, lang=lang)
    if args.replay is not None:
        from kvprobe.report.replay_page import read_replay, replay_sections
        from kvprobe.report.words import words

        report.sections += replay_sections(words(lang), read_replay(args.replay))
    return report


def _view(args: argparse.Namespace, data: RunData, summary: Summary, diagnosis: Diagnosis) -> Any:
    from kvprobe.report.document import run_document
    from kvprobe.report.run_view import RunView
    from kvprobe.report.words import words

    document = run_document(data, summary, diagnosis)
    return RunView(words(args.lang or "en"), summary, diagnosis, data, document)


def _suite(args: argparse.Namespace, demands: dict[str, float | None]) -> int:
    """A parent folder: the answer of all runs. With --plan, one of them stands for the service."""
    from kvprobe.cli.suite import present as present_suite
    from kvprobe.diagnose.suite_judge import judge_suite
    from kvprobe.evidence.suitedir import load_suite_dir
    from kvprobe.report.suite_document import suite_document
    from kvprobe.report.suite_page import suite_report

    result = judge_suite(load_suite_dir(args.run_dir))
    document = suite_document(result)
    if args.plan is not None and result.runs:
        chosen = _spokesman(result)
        view = _view(args, chosen.run.data, chosen.summary, chosen.diagnosis)
        view.document |= {"sweep": document["sweep"], "runs": document["runs"]}
        return _prelaunch(args, demands, view)
    if args.html is not None or args.md is not None:
        _write_pages(args, suite_report(document, args.lang or "en"))
    if args.junit is not None:
        _junit_of_all(args.junit, result)
    if args.openmetrics is not None:
        message = "--openmetrics is of one run, this is the folder of several"
        raise UsageError(Problem("not_a_run", message, "name one of the run directories in it"))
    present_suite(result, as_json=args.json, no_color=args.no_color)
    return Exit.OK


def _spokesman(result: SuiteResult) -> JudgedRun:
    """Of a sweep, the valid run at the highest sustained load: its waits and its speed are those of the
    capacity that the page names. Else the last valid run."""
    valid = [judged for judged in result.runs if judged.valid] or result.runs
    limit = result.sweep.interval if result.sweep is not None else None
    at = limit.lo_step if limit is not None else None
    load = result.sweep.steps[at].load if result.sweep is not None and at is not None else None
    at_limit = [j for j in valid if load is not None and j.run.load == load]
    return (at_limit or valid)[-1]


def _prelaunch(args: argparse.Namespace, demands: dict[str, float | None], view: Any) -> int:
    from kvprobe.cli.streams import emit
    from kvprobe.evidence.migrations import read_plan
    from kvprobe.report.markdown_page import render_plain
    from kvprobe.report.prelaunch.page import prelaunch_document, prelaunch_report

    plan = read_plan(Path(args.plan))
    models = [m for m in plan.get("models") or [] if isinstance(m, dict)]
    report = prelaunch_report(models[0] if models else plan, view, lang=args.lang or "en", **demands)
    _write_pages(args, report)
    _junit(args, view.data, view.summary, view.diagnosis)
    _openmetrics(args, view.data)
    if args.json:
        told = prelaunch_document(models[0] if models else plan, view, **demands)
        emit(json.dumps({**view.document, "prelaunch": told}, allow_nan=False) + "\n")
    else:
        emit(render_plain(report))
    return Exit.OK


def page_demands(args: argparse.Namespace) -> dict[str, float | None]:
    """--demand, --demand-at-once and --growth as numbers. Raises UsageError with every one that is wrong."""
    problems: list[Problem] = []

    def read(name: str, suffixes: tuple[str, ...], scale: Callable[[float], float]) -> float | None:
        text = getattr(args, name)
        if text is None:
            return None
        plain = text.strip()
        for suffix in suffixes:
            plain = plain.removesuffix(suffix).strip()
        try:
            value = float(plain)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value <= 0:
            option = f"--{name.replace('_', '-')}"
            problems.append(
                Problem("bad_value", f"{option} {text!r} is no number above 0", f"such as {option} 10")
            )
            return None
        return scale(value)

    found = {
        "demand_per_s": read("demand", ("/s",), lambda v: v),
        "demand_at_once": read("demand_at_once", (), lambda v: v),
        "growth": read("growth", ("%",), lambda v: v / 100),
    }
    if problems:
        raise UsageError(*problems)
    return found


def _write_pages(args: argparse.Namespace, report: Report) -> None:
    from kvprobe.report.html_page import render_page
    from kvprobe.report.markdown_page import render_markdown

    if args.html is not None:
        write(args.html, render_page(report))
    if args.md is not None:
        write(args.md, render_markdown(report))


def _junit(args: argparse.Namespace, data: RunData, summary: Summary, diagnosis: Diagnosis) -> None:
    if args.junit is not None:
        from kvprobe.gates.judge import judged
        from kvprobe.gates.junit import render_junit

        write(args.junit, render_junit(summary, diagnosis, judged(data, summary)))


def _junit_of_all(path: Path, result: SuiteResult) -> None:
    """One file, a test suite a run."""
    from kvprobe.gates.judge import judged
    from kvprobe.gates.junit import render_junit_of

    runs = [(j.summary, j.diagnosis, judged(j.run.data, j.summary)) for j in result.runs]
    write(path, render_junit_of(runs))


def _openmetrics(args: argparse.Namespace, data: RunData) -> None:
    if args.openmetrics is not None:
        from kvprobe.export.openmetrics import openmetrics

        write(args.openmetrics, openmetrics(data))


def write(path: Path, text: str) -> None:
    """A file of the reader's choice. Raises StorageError."""
    from kvprobe.evidence.spool import storage_error

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise storage_error(error, path) from error
