"""The report of a suite or sweep: its answer, its curve, its runs side by side. Read from its document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from kvprobe.diagnose.model import Diagnosis
from kvprobe.report import run_numbers, run_origin
from kvprobe.report.charts_capacity import number
from kvprobe.report.content import (
    Block,
    Bullets,
    Card,
    Facts,
    Inline,
    Num,
    Para,
    Report,
    Said,
    Section,
    Table,
    Tone,
)
from kvprobe.report.html_page import render_page
from kvprobe.report.words import Language, Words, words
from kvprobe.summary.units import figures, percent, seconds, size, whole

_TONE: dict[str, Tone] = {"shown": "good", "not_shown": "warn", "opposite": "bad", "cannot_tell": ""}


def render_suite_page(document: Mapping[str, Any], lang: Language = "en") -> str:
    """The whole page."""
    return render_page(suite_report(document, lang))


def suite_report(document: Mapping[str, Any], lang: Language = "en") -> Report:
    """`document` is the `kvprobe.run/1` of a suite's parent folder."""
    w = words(lang)
    sweep = document.get("sweep")
    runs = [r for r in document.get("runs") or [] if isinstance(r, Mapping)]
    sections = [
        _answer_table(w, document.get("answer")),
        run_numbers.sweep(w, sweep) if isinstance(sweep, Mapping) else None,
        run_origin.parts(w, runs, sweep),
        _findings(w, document.get("diagnosis")) if runs else None,
        _origin(w, document, runs),
    ]
    where = " · ".join(str(document[k]) for k in ("target", "model", "engine") if document.get(k))
    return Report(
        lang=lang,
        title=w(
            "{name}: sweep report" if isinstance(sweep, Mapping) else "{name}: suite report",
            name=document.get("workload") or "?",
        ),
        subtitle=where,
        badges=_badges(w, document, runs),
        first=_first(w, document, sweep),
        sections=[s for s in sections if s is not None and s.blocks],
        footer=w("Each run has a directory and a report.html of its own below this folder."),
    )


def _badges(w: Words, document: Mapping[str, Any], runs: list[Mapping[str, Any]]) -> list[Said]:
    out = []
    if document.get("status") != "complete":
        out.append(Said(w("PARTIAL"), "warn"))
    if lost := _unreadable(document):
        n = len(lost)
        out.append(Said(w("1 run cannot be read") if n == 1 else w("{n} runs cannot be read", n=n), "warn"))
    bad = sum(1 for r in runs if _valid(r) is False)
    if bad:
        out.append(Said(w("{bad} of {n} runs INVALID", bad=bad, n=len(runs)), "bad"))
    else:
        out.append(Said(w("{n} valid runs", n=len(runs)), "good" if runs else "warn"))
    return out


def _unreadable(document: Mapping[str, Any]) -> list[str]:
    found = document.get("unreadable")
    return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []


def _valid(run: Mapping[str, Any]) -> bool | None:
    told = run.get("diagnosis")
    found = told.get("validity") if isinstance(told, Mapping) else None
    return found.get("valid") if isinstance(found, Mapping) else None


def _said(w: Words, text: Any) -> Said:
    known = w.known(str(text))
    return Said(known) if known is not None else Said(str(text), foreign=True)


def _first(w: Words, document: Mapping[str, Any], sweep: Any) -> list[Block]:
    """The answer: a recommendation and statements, or a sweep's sentences."""
    blocks: list[Block] = []
    if isinstance(sweep, Mapping):
        told = [s for s in sweep.get("sentences") or [] if isinstance(s, str)]
        if told:
            rest: list[Block] = [Bullets([_said(w, s) for s in told[1:]])] if told[1:] else []
            head = w.known(told[0]) or told[0]
            blocks.append(Card(head, rest, "good", label=w("Answer")))
        notes = [n for n in sweep.get("notes") or [] if isinstance(n, str)]
        if notes:
            blocks.append(Card(w("Notes"), [Bullets([_said(w, n) for n in notes])], "warn"))
    answer = document.get("answer")
    if isinstance(answer, Mapping):
        blocks += _statements(w, answer)
    blocks = blocks or [Para(w("The runs of this suite stand below."))]
    if lost := _unreadable(document):
        title = w("Runs that cannot be read, and are in no number here")
        blocks.append(Card(title, [Bullets([Said(text, foreign=True) for text in lost])], "warn"))
    return blocks


def _statements(w: Words, answer: Mapping[str, Any]) -> list[Block]:
    out: list[Block] = []
    advice = answer.get("recommendation")
    if isinstance(advice, Mapping) and advice.get("text"):
        text = str(advice["text"])
        out.append(
            Card(w.known(text) or text, [], _TONE.get(str(advice.get("verdict")), ""), label=w("Answer"))
        )
    found = [x for x in answer.get("statements") or [] if isinstance(x, Mapping)]
    rows: list[list[Inline]] = []
    for statement in found:
        verdict = str(statement.get("verdict"))
        word = Said(w(verdict.replace("_", " ")), _TONE.get(verdict, ""), strong=True)
        rows.append([word, _said(w, statement.get("text", ""))])
    if rows:
        caption = w("What was expected, and whether it shows")
        out.append(Table("statements", caption, [w("verdict"), w("statement")], rows))
    notes = [n for n in answer.get("notes") or [] if isinstance(n, str)]
    return [*out, Card(w("Notes"), [Bullets([_said(w, n) for n in notes])], "warn")] if notes else out


def _answer_table(w: Words, answer: Any) -> Section | None:
    """The parts beside each other, as the suite's question asks for."""
    if not isinstance(answer, Mapping):
        return None
    columns = [c for c in answer.get("columns") or [] if isinstance(c, Mapping)]
    rows = [r for r in answer.get("rows") or [] if isinstance(r, Mapping)]
    if not columns or not rows:
        return None
    numeric = frozenset(i for i, c in enumerate(columns) if c.get("unit") != "text")
    table = Table(
        name="answer",
        caption=str(answer.get("question") or w("Parts")),
        columns=[w(str(c.get("title"))) for c in columns],
        rows=[[_cell(r.get(str(c.get("key"))), str(c.get("unit"))) for c in columns] for r in rows],
        numeric=numeric,
    )
    return Section("answer", w("Parts beside each other"), [table])


def _cell(value: Any, unit: str) -> Inline:
    n = number(value)
    if n is None:
        return str(value) if isinstance(value, str) else "-"
    if unit == "tokens_per_s":
        return Num(f"{figures(n)} tok/s", n)
    form = {"s": seconds, "bytes": size, "ratio": percent, "tokens": whole}.get(unit)
    if form is not None:
        return Num(form(n), n)
    return Num(whole(n) if n == int(n) and unit == "count" else figures(n), n)


def _findings(w: Words, told: Any) -> Section | None:
    """The causes that the runs show, merged."""
    try:
        diagnosis = msgspec.convert(told, Diagnosis)
    except msgspec.ValidationError:
        return None
    cards: list[Block] = []
    for f in diagnosis.findings:
        words_of = w.cause(f.cause)
        label = f"{w(f.role)} · {f.cause} · {w(f.confidence)}"
        tone: Tone = "bad" if f.role == "primary" else "warn"
        cards.append(
            Card(
                words_of[:1].upper() + words_of[1:],
                [Para(_said(w, f.why)), *([Bullets([_said(w, r) for r in f.remedy])] if f.remedy else [])],
                tone,
                label,
            )
        )
    return Section(
        "diagnosis",
        w("What it means"),
        cards or [Para(w("No cause of trouble was found in what was measured."))],
    )


def _origin(w: Words, document: Mapping[str, Any], runs: list[Mapping[str, Any]]) -> Section:
    rows: list[tuple[str, Inline]] = [
        (w("folder"), str(document.get("run_dir") or "?")),
        (w("digest"), str(document.get("workload_hash") or w("not known"))),
    ]
    rows += [(w("run directory"), str(r.get("run_dir"))) for r in runs if r.get("run_dir")]
    return Section("reproduction", w("Reproduction"), [Facts(rows)])
