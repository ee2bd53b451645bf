"""Did the run keep its thresholds? Whatever cannot be known counts as not kept, and says why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

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
    op: str
    limit: float
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


def gates_of(workload: Mapping[str, Any]) -> list[Gate]:
    """The thresholds of a run's resolved workload; what is no threshold any more is left out."""
    stated = workload.get("thresholds")
    found = []
    for text in stated if isinstance(stated, list) else []:
        try:
            found.append(parse(str(text)))
        except UsageError:
            continue
    return found


def judged(run: RunData, summary: Summary) -> list[GateResult]:
    """The run's own thresholds, in order."""
    return judge(gates_of(run.workload), summary, run)


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
