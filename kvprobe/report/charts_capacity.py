"""Charts of capacity: throughput against waits as load rises, goodput, predicted against measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvprobe.report.charts_time import latency_tick, log_ends
from kvprobe.report.content import Figure, Inline, Num, Said, Series, Table
from kvprobe.report.scales import Scale, nice_top
from kvprobe.report.svg import BOTTOM, RIGHT, TOP, Drawing, left_margin, panel_title, x_axis, y_axis
from kvprobe.report.words import Words
from kvprobe.summary.units import figures, seconds

PERCENTILES = ("p99", "p95", "p50")
MOST = 1e30
"""Sums and products of a few such numbers stay finite."""


@dataclass(frozen=True, slots=True)
class Wait:
    """One percentile of a wait, seconds; null with the reason where n cannot carry it."""

    value: float | None = None
    lo: float | None = None
    hi: float | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SweepStep:
    """One load of a sweep, as its document says; what is not known is null."""

    load: float
    served_per_s: float | None
    tokens_per_s: float | None
    ttft: Mapping[str, Wait]
    verdict: str
    why: str

    @property
    def valid(self) -> bool:
        return self.verdict != "invalid"

    def out(self) -> float | None:
        return self.tokens_per_s if self.tokens_per_s is not None else self.served_per_s


def read_steps(sweep: Mapping[str, Any]) -> list[SweepStep]:
    """The steps of a `sweep` object, by load; what has no load is left out."""
    found = sweep.get("steps")
    steps = [_step(s) for s in found if isinstance(s, Mapping)] if isinstance(found, list) else []
    return sorted((s for s in steps if s is not None), key=lambda s: s.load)


def _step(raw: Mapping[str, Any]) -> SweepStep | None:
    load = number(raw.get("load"))
    if load is None:
        return None
    waits = _mapping(raw.get("ttft_s"))
    return SweepStep(
        load=load,
        served_per_s=number(raw.get("served_per_s")),
        tokens_per_s=number(raw.get("output_tokens_per_s")),
        ttft={name: _wait(_mapping(waits.get(name))) for name in PERCENTILES},
        verdict="invalid" if raw.get("valid") is False else str(raw.get("verdict") or ""),
        why=str(raw.get("why") or raw.get("invalid_because") or ""),
    )


def _wait(raw: Mapping[str, Any]) -> Wait:
    value, lo, hi = (number(raw.get(name)) for name in ("value", "lo", "hi"))
    return Wait(value, lo, hi, str(raw.get("reason") or ""))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def common_percentile(steps: Sequence[SweepStep]) -> str:
    """The highest percentile that every valid step carries: a curve of unlike percentiles would lie."""
    valid = [s for s in steps if s.valid and any(w.value is not None for w in s.ttft.values())]
    return next((p for p in PERCENTILES if all(s.ttft[p].value is not None for s in valid)), "p50")


def number(value: Any) -> float | None:
    """A finite number out of a JSON document; null for anything else, and for what no page can mean."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= MOST else None  # false for NaN


def curve_chart(w: Words, steps: Sequence[SweepStep], knee: tuple[float, float] | None) -> Figure | None:
    """Throughput against the wait for the first token, one mark a load; the knee is ringed. Null where
    no valid step has both."""
    p = common_percentile(steps)
    kept = [s for s in steps if s.valid and s.ttft[p].value is not None and s.out() is not None]
    if not kept:
        return None
    per = w("output tokens/s") if all(s.tokens_per_s is not None for s in kept) else w("requests/s done")
    legend = [Series("s1", w("a load of the sweep (bar: 95 % interval)"), "dot")]
    if any(s.verdict in _BAD for s in kept):
        legend.append(Series("badc", w("too much"), "dot"))
    if knee is not None:
        legend.append(Series("knee", w("the knee"), "dot"))
    notes = []
    if p != "p99":
        notes.append(w("Drawn is {p}, the highest percentile that n carries at every load.", p=p))
    if any(not s.valid for s in steps):
        notes.append(w("Invalid measurements are not drawn."))
    return Figure(
        name="capacity",
        title=w("Throughput against time to first token ({p}), by load", p=p),
        description=_knee_words(w, knee),
        draw=lambda width: _curve(w, kept, p, knee, per, width),
        legend=legend,
        table=steps_table(w, steps),
        note=" ".join(notes),
    )


def _knee_words(w: Words, knee: tuple[float, float] | None) -> str:
    if knee is None:
        return w("No knee in the loads that were tried.")
    return w(
        "Up and to the left is better. The knee lies between {a} and {b}: beyond it more load buys little "
        "throughput and much waiting.",
        a=figures(knee[0]),
        b=figures(knee[1]),
    )


def _curve(
    w: Words,
    steps: Sequence[SweepStep],
    p: str,
    knee: tuple[float, float] | None,
    per: str,
    width: int,
) -> tuple[str, int]:
    d = Drawing()
    bottom = TOP + 230
    waits = [v for s in steps for v in (s.ttft[p].value, s.ttft[p].lo, s.ttft[p].hi) if v]
    lo, hi = log_ends(waits)
    y = Scale(0.0, nice_top(max((s.out() or 0.0 for s in steps), default=1.0) * 1.1), bottom, TOP)
    left = left_margin([f"{v:,g}" for v in y.ticks(5)])
    x = Scale(lo, hi, left, width - RIGHT, log=True)
    panel_title(d, 0, TOP - 12, per)
    y_axis(d, y, left, width - RIGHT, lambda v: f"{v:,g}", 5)
    places = [(x(s.ttft[p].value or lo), y(s.out() or 0.0), s) for s in steps]
    d.path([(a, b) for a, b, _ in places], "s1 d3")
    taken: list[tuple[float, float]] = [(a, b) for a, b, _ in places]
    for a, b, s in places:
        wait = s.ttft[p]
        if wait.hi is not None:
            d.line(x(wait.lo) if wait.lo is not None else a, b, x(wait.hi), b, "w1")
        tip = f"{figures(s.load)}: {seconds(wait.value or 0)}"
        d.dot(a, b, "badc" if s.verdict in _BAD else "s1", 4.5, tip)
        if knee is not None and s.load in knee:
            d.dot(a, b, "knee", 9)
        spot = (min(max(a, left + 16), width - 30.0), b - 14)
        if all(abs(spot[0] - q) > 34 or abs(spot[1] - r) > 13 for q, r in taken if (q, r) != (a, b)):
            d.text(*spot, figures(s.load), "note", "middle")
            taken.append(spot)
    x_axis(d, x, bottom, latency_tick)
    middle = (left + width - RIGHT) / 2
    d.text(middle, bottom + BOTTOM + 6, w("time to first token, {p}", p=p), "note", "middle")
    return d.out(), int(bottom + BOTTOM + 12)


_BAD = ("overloaded", "slo_missed", "failed")


def steps_table(w: Words, steps: Sequence[SweepStep]) -> Table:
    """Every load with what came of it."""
    rows: list[list[Inline]] = []
    for s in steps:
        rows.append(
            [
                Num(figures(s.load), s.load),
                Num(figures(s.served_per_s), s.served_per_s) if s.served_per_s is not None else "-",
                Num(figures(s.tokens_per_s), s.tokens_per_s) if s.tokens_per_s is not None else "-",
                *(_wait_cell(w, s.ttft[p]) for p in ("p50", "p95", "p99")),
                w(s.verdict) if s.verdict else "-",
                Said(told) if (told := w.known(s.why)) is not None else Said(s.why, foreign=True),
            ]
        )
    return Table(
        name="sweep",
        caption=w("Loads of the sweep"),
        columns=[w("load"), w("served/s"), w("tokens/s"), "TTFT p50", "p95", "p99", w("verdict"), w("why")],
        rows=rows,
        numeric=frozenset(range(6)),
    )


def _wait_cell(w: Words, wait: Wait) -> Inline:
    if wait.value is None:
        small = wait.reason.startswith("n too small")
        return Num(w("n too small") if small else "-", tone="dim")
    if wait.hi is None:
        return Num(seconds(wait.value), wait.value)
    told = f"[{seconds(wait.lo)} - {seconds(wait.hi)}]" if wait.lo is not None else f"[<= {seconds(wait.hi)}]"
    return Num(seconds(wait.value), wait.value, note=told)


def goodput_chart(w: Words, steps: Sequence[SweepStep]) -> Figure | None:
    """Served against offered requests, beside the line on which all are served; rates only."""
    kept = [s for s in steps if s.valid and s.served_per_s is not None]
    if len(kept) < 2:
        return None
    return Figure(
        name="goodput",
        title=w("Served against offered"),
        description=w(
            "On the dashed line every request is served as fast as it comes; below it a backlog grows."
        ),
        draw=lambda width: _goodput(w, kept, width),
        legend=[Series("s1", w("served"), "dot"), Series("ident", w("served = offered"), "dash")],
        table=steps_table(w, steps),
    )


def _goodput(w: Words, steps: Sequence[SweepStep], width: int) -> tuple[str, int]:
    d = Drawing()
    bottom = TOP + 190
    top = nice_top(max(s.load for s in steps) * 1.05)
    y = Scale(0.0, top, bottom, TOP)
    left = left_margin([f"{v:g}" for v in y.ticks(5)])
    x = Scale(0.0, top, left, width - RIGHT)
    panel_title(d, 0, TOP - 12, w("served, requests/s"))
    y_axis(d, y, left, width - RIGHT, lambda v: f"{v:g}", 5)
    d.line(x(0), y(0), x(top), y(top), "ident")
    d.path([(x(s.load), y(s.served_per_s or 0)) for s in steps], "s1")
    for s in steps:
        d.dot(
            x(s.load), y(s.served_per_s or 0), "s1", 4, f"{figures(s.load)}: {figures(s.served_per_s or 0)}"
        )
    x_axis(d, x, bottom, lambda v: f"{v:g}")
    d.text((left + width - RIGHT) / 2, bottom + BOTTOM + 6, w("offered, requests/s"), "note", "middle")
    return d.out(), int(bottom + BOTTOM + 12)
