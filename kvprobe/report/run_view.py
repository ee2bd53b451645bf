"""What the sections of a run report are made from, and the small words that they share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvprobe.diagnose.model import Diagnosis
from kvprobe.evidence.rundata import RunData
from kvprobe.report.content import Inline, Num, Said
from kvprobe.report.run_series import Span, span_of
from kvprobe.report.words import Words
from kvprobe.summary.build import Summary
from kvprobe.summary.latency import Distribution
from kvprobe.summary.units import figures, seconds


@dataclass(slots=True)
class RunView:
    """One run to be told: its numbers, its meaning, and (where it is at hand) all that it left.

    `document` is its `kvprobe.run/1`; what a section needs and it lacks is told as not there.
    """

    w: Words
    summary: Summary
    diagnosis: Diagnosis
    data: RunData | None = None
    document: dict[str, Any] = field(default_factory=dict)
    banner: str | None = None
    span: Span | None = None

    def __post_init__(self) -> None:
        if self.data is not None and self.span is None:
            self.span = span_of(self.data)

    @property
    def valid(self) -> bool:
        return self.diagnosis.validity is None or self.diagnosis.validity.valid

    def say(self, sentence: str) -> Said:
        """A sentence that a rule made: in the page's language where its form is known, else as it is."""
        told = self.w.known(sentence)
        return Said(told) if told is not None else Said(sentence, foreign=True)

    def reason(self, why: str | None) -> str:
        """Why a number is missing."""
        if not why:
            return self.w("not known")
        return self.w.known(why) or why


def percentile(view: RunView, found: Distribution, name: str) -> Num:
    """A percentile with its interval, or why there is none."""
    value: float | None = getattr(found, name)
    if value is None:
        reason = found.reasons.get(name)
        short = view.w("n too small") if reason and reason.startswith("n too small") else view.reason(reason)
        return Num(short, tone="dim")
    return Num(seconds(value), value, note=interval(value, found.ci.get(name)))


def interval(value: float, ci: dict[str, float | None] | None) -> str:
    """`[1.02 - 1.24 s]` in the unit of the value; a one-sided bound as `[<= 1.24 s]`."""
    if not ci or (hi := ci.get("hi")) is None:
        return ""
    lo = ci.get("lo")
    factor, unit = (1.0, "s") if value >= 1 else (1e3, "ms") if value >= 1e-3 else (1e6, "us")
    high = f"{figures(hi * factor)} {unit}"
    return f"[<= {high}]" if lo is None else f"[{figures(lo * factor)} - {high}]"


def plain(item: Inline) -> str:
    """The words alone."""
    return item if isinstance(item, str) else item.text
