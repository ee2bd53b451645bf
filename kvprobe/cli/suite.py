"""`kvprobe run` of a suite or a sweep: call, print, exit code."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from kvprobe.cli import errors_out, streams
from kvprobe.cli.streams import emit
from kvprobe.errors import Exit, Problem, StorageError, gravest

if TYPE_CHECKING:
    from kvprobe.diagnose.suite_judge import Judged, SuiteResult
    from kvprobe.run.options import RunOptions
    from kvprobe.run.progress import Progress
    from kvprobe.run.suite import SuiteOutcome


def run(options: RunOptions, progress: Progress, args: argparse.Namespace) -> int:
    """The whole command, once its options are read."""
    from kvprobe.run.suite import conduct_suite

    outcome = conduct_suite(options, progress)
    if outcome.path is None:
        with streams.tolerant():
            errors_out.report(outcome.problems, as_json=args.json)
        return outcome.exit_code
    result = _judged(outcome)
    if result.data.status == "complete" and (invalid := _invalid(result)) is not None:
        outcome.problems.append(invalid)
        outcome.exit_code = gravest(outcome.exit_code, Exit.INVALID)
    _write(outcome, result)
    try:
        _junit(outcome, options)
    except StorageError as error:
        outcome.exit_code = gravest(outcome.exit_code, Exit.STORAGE)
        outcome.problems.extend(error.problems)
    code = outcome.exit_code
    try:
        present(result, as_json=args.json, no_color=args.no_color)
    except BrokenPipeError:
        code = gravest(code, Exit.STDOUT_CLOSED)
    except StorageError as error:
        code = gravest(code, Exit.STORAGE)
        outcome.problems.extend(error.problems)
    _say(outcome.problems, as_json=args.json)
    return code


def present(result: SuiteResult, *, as_json: bool, no_color: bool) -> None:
    """Print the result; a closed stdout raises BrokenPipeError."""
    if as_json:
        from kvprobe.report.suite_document import suite_document

        emit(json.dumps(suite_document(result), allow_nan=False) + "\n")
        return
    from kvprobe.cli.present import show
    from kvprobe.report.suite_text import render_suite

    show(lambda page: render_suite(result, page), no_color=no_color)


def _judged(outcome: SuiteOutcome) -> SuiteResult:
    """What was measured, with what the runs' own conclusions already worked out."""
    from kvprobe.diagnose.suite_judge import judge_suite
    from kvprobe.evidence.suitedir import load_suite_dir

    assert outcome.path is not None
    data = load_suite_dir(outcome.path.path)
    known: dict[str, Judged] = {}
    for run in outcome.runs:
        made = run.outcome
        if made.data is not None and made.summary is not None and made.diagnosis is not None:
            known[made.data.path.name] = (made.summary, made.diagnosis)
    data.status = "complete"
    stopped = outcome.exit_code in (Exit.SIGINT, Exit.SIGTERM)
    if outcome.ended_early is not None or stopped or any(run.data.status != "complete" for run in data.runs):
        data.status = "partial"
    return judge_suite(data, known)


def _invalid(result: SuiteResult) -> Problem | None:
    """The parts whose measurement is invalid; of a sweep, if its answer depends on them."""
    from kvprobe.summary.sweep_result import undecided_because_invalid

    bad = [judged.label for judged in result.runs if not judged.valid]
    if not bad or (result.sweep is not None and not undecided_because_invalid(result.sweep)):
        return None
    what = "the sweep has no answer: INVALID in" if result.sweep is not None else "INVALID measurement in"
    fix = "mend the reason that is given for it, and run again"
    return Problem("invalid", f"{what} {', '.join(bad)}", fix)


def _junit(outcome: SuiteOutcome, options: RunOptions) -> None:
    """One file, a test suite a run. Raises `StorageError`."""
    if options.junit is None:
        return
    from kvprobe.evidence.spool import storage_error
    from kvprobe.gates.junit import render_junit_of

    made = [run.outcome for run in outcome.runs]
    text = render_junit_of(
        (m.summary, m.diagnosis, m.thresholds)
        for m in made
        if m.summary is not None and m.diagnosis is not None
    )
    try:
        options.junit.write_text(text, encoding="utf-8")
    except OSError as error:
        raise storage_error(error, options.junit) from error


def _write(outcome: SuiteOutcome, result: SuiteResult) -> None:
    from kvprobe.report.suite_document import suite_document
    from kvprobe.run.suite import keep_results

    keep_results(outcome, suite_document(result))


def _say(problems: list[Problem], *, as_json: bool) -> None:
    """Beside a result, problems go to stderr: stdout holds one document."""
    for problem in problems:
        with streams.tolerant():
            if as_json:
                sys.stderr.write(json.dumps(errors_out.document([problem])) + "\n")
            else:
                errors_out.report([problem], as_json=False)
