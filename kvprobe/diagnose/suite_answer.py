"""The answer that the parts of a suite give together: a table, statements with intervals, one recommendation.

A statement says what was expected, whether it shows, and with what numbers; what does not show is told
as plainly as what does. Everything is worked out from run directories, live or read back later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from kvprobe.diagnose.model import Quantity
from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.rundata import RunData
from kvprobe.summary import activity
from kvprobe.summary.build import Summary, measured_rows

Verdict = Literal["shown", "not_shown", "opposite", "cannot_tell"]
Unit = Literal["text", "count", "s", "bytes", "ratio", "tokens_per_s", "tokens"]


class Statement(msgspec.Struct, kw_only=True):
    """One thing that the parts show, or do not."""

    id: str
    verdict: Verdict
    text: str
    facts: dict[str, Quantity] = msgspec.field(default_factory=dict)


class Column(msgspec.Struct, frozen=True):
    """A column of the table; `key` names its values in `rows`."""

    key: str
    title: str
    unit: Unit


class Answer(msgspec.Struct, kw_only=True):
    """`answer` of a suite's document."""

    question: str
    statements: list[Statement]
    columns: list[Column]
    rows: list[dict[str, Any]]
    """A row a part; null where a value is not known."""
    recommendation: Statement | None = None
    notes: list[str] = msgspec.field(default_factory=list)


@dataclass(slots=True)
class RunView:
    """One run of a part."""

    round: int
    data: RunData
    summary: Summary
    valid: bool
    ok: list[RequestRecord] = field(init=False)
    """Measured, sent and ended well."""

    def __post_init__(self) -> None:
        self.ok = [r for r in measured_rows(self.data) if r.failure is None and r.sent_ns is not None]

    def gauge(self, metric: str, *, with_warmup: bool = False) -> dict[int, float]:
        """Readings of a gauge while measured requests alone were served, by instant; `with_warmup` also
        while the last warm-up ones ran beside measured ones: under a queue they take most of the run."""
        rows = () if with_warmup else self.data.records
        warm = [e for r in rows if r.warmup and (e := r.end_ns or r.last_token_ns) is not None]
        start, end = self.summary.window.start_ns, self.summary.window.end_ns
        if start is None:
            return {}
        return dict(activity.series(self.data.samples, metric, max([start, *warm]), end))

    def mean_of(self, histogram: str) -> float | None:
        """Mean of a histogram's observations over the load; null where it is not exported."""
        total = activity.increase(self.data.samples, f"{histogram}_sum")
        count = activity.increase(self.data.samples, f"{histogram}_count")
        return (
            total.value / count.value if total is not None and count is not None and count.value > 0 else None
        )


@dataclass(slots=True)
class PartView:
    """All runs of one part."""

    name: str
    role: str | None
    runs: list[RunView] = field(default_factory=list)

    @property
    def ok(self) -> list[RequestRecord]:
        return [r for run in self.runs for r in run.ok]

    @property
    def valid(self) -> bool:
        return all(run.valid for run in self.runs)

    def readings(self, metric: str) -> list[float]:
        return [v for run in self.runs for v in run.gauge(metric).values()]

    def largest(self, metric: str) -> float | None:
        return max(self.readings(metric), default=None)


def part_views(runs: Sequence[tuple[str, str | None, RunView]]) -> list[PartView]:
    """Runs by part, the parts in the order in which they first ran."""
    found: dict[str, PartView] = {}
    for name, role, run in runs:
        found.setdefault(name, PartView(name, role)).runs.append(run)
    return list(found.values())


def order_note(runs: Sequence[tuple[str, str | None, RunView]], parts: Sequence[PartView]) -> str | None:
    """What the order of the runs does to the comparison."""
    names = [name for name, _, _ in runs]
    if len(names) < 2 or len(parts) < 2:
        return None
    order = ", ".join(names)
    if len(names) == len(parts):
        return (
            f"Order: {order}, each once: what drifts with time (the machine, other load) is in the "
            "differences. `--set rounds=2` runs them forwards and backwards."
        )
    return f"Order: {order}: forwards and backwards, so that a steady drift meets each part alike; no other."


def invalid_note(parts: Sequence[PartView]) -> str | None:
    bad = [part.name for part in parts if not part.valid]
    if not bad:
        return None
    return (
        f"INVALID measurement in {', '.join(bad)}: do not quote what is said of it; its own report says why."
    )


def _hold_back(found: Answer, parts: Sequence[PartView]) -> None:
    """Validity outranks every conclusion: with an invalid part nothing is shown, whatever the numbers."""
    bad = [part.name for part in parts if not part.valid]
    if not bad:
        return
    concluding = [s for s in found.statements if s.id == "meaning"]
    concluding += [found.recommendation] if found.recommendation is not None else []
    for statement in concluding:
        statement.text = (
            f"Nothing is concluded: the measurement is INVALID in {', '.join(bad)}. By its numbers it would "
            f"be: {statement.text}"
        )
    for statement in [*found.statements, *concluding]:
        statement.verdict = "cannot_tell"


def answer(kind: str | None, runs: Sequence[tuple[str, str | None, RunView]]) -> Answer | None:
    """The answer to the suite's question; null for a suite that asks none or a question that is not known."""
    from kvprobe.diagnose import allocators, controls, sizing

    parts = part_views(runs)
    answered = {
        "three_controls": controls.controls,
        "block_size": sizing.block_sizes,
        "allocator": allocators.allocators,
    }.get(kind or "")
    if answered is None or not parts:
        return None
    found = answered(parts)
    _hold_back(found, parts)
    found.notes = [n for n in (invalid_note(parts), order_note(runs, parts)) if n] + found.notes
    return found
