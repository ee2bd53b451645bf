"""A diagnosis on a terminal, as a good doctor would tell it: what it is, how sure, the proof, what to do.

80 columns are enough. Whatever a log said passes through the sanitiser.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Sequence

import msgspec
from rich.console import Console, RenderableType

from kvprobe.diagnose.causes import UNKNOWN
from kvprobe.diagnose.model import Diagnosis, Evidence, Finding
from kvprobe.report.cause_words import CAUSE_WORDS, SYMPTOM_WORDS, facts_line, place
from kvprobe.report.ink import Ink
from kvprobe.summary.units import plural, size, whole

LINE_CHARS = 480
"""Of a log line; longer ones are cut and say so."""
_LATER_LINE_CHARS = 200
"""Of the lines behind the first, and of what proves nothing: the page's first screen is dear."""
_MOST_EVIDENCE = 6
_STYLE = {"certain": "bold red", "likely": "bold yellow", "suspected": "yellow"}
_Rows = list[tuple[str, RenderableType]]


def render_diagnosis(diagnosis: Diagnosis, console: Console, *, title: str) -> None:
    """Print the whole answer."""
    ink = Ink(console)
    ink.rows([("kvprobe", ink.join(("diagnose ", ""), (title or "-", "bold"), (_engine(diagnosis), "")))])
    ink.blank()
    findings = _with_short_names(diagnosis.findings)
    if findings and findings[0].role == "primary":
        _primary(ink, findings[0])
    else:
        words = CAUSE_WORDS.get(diagnosis.primary, diagnosis.primary)
        ink.rows([("cause", ink.join((words, "bold green"), (f" ({diagnosis.primary})", "")))])
    shown = {(e.source, e.line) for e in findings[0].evidence} if findings else set()
    for finding in (f for f in findings if f.role == "secondary"):
        _secondary(ink, finding, shown)
    _ruled_out(ink, [f for f in findings if f.role == "ruled_out"])
    _observations(ink, diagnosis)
    _read(ink, diagnosis)


def text_of(diagnosis: Diagnosis, *, title: str, width: int = 80) -> str:
    """The same as plain text, for files and tests."""
    page = io.StringIO()
    plain = Console(file=page, width=width, color_system=None, highlight=False, markup=False, emoji=False)
    render_diagnosis(diagnosis, plain, title=title)
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def _primary(ink: Ink, finding: Finding) -> None:
    words = CAUSE_WORDS.get(finding.cause, finding.cause)
    rows: _Rows = [("cause", ink.text(words, _STYLE[finding.confidence]))]
    rows.append(("", ink.join((finding.cause, "bold"), (f", {finding.confidence}", ""))))
    if finding.symptom is not None:
        rows.append(("symptom", ink.text(SYMPTOM_WORDS[finding.symptom])))
    rows.append(("why", ink.text(finding.why)))
    ink.rows(rows)
    ink.blank()
    if finding.evidence:
        chars = LINE_CHARS if finding.cause != UNKNOWN else _LATER_LINE_CHARS
        ink.rows(_proof(ink, finding.evidence, chars=chars))
        ink.blank()
    ink.rows([*_steps(ink, "look first", finding.check_first), *_steps(ink, "remedy", finding.remedy)])
    if finding.would_change_my_mind:
        ink.rows(_steps(ink, "refuted by", finding.would_change_my_mind, numbered=False))


def _secondary(ink: Ink, finding: Finding, shown: set[tuple[str, int | None]]) -> None:
    """A further cause; evidence that stands above is only named."""
    ink.blank()
    words = CAUSE_WORDS.get(finding.cause, finding.cause)
    rows: _Rows = [
        (
            "also",
            ink.join((words, _STYLE[finding.confidence]), (f" ({finding.cause}, {finding.confidence})", "")),
        )
    ]
    rows.append(("  why", ink.text(finding.why)))
    new = [e for e in finding.evidence if (e.source, e.line) not in shown]
    if len(new) < len(finding.evidence):
        places = ", ".join(place(e) for e in finding.evidence if (e.source, e.line) in shown)
        rows.append(("  proof", ink.text(f"{places} (shown above)")))
    rows += _proof(ink, new[:2], label="  proof", chars=_LATER_LINE_CHARS)
    shown.update((e.source, e.line) for e in new[:2])
    rows += _steps(ink, "  remedy", finding.remedy[:2])
    ink.rows(rows, label_style="")


def _proof(ink: Ink, evidence: Sequence[Evidence], *, chars: int, label: str = "proof") -> _Rows:
    """Place, the line itself, its numbers."""
    rows: _Rows = []
    told = once(evidence)
    for i, piece in enumerate(told[:_MOST_EVIDENCE]):
        rows.append((label if i == 0 else "", ink.text(place(piece), "bold", limit=300)))
        rows.append(("", ink.text(piece.text, limit=chars if i == 0 else _LATER_LINE_CHARS)))
        if numbers := facts_line(piece.facts):
            rows.append(("", ink.text(f"= {numbers}", "dim")))
    if len(told) > _MOST_EVIDENCE:
        rows.append(("", ink.text(f"and {len(told) - _MOST_EVIDENCE} more (see --json)", "dim")))
    return rows


def once(evidence: Sequence[Evidence]) -> list[Evidence]:
    """A line that proves several things is shown once, with all its numbers."""
    lines: dict[tuple[str, int | None, str], Evidence] = {}
    for piece in evidence:
        key = (piece.source, piece.line, piece.text if piece.line is None else "")
        first = lines.get(key)
        if first is None:
            lines[key] = piece
        else:
            lines[key] = msgspec.structs.replace(first, facts={**piece.facts, **first.facts})
    return list(lines.values())


def _with_short_names(findings: Sequence[Finding]) -> list[Finding]:
    """Evidence by the names of its files: where they lie stands in the title. Not where two have one."""
    sources = {e.source for f in findings for e in f.evidence}
    names = Counter(os.path.basename(source) for source in sources)
    short = {s: os.path.basename(s) for s in sources if names[os.path.basename(s)] == 1 and os.path.isfile(s)}
    return [
        msgspec.structs.replace(
            f,
            evidence=[msgspec.structs.replace(e, source=short.get(e.source, e.source)) for e in f.evidence],
        )
        for f in findings
    ]


def _steps(ink: Ink, label: str, steps: Sequence[str], *, numbered: bool = True) -> _Rows:
    several = numbered and len(steps) > 1
    return [
        (label if i == 1 else "", ink.text(f"{i}. {step}" if several else step))
        for i, step in enumerate(steps, 1)
    ]


def _ruled_out(ink: Ink, findings: Sequence[Finding]) -> None:
    if not findings:
        return
    ink.blank()
    ink.rows(
        [
            ("ruled out" if i == 0 else "", ink.join((f.cause, "bold"), (f": {f.why}", "")))
            for i, f in enumerate(findings)
        ]
    )


def _observations(ink: Ink, diagnosis: Diagnosis) -> None:
    if not diagnosis.observations:
        return
    ink.blank()
    ink.rows([("note" if i == 0 else "", ink.text(o.text)) for i, o in enumerate(diagnosis.observations)])


def _read(ink: Ink, diagnosis: Diagnosis) -> None:
    """What was read, and what could not be."""
    told = read_words(diagnosis)
    if told:
        ink.blank()
        ink.rows([("read" if i == 0 else "", ink.text(line, "dim")) for i, line in enumerate(told)])


def read_words(diagnosis: Diagnosis) -> list[str]:
    """Sentences about what was read."""
    read = diagnosis.read
    parts = []
    if read.get("lines") is not None:
        parts.append(plural(read["lines"], "line"))
    if read.get("bytes") is not None:
        parts.append(size(read["bytes"]))
    if read.get("requests") is not None:
        parts += [plural(read["requests"], "request"), plural(read.get("samples") or 0, "sample")]
    if (events := read.get("events")) is not None:
        parts.append(
            "no line with facts" if not events else "1 fact" if events == 1 else f"{whole(events)} facts"
        )
    sources = read.get("sources") or []
    if len(sources) > 1:
        parts.append(f"{len(sources)} files")
    if pages := read.get("metrics"):
        parts.append(f"metrics of {', '.join(pages)}")
    if read.get("skipped"):
        parts.append(f"{whole(read['skipped'])} lines not read in full")
    return [", ".join(parts), *(read.get("notes") or [])] if parts else list(read.get("notes") or [])


def _engine(diagnosis: Diagnosis) -> str:
    engine, version = diagnosis.read.get("engine"), diagnosis.read.get("engine_version")
    return f" ({engine}{f' {version}' if version else ''})" if engine else ""
