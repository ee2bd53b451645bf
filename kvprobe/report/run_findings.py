"""Failures, validity, causes and thresholds of a run, as sections."""

from __future__ import annotations

from typing import Any

from kvprobe.diagnose.model import Evidence, Finding
from kvprobe.report.cause_words import facts_line, place
from kvprobe.report.charts_capacity import number
from kvprobe.report.content import Block, Bullets, Card, Inline, Num, Para, Said, Section, Table, Tone
from kvprobe.report.run_view import RunView
from kvprobe.summary.rates import CUT
from kvprobe.summary.units import figures, percent, seconds, whole


def failures(view: RunView) -> Section | None:
    """What failed, by kind; before every latency."""
    w, cut = view.w, view.summary.requests.cut_at_end
    found = [group for group in view.summary.failures if group.kind != CUT]
    left = w(
        "{n} of {all} requests were still in flight when the load was over, and were cut off by the client: "
        "load that was left, and no failures of the server's.",
        n=whole(cut),
        all=whole(view.summary.requests.sent),
    )
    told: list[Block] = [Para(left)] if cut else []
    if not found:
        return Section("failures", w("Cut off at the end"), told) if told else None
    rows: list[list[Inline]] = []
    for group in found:
        codes = ", ".join(f"{code} x {n}" for code, n in group.statuses.items())
        rows.append(
            [
                group.kind,
                Num(whole(group.count), group.count),
                Num(percent(group.share), group.share),
                codes or "-",
                Num(whole(group.with_tokens), group.with_tokens),
                Said(" | ".join(group.details) or "-", foreign=True),
            ]
        )
    table = Table(
        name="failures",
        caption=w("Failures by kind; the first three distinct details of each"),
        columns=[w("kind"), w("requests"), w("of those sent"), "HTTP", w("after some text"), w("details")],
        rows=rows,
        numeric=frozenset((1, 2, 4)),
    )
    note = w(
        "Failed requests are in no percentile of the tables below, unless a row says so: a wait that a "
        "timeout cut short counts as longer than it was seen."
    )
    return Section("failures", w("Failures"), [table, Para(Said(note, "dim")), *told])


def validity(view: RunView) -> Section:
    """May the numbers be quoted, and why not."""
    w, found = view.w, view.diagnosis.validity
    blocks: list[Block] = []
    if found is None:
        blocks.append(Para(w("The validity of this measurement was not judged.")))
        return Section("validity", w("Is the measurement valid?"), blocks)
    if found.valid:
        text = w(
            "Valid: the client was on time, nothing warm from an earlier run was measured, and no record "
            "is missing."
        )
        blocks.append(Para(Said(text, "good")))
    else:
        blocks.append(
            Para(
                Said(
                    w(
                        "INVALID. The numbers of this report say more about the measurement than about the "
                        "server:"
                    ),
                    "bad",
                )
            )
        )
        blocks.append(Bullets([view.say(reason) for reason in found.reasons]))
    if found.warnings:
        blocks.append(Para(Said(w("Warnings"), "warn", strong=True)))
        blocks.append(Bullets([view.say(warning) for warning in found.warnings]))
    return Section("validity", w("Is the measurement valid?"), blocks)


_ROLE_TONE: dict[str, Tone] = {"primary": "bad", "secondary": "warn", "ruled_out": ""}


def diagnosis(view: RunView) -> Section:
    """Every cause with its evidence, and what would refute it; then what is no fault."""
    w = view.w
    blocks: list[Block] = [_finding(view, finding) for finding in view.diagnosis.findings]
    if not blocks:
        blocks.append(Para(w("No cause of trouble was found in what was measured.")))
    for seen in view.diagnosis.observations:
        facts = facts_line(seen.facts)
        inner: list[Block] = [Para(view.say(seen.text))]
        if facts:
            inner.append(Para(Said(facts, "dim", foreign=True)))
        blocks.append(Card(w("Expected, and no fault: {id}", id=seen.id), inner, "good"))
    return Section("diagnosis", w("What it means"), blocks)


def _finding(view: RunView, finding: Finding) -> Card:
    w = view.w
    blocks: list[Block] = [Para(view.say(finding.why))]
    if (advice := w.advice(finding.cause)) is not None:
        blocks.append(Para(Said(w("What usually mends it: {advice}", advice=advice))))
    if finding.evidence:
        blocks.append(_evidence(view, finding.cause, finding.evidence))
    for title, steps in (
        (w("Look first"), finding.check_first),
        (w("Remedy"), finding.remedy),
        (w("What would refute it"), finding.would_change_my_mind),
    ):
        if steps:
            blocks += [Para(Said(title, strong=True)), Bullets([view.say(step) for step in steps])]
    words = w.cause(finding.cause)
    label = f"{w(finding.role)} · {finding.cause} · {w(finding.confidence)}"
    return Card(words[:1].upper() + words[1:], blocks, _ROLE_TONE[finding.role], label)


def _evidence(view: RunView, cause: str, evidence: list[Evidence]) -> Table:
    w = view.w
    rows: list[list[Inline]] = [
        [view.say(e.text), Said(facts_line(e.facts), "dim", foreign=True), Said(place(e), foreign=True)]
        for e in evidence
    ]
    return Table(
        name=f"evidence-{cause}",
        caption=w("Evidence"),
        columns=[w("what was seen"), w("numbers"), w("where")],
        rows=rows,
    )


_VERDICT_TONE: dict[str, Tone] = {
    "pass": "good",
    "fail": "bad",
    "n_too_small": "warn",
    "not_measured": "warn",
}


def thresholds(view: RunView) -> Section | None:
    """What was demanded, and whether it was kept; n too small is not kept."""
    found = [g for g in view.document.get("thresholds") or [] if isinstance(g, dict)]
    if not found:
        return None
    w = view.w
    table = Table(
        name="thresholds",
        caption=w("Thresholds of this run"),
        columns=[w("threshold"), w("measured"), w("95 % interval"), "n", w("verdict"), w("why")],
        rows=[_gate(view, g) for g in found],
        numeric=frozenset((1, 2, 3)),
    )
    note = w("Only what was shown passes: where n is too small for the percentile, a threshold is not kept.")
    return Section("thresholds", w("Thresholds"), [table, Para(Said(note, "dim"))])


def _gate(view: RunView, gate: dict[str, Any]) -> list[Inline]:
    w, unit = view.w, gate.get("unit")
    value, n = number(gate.get("value")), number(gate.get("n"))
    ci = gate.get("ci") if isinstance(gate.get("ci"), dict) else {}
    lo, hi = number((ci or {}).get("lo")), number((ci or {}).get("hi"))
    verdict = str(gate.get("verdict") or "")
    return [
        str(gate.get("threshold") or gate.get("metric") or ""),
        Num(in_unit(value, unit), value) if value is not None else "-",
        f"{in_unit(lo, unit) if lo is not None else ''} - {in_unit(hi, unit) if hi is not None else ''}"
        if ci
        else "-",
        Num(whole(n), n) if n is not None else "-",
        Said(w(verdict), _VERDICT_TONE.get(verdict, "")),
        Said(str(gate["why"]), foreign=True) if gate.get("why") else "",
    ]


def in_unit(value: float, unit: object) -> str:
    if unit == "s":
        return seconds(value)
    if unit == "ratio":
        return percent(value)
    return f"{figures(value)} {unit}" if isinstance(unit, str) and unit != "count" else figures(value)
