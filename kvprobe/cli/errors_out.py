"""Problems as a compiler would print them, or as a `kvprobe.error/1` document."""

from __future__ import annotations

import dataclasses
import json
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from kvprobe.cli.streams import emit
from kvprobe.errors import Problem
from kvprobe.evidence.secrets import masked

SCHEMA = "kvprobe.error/1"


def report(problems: Sequence[Problem], *, as_json: bool) -> None:
    """Text goes to stderr; the JSON document is the command's result and goes to stdout."""
    if as_json:
        emit(json.dumps(document(problems), ensure_ascii=True) + "\n")
        return
    sys.stderr.write("\n".join(_text(_without_secrets(p)) for p in problems) + "\n")


def document(problems: Sequence[Problem]) -> dict[str, Any]:
    """`{"schema", "errors": [{code, path, line, column, message, fix}]}`."""
    keys = ("code", "path", "line", "column", "message", "fix")
    shown = [_without_secrets(problem) for problem in problems]
    return {"schema": SCHEMA, "errors": [{k: getattr(p, k) for k in keys} for p in shown]}


def _without_secrets(problem: Problem) -> Problem:
    def mask(text: str | None) -> str | None:
        return None if text is None else masked(text)

    return dataclasses.replace(
        problem,
        message=masked(problem.message),
        fix=mask(problem.fix),
        path=mask(problem.path),
        source_line=mask(problem.source_line),
    )


def report_defect(error: Exception, *, as_json: bool, verbose: bool) -> None:
    """Something that should not have happened: say so in one line; the traceback on request."""
    if verbose:
        traceback.print_exc()
    problem = Problem(
        "internal",
        f"internal error: {type(error).__name__}: {error}",
        "run again with -v for the traceback and report it as a defect of kvprobe",
    )
    report([problem], as_json=as_json)


def _text(problem: Problem) -> str:
    from kvprobe.report.sanitize import clean

    lines = [f"error[{problem.code}]: {clean(problem.message)}"]
    if problem.path is not None:
        place = [clean(problem.path), *(str(n) for n in (problem.line, problem.column) if n is not None)]
        lines.append(f"  --> {':'.join(place)}")
    if problem.source_line is not None and problem.line is not None:
        lines += _excerpt(problem.source_line, problem.line, problem.column)
    if problem.fix:
        lines.append(f"  fix: {clean(problem.fix)}")
    return "\n".join(lines)


_EXCERPT_CHARS = 100


def _excerpt(source: str, line: int, column: int | None) -> list[str]:
    """The offending line with a caret; a very long line is cut around the caret."""
    from kvprobe.report.sanitize import clean

    at = max(0, (column or 1) - 1)
    start = max(0, at - _EXCERPT_CHARS // 2) if len(source) > _EXCERPT_CHARS else 0
    shown = source[start : start + _EXCERPT_CHARS].replace("\t", " ")
    before = clean(shown[: at - start])
    gutter = str(line)
    pad = " " * len(gutter)
    excerpt = [f" {pad} |", f" {gutter} | {before}{clean(shown[at - start :])}"]
    if column is not None:
        excerpt.append(f" {pad} | {' ' * len(before)}^")
    return excerpt
