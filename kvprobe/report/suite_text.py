"""A suite or sweep on a terminal: the answer first, then the table, then each run in a line."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvprobe.diagnose.causes import HEALTHY
from kvprobe.diagnose.suite_answer import Answer, Column
from kvprobe.diagnose.suite_judge import JudgedRun, SuiteResult
from kvprobe.report.ink import Ink
from kvprobe.report.kept_up import words_of_run
from kvprobe.summary.sweep import BAD, Bound, Step, Verdict, load_text
from kvprobe.summary.sweep_result import SweepResult
from kvprobe.summary.units import figures, percent, plural, seconds, size, whole

_VERDICTS = {
    "shown": ("shown", "green"),
    "not_shown": ("not shown", "yellow"),
    "opposite": ("opposite", "bold red"),
    "cannot_tell": ("cannot tell", "dim"),
}
UNKNOWN = "-"
BACKLOG = 2
LEFT_OUT_IN_ORDER = (5, 7, 4, 6, 3, 1)
"""Of a sweep's table on a narrow screen: p99, output, p95, TPOT, p50, served. Its verdict never."""


def render_suite(result: SuiteResult, console: Console) -> None:
    """Print the whole report of a suite."""
    ink = Ink(console)
    _head(ink, result)
    if result.answer is not None:
        _answer(ink, result.answer)
    if result.sweep is not None:
        _sweep(ink, result.sweep)
    _runs(ink, result)
    _foot(ink, result)


def suite_text(result: SuiteResult, *, width: int) -> str:
    """The same as plain text of `width` columns, for files."""
    page = io.StringIO()
    plain = Console(file=page, width=width, color_system=None, highlight=False, markup=False, emoji=False)
    render_suite(result, plain)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def _head(ink: Ink, result: SuiteResult) -> None:
    if result.data.status != "complete":
        cut = "was killed, or is still going" if result.data.status == "killed" else "did not run to its end"
        ink.line(f"PARTIAL: the suite {cut}; what its runs show is below", "bold yellow")
    bad = [judged.label for judged in result.runs if not judged.valid]
    if bad and result.sweep is None:
        ink.line(f"INVALID in {', '.join(bad)}: do not quote what rests on it", "bold red")
    what = "sweep" if result.sweep is not None else "suite"
    targets = list(dict.fromkeys(judged.summary.target or "an unknown target" for judged in result.runs))
    where = targets[0] if len(targets) == 1 else f"{len(targets)} servers in turn" if targets else "no target"
    engine = next((j.summary.engine for j in result.runs if j.summary.engine), None)
    version = next((j.summary.engine_version for j in result.runs if j.summary.engine_version), None)
    who = f" ({engine} {version or ''})".replace(" )", ")") if engine else ""
    ink.rows([(f"kvprobe {what}", ink.join((result.name, "bold"), (f" -> {where}{who}", "")))])


def _answer(ink: Ink, answer: Answer) -> None:
    rows: list[tuple[str, Any]] = []
    if answer.recommendation is not None:
        rows.append(("answer", ink.text(answer.recommendation.text, "bold")))
    for statement in answer.statements:
        word, style = _VERDICTS[statement.verdict]
        if statement.id == "meaning":
            rows.append(("answer", ink.text(statement.text, "bold")))
            continue
        rows.append((word, ink.join((statement.text, style if statement.verdict == "opposite" else ""))))
    ink.rows(rows)
    ink.blank()
    ink.console.print(_table(ink, answer))
    for note in answer.notes:
        ink.rows([("note", ink.text(note))])


def _table(ink: Ink, answer: Answer) -> Table:
    """Parts as columns: a part has many numbers, and a suite few parts."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    first, *others = answer.columns
    table.add_column(ink.text(first.title), no_wrap=True)
    for row in answer.rows:
        table.add_column(ink.text(cell(first, row)), justify="right", no_wrap=True)
    for column in others:
        if any(row.get(column.key) is not None for row in answer.rows):
            table.add_row(ink.text(column.title), *(ink.text(cell(column, row)) for row in answer.rows))
    return table


def cell(column: Column, row: dict[str, Any]) -> str:
    """A value as a person reads it."""
    value = row.get(column.key)
    if value is None:
        return UNKNOWN
    match column.unit:
        case "s":
            return seconds(value)
        case "bytes":
            return size(value)
        case "ratio":
            return percent(value)
        case "tokens_per_s":
            return f"{figures(value)} tok/s"
        case "tokens":
            return whole(value)
        case "count":
            return whole(value) if float(value).is_integer() else figures(value)
        case _:
            return str(value)


def _sweep(ink: Ink, sweep: SweepResult) -> None:
    ink.rows(
        [
            ("answer" if i == 0 else "", ink.text(s, "bold" if i == 0 else ""))
            for i, s in enumerate(sweep.sentences)
        ]
    )
    ink.blank()
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False)
    titles = [sweep.unit, "served/s", "backlog/s [95 %]", "TTFT p50", "p95", "p99", "TPOT p50", "output", ""]
    rows_of = [_step_cells(ink, step) for step in sweep.steps]
    shown = _fitting(titles, rows_of, ink.console.width, closed=sweep.axis == "users")
    for i in shown:
        table.add_column(titles[i], justify="left" if not titles[i] else "right", no_wrap=True)
    for cells in rows_of:
        table.add_row(*(cells[i] for i in shown))
    ink.console.print(table)
    rows = [
        (f"  {load_text(s.load)}", ink.text(s.why)) for s in sweep.steps if s.verdict not in ("sustained",)
    ]
    ink.rows(rows, label_style="")
    for note in sweep.notes:
        ink.rows([("note", ink.text(note))])


def _fitting(titles: list[str], rows: list[list[Text]], columns: int, *, closed: bool) -> list[int]:
    """The columns that a screen of so many has room for: what is left out is in JSON, and on a wider one."""
    # A closed loop has no backlog: a user waits.
    shown = [i for i in range(len(titles)) if not (closed and i == BACKLOG)]
    for left_out in LEFT_OUT_IN_ORDER:
        widths = [max(len(titles[i]), *(row[i].cell_len for row in rows), 0) + 2 for i in shown]
        if sum(widths) - 2 <= columns:
            break
        shown = [i for i in shown if i != left_out]
    return shown


def _step_cells(ink: Ink, step: Step) -> list[Text]:
    style = "bold red" if step.verdict in BAD else "green" if step.verdict == "sustained" else "yellow"
    backlog = step.backlog
    growth = UNKNOWN
    if backlog is not None:
        growth = f"{backlog.growth_per_s:+.2f} [{backlog.lo_per_s:+.2f}, {backlog.hi_per_s:+.2f}]"
    output = f"{figures(step.output_tokens_per_s)} tok/s" if step.output_tokens_per_s is not None else UNKNOWN
    return [
        ink.text(load_text(step.load), "bold"),
        ink.text(figures(step.served_per_s) if step.served_per_s is not None else UNKNOWN),
        ink.text(growth),
        *(ink.text(_bound(step.ttft_s.get(name))) for name in ("p50", "p95", "p99")),
        ink.text(_bound(step.tpot_s.get("p50"))),
        ink.text(output),
        ink.text(step.verdict.replace("_", " "), style),
    ]


def _bound(found: Bound | None) -> str:
    if found is None or found.value is None:
        return "n small" if found is not None and (found.reason or "").startswith("n too small") else UNKNOWN
    return seconds(found.value)


def _runs(ink: Ink, result: SuiteResult) -> None:
    ink.blank()
    verdicts = {s.run_dir: s.verdict for s in result.sweep.steps} if result.sweep is not None else {}
    for i, judged in enumerate(result.runs):
        line = _run_line(ink, judged, verdicts.get(judged.run.data.path.name))
        ink.rows([("runs" if i == 0 else "", line)])
    for problem in result.data.unreadable:
        ink.rows([("unreadable", ink.text(problem.message, "yellow"))])


def _run_line(ink: Ink, judged: JudgedRun, verdict: Verdict | None) -> Text:
    counted = judged.summary.requests
    failed = f", {whole(counted.failed_before_end)} failed" if counted.failed_before_end else ""
    failed += f", {whole(counted.cut_at_end)} cut off at the end" if counted.cut_at_end else ""
    found = judged.diagnosis
    words = words_of_run(found.primary, found.validity.warnings if found.validity else [], verdict)
    said = "; ".join(word.replace("_", " ") if word == verdict else word for word in words)
    style = "green" if words in (["sustained"], [HEALTHY]) else "bold red" if verdict in BAD else ""
    if not judged.valid:
        said, style = "INVALID", "bold red"
    return ink.join(
        (f"{judged.label}: ", "bold"),
        (f"{plural(counted.ok, 'request')} ok{failed}; ", ""),
        (said, style),
        (f"  {judged.run.data.path.name}", "dim"),
    )


def _foot(ink: Ink, result: SuiteResult) -> None:
    ink.blank()
    for judged in result.runs if result.sweep is None else ():  # a sweep's table has them
        validity = judged.diagnosis.validity
        for reason in validity.reasons if validity is not None else ():
            ink.rows([("invalid", ink.text(f"{judged.label}: {reason}", "red"))])
    ink.rows([("suite folder", ink.text(str(result.data.path)))])
