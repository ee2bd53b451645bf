"""A run on a terminal: verdict, validity and meaning first, then the numbers, then the evidence."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from kvprobe.diagnose.causes import HEALTHY
from kvprobe.diagnose.model import Diagnosis, Finding
from kvprobe.evidence.rundata import RunData
from kvprobe.gates.judge import GateResult
from kvprobe.gates.numbers import sentence, verdict_word
from kvprobe.report.ink import Ink
from kvprobe.report.kept_up import behind
from kvprobe.report.numbers import arrival_text, latency_table, load_rows
from kvprobe.summary.build import Summary
from kvprobe.summary.rates import CUT
from kvprobe.summary.units import percent, plural, seconds, whole

DETAIL_CHARS = 200
LAGGED = "the server did not keep up with the load"
FEW_REQUESTS = 20
"""A verdict that rests on fewer says so."""
_CONFIDENCE_STYLE = {"certain": "bold red", "likely": "bold yellow", "suspected": "yellow"}


def render_run(
    summary: Summary,
    diagnosis: Diagnosis,
    console: Console,
    banner: str | None = None,
    thresholds: Sequence[GateResult] = (),
) -> None:
    """Print the whole report. `banner` is a line about the run directory (a partial run)."""
    ink = Ink(console)
    _head(ink, summary, diagnosis, banner)
    _verdict(ink, summary, diagnosis)
    _validity(ink, diagnosis)
    _thresholds(ink, thresholds)
    _failures(ink, summary)
    _meaning(ink, diagnosis)
    ink.blank()
    ink.console.print(latency_table(ink, summary))
    ink.blank()
    ink.rows(load_rows(ink, summary))
    for number, finding in enumerate(diagnosis.findings, 1):
        _evidence(ink, number, finding)
    _foot(ink, summary, diagnosis)


def render_text(summary: Summary, diagnosis: Diagnosis, banner: str | None, *, width: int) -> str:
    """The same as plain text of `width` columns, for files: no escape codes, no padding."""
    page = io.StringIO()
    plain = Console(file=page, width=width, color_system=None, highlight=False, markup=False, emoji=False)
    render_run(summary, diagnosis, plain, banner)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def banner(run: RunData) -> str | None:
    """What must stand above the report of a run that is not whole."""
    if run.status == "complete":
        return None
    cut = "was killed, or is still going" if run.status == "killed" else "did not run to its planned end"
    lost = f"; {plural(len(run.opened), 'request')} in flight have no row" if run.opened else ""
    damaged = f"; {plural(run.bad_lines, 'damaged line')} left out" if run.bad_lines else ""
    return f"PARTIAL: the run {cut}{lost}{damaged}"


def _head(ink: Ink, summary: Summary, diagnosis: Diagnosis, banner: str | None) -> None:
    if banner:
        ink.line(banner, "bold yellow")
    valid = diagnosis.validity is None or diagnosis.validity.valid
    if not valid:
        ink.line("INVALID: do not quote these numbers", "bold red")
    what = summary.workload or "a run"
    where = summary.target or "an unknown target"
    who = ", ".join(w for w in (_model(summary), _engine(summary)) if w)
    ink.rows(
        [("kvprobe run", ink.join((what, "bold"), (f" -> {where}", ""), (f" ({who})" if who else "", "")))]
    )


def _model(summary: Summary) -> str:
    return f"model {summary.model}" if summary.model else ""


def _engine(summary: Summary) -> str:
    return f"{summary.engine} {summary.engine_version or ''}".strip() if summary.engine else ""


def _verdict(ink: Ink, summary: Summary, diagnosis: Diagnosis) -> None:
    """The answer in a few lines: what, why, where to look first, what mends it."""
    if not diagnosis.findings:
        ok = summary.requests.ok
        few = f" in {plural(ok, 'request')}, which is few" if ok < FEW_REQUESTS else ""
        if behind(diagnosis) is not None:
            ink.rows([("verdict", ink.join((LAGGED, "bold yellow"), ("; no other cause was found", "")))])
            return
        healthy = f"nothing wrong was found{few}" if diagnosis.primary == HEALTHY else diagnosis.primary
        ink.rows([("verdict", ink.join((healthy, "bold green"), (f" ({diagnosis.primary})", "")))])
        return
    first = diagnosis.findings[0]
    style = _CONFIDENCE_STYLE[first.confidence]
    rows = [("verdict", ink.join((first.cause, style), (f" ({first.confidence})", "")))]
    rows.append(("", ink.text(first.why)))
    rows += [("look first", ink.text(step)) for step in first.check_first[:1]]
    rows += [("remedy", ink.text(step)) for step in first.remedy[:1]]
    others = [f.cause for f in diagnosis.findings[1:] if f.role == "secondary"]
    if others:
        rows.append(("also", ink.text(", ".join(others))))
    ink.rows(rows)


def _failures(ink: Ink, summary: Summary) -> None:
    """Failures stand before every latency."""
    counted = summary.requests
    parts = [f"{whole(counted.sent)} sent", f"{whole(counted.ok)} ok"]
    parts.append(f"{whole(counted.failed_before_end)} failed")
    parts += [f"{whole(counted.cut_at_end)} cut off at the end"] if counted.cut_at_end else []
    parts += [f"{whole(counted.unsent)} unsent"] if counted.unsent else []
    parts += [f"{whole(counted.unfinished)} cut in flight"] if counted.unfinished else []
    lost = f" ({whole(counted.warmup_failed)} failed)" if counted.warmup_failed else ""
    warmup = f"; {plural(counted.warmup, 'warm-up request')} apart{lost}" if counted.warmup else ""
    span = f" in {seconds(summary.window.seconds)}" if summary.window.seconds else ""
    style = "bold red" if counted.failed_before_end else ""
    rows = [("requests", ink.text(", ".join(parts) + span + warmup, style))]
    if arrival := arrival_text(summary):
        rows.insert(0, ("load", ink.text(arrival)))
    for group in (g for g in summary.failures if g.kind != CUT):
        statuses = ", ".join(f"{n} x {code}" for code, n in group.statuses.items())
        told = f" [{statuses}]" if statuses and group.kind in ("status", "throttled", "auth") else ""
        detail = ink.text(group.details[0], limit=DETAIL_CHARS).plain if group.details else ""
        share = f"{whole(group.count)} x {group.kind}{told} ({percent(group.share)})"
        rows.append(("  failed", ink.join((share, "red"), (f": {detail}" if detail else "", ""))))
    ink.rows(rows)


def _meaning(ink: Ink, diagnosis: Diagnosis) -> None:
    if not diagnosis.observations:
        return
    ink.rows(
        [("what it means" if i == 0 else "", ink.text(o.text)) for i, o in enumerate(diagnosis.observations)]
    )


def _validity(ink: Ink, diagnosis: Diagnosis) -> None:
    """May the numbers be quoted: on the first screen, with every reason why not (once) and every warning."""
    validity = diagnosis.validity
    if validity is None:
        return
    why = diagnosis.findings[0].why if diagnosis.findings else ""
    reasons = [reason for reason in validity.reasons if reason not in why]
    above = " (the reason stands above)" if len(reasons) < len(validity.reasons) else ""
    said = ink.text("valid", "green") if validity.valid else ink.text(f"INVALID{above}", "bold red")
    rows = [("validity", said), *(("  invalid", ink.text(reason, "red")) for reason in reasons)]
    rows += [("  warning", ink.text(warning, "yellow")) for warning in validity.warnings]
    ink.rows(rows)


def _thresholds(ink: Ink, results: Sequence[GateResult]) -> None:
    """Each threshold with what was measured; one that could not be judged has failed, and says why."""
    rows: list[tuple[str, Text]] = []
    for result in results:
        style = "green" if result.passed else "bold red"
        why = f"  [{result.why}]" if result.why else ""
        line = ink.join((verdict_word(result), style), (f"  {sentence(result)}", ""), (why, "dim"))
        rows.append(("thresholds" if not rows else "", line))
    ink.rows(rows)


def _evidence(ink: Ink, number: int, finding: Finding) -> None:
    """What a finding rests on, in full; the primary one's reason was given above."""
    ink.blank()
    head = f"{finding.cause} ({finding.role}, {finding.confidence})"
    rows = [(f"finding {number}", ink.text(head, "bold"))]
    if finding.role != "primary":
        rows.append(("  why", ink.text(finding.why)))
    rows += [
        ("  evidence", ink.join((e.text, ""), (f"  [{_source(e.source, e.line)}]", "dim")))
        for e in finding.evidence
    ]
    rows += [("  look first", ink.text(step)) for step in finding.check_first]
    rows += [("  remedy", ink.text(step)) for step in finding.remedy]
    rows += [("  refuted by", ink.text(step)) for step in finding.would_change_my_mind]
    ink.rows(rows, label_style="")


def _foot(ink: Ink, summary: Summary, diagnosis: Diagnosis) -> None:
    """A terminal shows the end of a long text: the verdict once more, in one line."""
    valid = diagnosis.validity is None or diagnosis.validity.valid
    ink.blank()
    told = diagnosis.primary if valid else f"INVALID measurement, {diagnosis.primary}"
    if behind(diagnosis) is not None:
        ink.rows([("verdict", ink.text(LAGGED, "bold yellow")), ("run directory", ink.text(summary.run_dir))])
        return
    style = ("bold green" if not diagnosis.findings else "bold") if valid else "bold red"
    ink.rows([("verdict", ink.text(told, style)), ("run directory", ink.text(summary.run_dir))])


def _source(source: str, line: int | None) -> str:
    return source if line is None else f"{source}:{line}"
