"""What a pre-launch report knows: a plan, a run where there is one, what is demanded.

Numbers of the plan come out of its JSON (`kvprobe.plan/1`), so that a plan of last month can be read. A run
that measured something else than the plan is about is shown apart and never used for the verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvprobe.report.charts_capacity import number
from kvprobe.report.run_view import RunView
from kvprobe.report.words import Words
from kvprobe.summary.units import figures, size, whole

MIN_LOAD_S = 600.0
"""MLPerf's shortest run (loadgen/mlperf.conf): below it nothing is said about hours."""
TOKEN_COST_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class Measure:
    """A capacity or a demand: how much, of what, and where it comes from."""

    value: float
    unit: str
    """`requests/s` or `requests at once`."""
    source: str
    exact: bool = True
    """False for "at least so much": more was not tried."""


@dataclass(slots=True)
class Prelaunch:
    """`demand_per_s` and `growth` (a month, 0.1 is 10 %) are what the reader stated; null when not."""

    w: Words
    plan: Mapping[str, Any] | None
    run: RunView | None = None
    demand_per_s: float | None = None
    demand_at_once: float | None = None
    growth: float | None = None
    unlike: list[str] = field(default_factory=list)
    """Why the run says nothing about the plan."""

    def __post_init__(self) -> None:
        self.unlike = unlike(self)

    def get(self, path: str) -> Any:
        """A value of the plan by its dotted path; null where there is none."""
        found: Any = self.plan
        for name in path.split("."):
            if not isinstance(found, Mapping):
                return None
            found = found.get(name)
        return found

    def number(self, path: str) -> float | None:
        return number(self.get(path))

    def items(self, path: str) -> list[Mapping[str, Any]]:
        """The objects of a list of the plan; empty for whatever is no list."""
        found = self.get(path)
        return [x for x in found if isinstance(x, Mapping)] if isinstance(found, list) else []

    @property
    def measured(self) -> RunView | None:
        """The run, where it is one of the planned thing and valid."""
        return self.run if self.run is not None and not self.unlike and self.run.valid else None

    def sweep(self) -> Mapping[str, Any]:
        found = self.run.document.get("sweep") if self.run is not None and not self.unlike else None
        return found if isinstance(found, Mapping) else {}

    def tested_s(self) -> float:
        return (self.measured.summary.window.seconds or 0.0) if self.measured is not None else 0.0


def unlike(view: Prelaunch) -> list[str]:
    """What differs between the plan and the run, where both say it."""
    if view.plan is None or view.run is None:
        return []
    w, found = view.w, []
    planned, ran = view.get("engine"), view.run.summary.engine
    if planned and ran and planned != ran:
        found.append(w("the plan is for {a}, the run was on {b}", a=planned, b=ran))
    cost, told = view.number("kv.bytes_per_token_per_gpu"), _reported_cost(view.run)
    if cost and told and abs(told / cost - 1) > TOKEN_COST_TOLERANCE:
        found.append(
            w(
                "a token costs {a} by the plan, {b} in the run's engine: another model or cache format",
                a=size(cost),
                b=size(told),
            )
        )
    return found


def _reported_cost(run: RunView) -> float | None:
    if run.data is None:
        return None
    for fact in run.data.facts:
        if fact.name == "cache_config" and isinstance(fact.value, dict):
            try:
                return float(str(fact.value.get("kv_bytes_per_token")))
            except ValueError:
                return None
    return None


def capacity(view: Prelaunch) -> Measure | None:
    """What one replica carries: a sweep's limit, a run's rate (at least), or the plan's count."""
    w = view.w
    limit = view.sweep().get("interval")
    lo = number(limit.get("lo")) if isinstance(limit, Mapping) else None
    if lo is not None and view.sweep().get("axis") != "users":
        return Measure(lo, "requests/s", w("measured: the highest rate that the sweep sustained"))
    run = view.measured
    done = run.summary.metrics.rates.completed_per_s if run is not None else None
    if done is not None:
        return Measure(
            done, "requests/s", w("measured: this run carried it; more was not tried"), exact=False
        )
    if view.run is not None and not view.run.valid and not view.unlike:
        return None
    return planned_at_once(view)


def planned_at_once(view: Prelaunch) -> Measure | None:
    """Requests at once by the plan: by the length distribution, else at p95, else at the context limit."""
    w = view.w
    for path, text in (
        (
            "concurrency.distribution.max_num_seqs",
            w("calculated: so many fit with a chance of preemption of at most {p}", p=_chance(view)),
        ),
        (
            "concurrency.distribution.max_num_seqs_range",
            w("calculated: the lower end of what fits by the length distribution"),
        ),
        ("concurrency.p95", w("calculated: requests of the p95 length")),
        ("concurrency.p95_range", w("calculated: the lower end, requests of the p95 length")),
        ("concurrency.max", w("calculated: requests of the longest length")),
        ("concurrency.max_range", w("calculated: the lower end, requests of the longest length")),
    ):
        raw = view.get(path)
        value = number(raw[0]) if isinstance(raw, list | tuple) and raw else number(raw)
        if value is not None:
            return Measure(value, "requests at once", text)
    return None


def _chance(view: Prelaunch) -> str:
    p = view.number("concurrency.distribution.preemption_probability")
    return f"{100 * p:g} %" if p is not None else "?"


def demand(view: Prelaunch, unit: str) -> Measure | None:
    """What is asked for, in the unit of the capacity; only what somebody stated."""
    w = view.w
    if unit == "requests/s" and view.demand_per_s is not None:
        return Measure(view.demand_per_s, unit, w("stated with --demand"))
    if unit == "requests at once" and view.demand_at_once is not None:
        return Measure(view.demand_at_once, unit, w("stated with --demand-at-once"))
    return None


def headroom(have: Measure, need: Measure) -> float:
    """Capacity over demand, less one: 0.2 is 20 % of room, below 0 there is too little."""
    return have.value / need.value - 1.0


def growth_months(room: float, growth: float) -> float | None:
    """Months until demand that grows by `growth` a month has filled the room; null when it never does."""
    if growth <= 0:
        return None
    return max(0.0, math.log(1.0 + room) / math.log(1.0 + growth)) if room > -1 else 0.0


def amount(view: Prelaunch, measure: Measure) -> str:
    """`at least 1.10 requests/s`"""
    value = whole(measure.value) if measure.unit == "requests at once" else figures(measure.value)
    text = f"{value} {view.w(measure.unit)}"
    return text if measure.exact else view.w("at least {amount}", amount=text)


def tokens_per_request(view: Prelaunch) -> float | None:
    """Mean output tokens of the measured requests that ended well."""
    run = view.measured
    if run is None or run.data is None:
        return None
    found = [
        r.completion_tokens
        for r in run.data.records
        if not r.warmup and r.failure is None and r.completion_tokens
    ]
    return sum(found) / len(found) if found else None


@dataclass(frozen=True, slots=True)
class Costs:
    """In the currency of the price that was given. Null where an input is missing."""

    per_hour: float
    per_month: float
    million_full: float | None
    million_expected: float | None
    source_full: str


HOURS_PER_MONTH = 730.0
"""8,760 hours of a year over twelve."""


def costs(view: Prelaunch) -> Costs | None:
    """Null without a price. One replica; a reservation costs the same when it idles."""
    per_hour = view.number("cost.per_hour")
    if per_hour is None:
        return None
    w, run = view.w, view.measured
    speed = run.summary.metrics.output_tokens_per_s if run is not None else None
    full = per_hour / (speed * 3_600) * 1e6 if speed else view.number("cost.per_million_output_tokens")
    source = (
        w(
            "price of an hour over the output tokens of an hour, at the measured {n} tokens/s",
            n=figures(speed),
        )
        if speed
        else w("from the plan, at the speed given with --output-tokens-per-s")
    )
    tokens = tokens_per_request(view)
    expected = None
    if view.demand_per_s and tokens:
        expected = per_hour / (view.demand_per_s * tokens * 3_600) * 1e6
    return Costs(per_hour, per_hour * HOURS_PER_MONTH, full, expected, source)
