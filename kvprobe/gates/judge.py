"""Did the run keep its thresholds? Whatever cannot be known counts as not kept, and says why."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from kvprobe.errors import UsageError
from kvprobe.evidence.rundata import RunData
from kvprobe.gates.expressions import Gate, parse
from kvprobe.gates.measure import Measured, measure
from kvprobe.gates.metrics import NEEDS_SLO
from kvprobe.summary.build import Summary

Verdict = Literal["pass", "fail", "n_too_small", "not_measured"]


class Interval(msgspec.Struct, kw_only=True):
    """95 %; null on a side that is not bounded."""

    lo: float | None
    hi: float | None


class GateResult(msgspec.Struct, kw_only=True):
    """One threshold of a run, judged. Values in `unit`: s, ratio, count, requests/s, tokens/s."""

    threshold: str
    """As it was written."""
    metric: str
    """`ttft.p95`"""
    op: str | None
    limit: float | None
    """Null, as `op`, where the text is no threshold that this version can read."""
    unit: str | None
    value: float | None
    ci: Interval | None
    n: int
    verdict: Verdict
    why: str | None
    """What a reader must know beside the number; the reason where there is none."""

    @property
    def passed(self) -> bool:
        """Only `pass` passes."""
        return self.verdict == "pass"


def judged(run: RunData, summary: Summary) -> list[GateResult]:
    """The thresholds of the run's resolved workload, in order. One that cannot be read (an older version,
    an edited file) is not kept: what was demanded must not vanish."""
    stated = run.workload.get("thresholds")
    found = []
    for text in map(str, stated) if isinstance(stated, list | tuple) else ():
        try:
            found += judge([parse(text)], summary, run)
        except UsageError as error:
            found.append(_unreadable(text[:200], error.problems[0].message))
    return found


def _unreadable(text: str, why: str) -> GateResult:
    return GateResult(
        threshold=text,
        metric=text,
        op=None,
        limit=None,
        unit=None,
        value=None,
        ci=None,
        n=0,
        verdict="not_measured",
        why=f"no threshold that can be read: {why}",
    )


def judge(gates: Iterable[Gate], summary: Summary, run: RunData) -> list[GateResult]:
    """Each gate against the evidence of the run."""
    return [_judge(gate, measure(gate, summary, run)) for gate in gates]


def _judge(gate: Gate, found: Measured) -> GateResult:
    verdict, why = _verdict(gate, found)
    bounded = found.lo is not None or found.hi is not None
    return GateResult(
        threshold=gate.text,
        metric=gate.name,
        op=gate.op,
        limit=gate.limit,
        unit=gate.unit,
        value=found.value,
        ci=Interval(lo=found.lo, hi=found.hi) if bounded else None,
        n=found.n,
        verdict=verdict,
        why=why,
    )


def _verdict(gate: Gate, found: Measured) -> tuple[Verdict, str | None]:
    if found.value is None:
        return found.lack or "not_measured", found.why
    holds = gate.holds(found.value)
    if found.at_least and gate.op[0] == "<" and holds:
        # The true value is at least this, and how much more nobody saw.
        return "not_measured", found.why
    if found.at_least and gate.op[0] == ">" and not holds:
        return "not_measured", found.why
    if holds and _reaches_past(gate, found):
        note = "the 95 % interval reaches past the limit"
        return "pass", f"{found.why}; {note}" if found.why else note
    return ("pass" if holds else "fail"), found.why


def _reaches_past(gate: Gate, found: Measured) -> bool:
    """Whether the limit lies within the interval, on the far side of the value."""
    edge = found.hi if gate.op[0] == "<" else found.lo
    return edge is not None and gate.op != "==" and not gate.holds(edge)


def merged(of_file: Iterable[str], of_options: Iterable[str]) -> list[str]:
    """Thresholds of the file and of the command line: an option that bounds the same value from the same
    side replaces that of the file, all others stand beside it. Raises `UsageError`."""
    options = [parse(text, "--threshold") for text in of_options]
    kept = [g for g in map(parse, of_file) if not any(o.same_question(g) for o in options)]
    return [g.text for g in (*kept, *options)]


def needs_slo(texts: Iterable[str]) -> str | None:
    """The first metric that asks for `slo`, null when none does."""
    return next((g.metric for g in map(parse, texts) if g.metric in NEEDS_SLO), None)
