"""Charts of capacity: throughput against waits as load rises, goodput, predicted against measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvprobe.report.charts_time import latency_tick, log_ends
from kvprobe.report.content import Figure, Num, Series, Table
from kvprobe.report.scales import Scale, nice_top
from kvprobe.report.svg import BOTTOM, RIGHT, TOP, Drawing, left_margin, panel_title, x_axis, y_axis
from kvprobe.report.words import Words
from kvprobe.summary.units import figures, percent, seconds


@dataclass(frozen=True, slots=True)
class SweepStep:
    """One load of a sweep, as its document says; what is not known is null."""

    load: float
    served_per_s: float | None
    tokens_per_s: float | None
    percentile: str
    """Of `ttft`: the highest that n can carry."""
    ttft: float | None
    lo: float | None
    hi: float | None
    reason: str
    verdict: str
    why: str


def read_steps(sweep: Mapping[str, Any]) -> list[SweepStep]:
    """The steps of a `sweep` object, by load; what has no load is left out."""
    found = sweep.get("steps")
    steps = [_step(s) for s in found if isinstance(s, Mapping)] if isinstance(found, list) else []
    return sorted((s for s in steps if s is not None), key=lambda s: s.load)


def _step(raw: Mapping[str, Any]) -> SweepStep | None:
    load = number(raw.get("load"))
    if load is None:
        return None
    waits = raw.get("ttft_s")
    bounds = waits if isinstance(waits, Mapping) else {}
    name, bound = "p99", _bound(bounds.get("p99"))
    reason = str(bound.get("reason") or "")
    for other in ("p95", "p50"):
        if number(bound.get("value")) is None:
            name, bound = other, _bound(bounds.get(other))
    return SweepStep(
        load=load,
        served_per_s=number(raw.get("served_per_s")),
        tokens_per_s=number(raw.get("output_tokens_per_s")),
        percentile=name,
        ttft=number(bound.get("value")),
        lo=number(bound.get("lo")),
        hi=number(bound.get("hi")),
        reason=reason,
        verdict=str(raw.get("verdict") or ""),
        why=str(raw.get("why") or raw.get("invalid_because") or ""),
    )


def _bound(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def number(value: Any) -> float | None:
    """A finite number out of a JSON document; null for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value == value and abs(value) != float("inf") else None


def curve_chart(w: Words, steps: Sequence[SweepStep], knee: tuple[float, float] | None) -> Figure:
    """Throughput against the wait for the first token, one mark a load; the knee is ringed."""
    kept = [s for s in steps if s.ttft is not None and _out(s) is not None]
    per = w("output tokens/s") if all(s.tokens_per_s is not None for s in kept) else w("requests/s done")
    lower = {s.percentile for s in kept} - {"p99"}
    note = (
        w("Where n is too small for p99, the mark is a lower percentile; the table says which.")
        if lower
        else ""
    )
    return Figure(
        name="capacity",
        title=w("Throughput against time to first token, by load"),
        description=_knee_words(w, knee),
        draw=lambda width: _curve(w, kept, knee, per, width),
        legend=[
            Series("s1", w("a load of the sweep (bar: 95 % interval)"), "dot"),
            Series("knee", w("the knee"), "dot"),
        ],
        table=steps_table(w, steps),
        note=note,
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


def _out(step: SweepStep) -> float | None:
    return step.tokens_per_s if step.tokens_per_s is not None else step.served_per_s


def _curve(
    w: Words, steps: Sequence[SweepStep], knee: tuple[float, float] | None, per: str, width: int
) -> tuple[str, int]:
    d = Drawing()
    bottom = TOP + 230
    waits = [v for s in steps for v in (s.ttft, s.lo, s.hi) if v]
    lo, hi = log_ends(waits) if waits else (0.001, 1.0)
    y = Scale(0.0, nice_top(max((_out(s) or 0.0 for s in steps), default=1.0) * 1.1), bottom, TOP)
    left = left_margin([f"{v:,g}" for v in y.ticks(5)])
    x = Scale(lo, hi, left, width - RIGHT, log=True)
    panel_title(d, 0, TOP - 12, per)
    y_axis(d, y, left, width - RIGHT, lambda v: f"{v:,g}", 5)
    places = [(x(s.ttft or lo), y(_out(s) or 0.0), s) for s in steps]
    d.path([(a, b) for a, b, _ in places], "s1 d3")
    taken: list[tuple[float, float]] = []
    for a, b, s in places:
        if s.hi is not None:
            d.line(x(s.lo) if s.lo is not None else a, b, x(s.hi), b, "w1")
        d.dot(a, b, "badc" if s.verdict in _BAD else "s1", 4.5, f"{figures(s.load)}: {seconds(s.ttft or 0)}")
        if knee is not None and s.load in knee:
            d.dot(a, b, "knee", 9)
        words = figures(s.load)
        spot = (min(a, width - 30.0), b - 10)
        if all(abs(spot[0] - p) > 44 or abs(spot[1] - q) > 15 for p, q in taken):
            d.text(*spot, words, "note", "middle")
            taken.append(spot)
    x_axis(d, x, bottom, latency_tick)
    d.text(
        (left + width - RIGHT) / 2,
        bottom + BOTTOM + 6,
        w("time to first token (p99 where n allows)"),
        "note",
        "middle",
    )
    return d.out(), int(bottom + BOTTOM + 12)


_BAD = ("overloaded", "slo_missed", "failed")


def steps_table(w: Words, steps: Sequence[SweepStep]) -> Table:
    """Every load with what came of it."""
    rows = []
    for s in steps:
        wait = Num(seconds(s.ttft), s.ttft, note=_between(s)) if s.ttft is not None else Num(s.reason or "-")
        rows.append(
            [
                Num(figures(s.load), s.load),
                Num(figures(s.served_per_s), s.served_per_s) if s.served_per_s is not None else "-",
                Num(figures(s.tokens_per_s), s.tokens_per_s) if s.tokens_per_s is not None else "-",
                wait,
                s.percentile if s.ttft is not None else "-",
                w(s.verdict) if s.verdict else "-",
                s.why,
            ]
        )
    return Table(
        name="sweep",
        caption=w("Loads of the sweep"),
        columns=[w("load"), w("served/s"), w("tokens/s"), "TTFT", w("percentile"), w("verdict"), w("why")],
        rows=rows,
        numeric=frozenset((0, 1, 2, 3)),
    )


def _between(s: SweepStep) -> str:
    if s.hi is None:
        return ""
    return f"[{seconds(s.lo)} - {seconds(s.hi)}]" if s.lo is not None else f"[<= {seconds(s.hi)}]"


def goodput_chart(w: Words, steps: Sequence[SweepStep]) -> Figure | None:
    """Served against offered requests, beside the line on which all are served; rates only."""
    kept = [s for s in steps if s.served_per_s is not None]
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


@dataclass(frozen=True, slots=True)
class Pair:
    """One number, predicted and measured; in the same unit."""

    label: str
    predicted: float
    measured: float
    unit: str
    shown: tuple[str, str]


def honesty_chart(w: Words, pairs: Sequence[Pair]) -> Figure:
    """By how much each prediction missed. Ratios, since bytes and requests share no axis."""
    errors = [p.predicted / p.measured - 1.0 for p in pairs]
    worst = max(abs(e) for e in errors)
    return Figure(
        name="predicted",
        title=w("Predicted against measured"),
        description=w(
            "The largest miss is {worst}; 0 % is a prediction that came true.", worst=percent(worst)
        ),
        draw=lambda width: _honesty(pairs, errors, width),
        table=Table(
            name="predicted",
            caption=w("Predicted against measured"),
            columns=[w("number"), w("predicted"), w("measured"), w("error")],
            rows=[
                [
                    p.label,
                    Num(p.shown[0], p.predicted),
                    Num(p.shown[1], p.measured),
                    Num(f"{100 * e:+.2f} %", e),
                ]
                for p, e in zip(pairs, errors, strict=True)
            ],
            numeric=frozenset((1, 2, 3)),
        ),
    )


def _honesty(pairs: Sequence[Pair], errors: Sequence[float], width: int) -> tuple[str, int]:
    d = Drawing()
    reach = max(0.05, nice_top(max(abs(e) for e in errors)))
    narrow = width < 500
    left = 0.0 if narrow else left_margin([p.label for p in pairs])
    row = 40.0 if narrow else 28.0
    bottom = 8 + row * len(pairs)
    x = Scale(-reach, reach, left + 12, width - RIGHT - 12)
    x_axis(d, x, bottom, lambda v: f"{100 * v:+g} %" if v else "0", 4)
    d.line(x(0), 4, x(0), bottom, "axis")
    for i, (p, e) in enumerate(zip(pairs, errors, strict=True)):
        y = 8 + row * i + row / 2
        if narrow:
            d.text(0, y - 9, p.label, "note")
        else:
            d.text(left - 8, y + 4, p.label, "", "end")
        d.line(x(0), y + (6 if narrow else 0), x(e), y + (6 if narrow else 0), "w1")
        d.dot(x(e), y + (6 if narrow else 0), "s1", 5, f"{p.label}: {100 * e:+.2f} %")
    return d.out(), int(bottom + BOTTOM)
