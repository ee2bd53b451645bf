"""Charts over the time of a run: the pool with its queue and preemptions, the waits, the requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvprobe.report.content import Figure, Num, Series, Table
from kvprobe.report.reduce import peaks
from kvprobe.report.run_series import Points
from kvprobe.report.scales import Scale, nice_top
from kvprobe.report.svg import (
    BOTTOM,
    RIGHT,
    TOP,
    Drawing,
    count_axis,
    left_margin,
    panel_title,
    x_axis,
    y_axis,
)
from kvprobe.report.words import Words
from kvprobe.summary.units import figures, percent, seconds, whole

RED_LINE = 0.90
PANEL, SPACE = 118.0, 34.0


def seconds_tick(value: float) -> str:
    """A time on an axis: as short as it can be said."""
    return f"{value:g} s"


def latency_tick(value: float) -> str:
    if value >= 1:
        return f"{value:g} s"
    return f"{value * 1e3:g} ms" if value >= 1e-3 else f"{value * 1e6:g} us" if value else "0"


@dataclass(frozen=True, slots=True)
class PoolSeries:
    """What the pool's chart shows, by seconds since the load began; empty where nothing is exported."""

    usage: Points
    running: Points
    waiting: Points
    preempted: Points
    """Preemptions since the reading before."""


def pool_chart(w: Words, data: PoolSeries, span_s: float) -> Figure:
    """KV use with the red line, running and waiting, preemptions: three panels, one time axis."""
    usage, running, waiting, preempted = (
        peaks(p) for p in (data.usage, data.running, data.waiting, data.preempted)
    )
    drawn = PoolSeries(usage, running, waiting, preempted)
    over = sum(1 for _, v in data.usage if v >= RED_LINE)
    stopped = round(sum(v for _, v in data.preempted))
    return Figure(
        name="pool",
        title=w("KV cache, queue and preemptions"),
        description=w(
            "The pool was at most {most} full; {over} of {n} readings at or above the 90 % line; {stopped} "
            "preemptions.",
            most=percent(max((v for _, v in data.usage), default=0.0)),
            over=whole(over),
            n=whole(len(data.usage)),
            stopped=whole(stopped),
        ),
        draw=lambda width: _pool(w, drawn, span_s, width),
        legend=[
            Series("s1", w("KV in use")),
            Series("red", w("90 % line"), "dash"),
            Series("s3", w("running")),
            Series("s2 d2", w("waiting")),
            Series("badr", w("preemptions"), "area"),
        ],
        table=_pool_table(w, drawn),
    )


def _pool(w: Words, data: PoolSeries, span_s: float, width: int) -> tuple[str, int]:
    d = Drawing()
    most = nice_top(max((v for _, v in [*data.running, *data.waiting]), default=1.0) or 1.0)
    jolts = nice_top(max((v for _, v in data.preempted), default=1.0) or 1.0)
    left = left_margin(["100 %", f"{most:g}", f"{jolts:g}"])
    x = Scale(0.0, span_s, left, width - RIGHT)
    y = Scale(0.0, 1.0, TOP + PANEL, TOP)
    panel_title(d, 0, TOP - 12, w("KV pool in use"))
    y_axis(d, y, left, width - RIGHT, lambda v: f"{100 * v:.0f} %", 4)
    d.line(left, y(RED_LINE), width - RIGHT, y(RED_LINE), "red")
    placed = [(x(t), y(v)) for t, v in data.usage]
    if placed:
        d.path([(placed[0][0], y(0)), *placed, (placed[-1][0], y(0))], "a1")
    d.path(placed, "s1")
    top = TOP + PANEL + SPACE
    y = Scale(0.0, most, top + PANEL * 0.8, top)
    panel_title(d, 0, top - 12, w("requests running and waiting"))
    count_axis(d, y, left, width - RIGHT, lambda v: f"{v:g}", 4)
    d.path([(x(t), y(v)) for t, v in data.running], "s3")
    d.path([(x(t), y(v)) for t, v in data.waiting], "s2 d2")
    top += PANEL * 0.8 + SPACE
    bottom = top + PANEL * 0.5
    y = Scale(0.0, jolts, bottom, top)
    panel_title(d, 0, top - 12, w("preemptions between two readings"))
    count_axis(d, y, left, width - RIGHT, lambda v: f"{v:g}", 2)
    for t, v in data.preempted:
        if v > 0:
            d.rect(x(t) - 2, y(v), 4, bottom - y(v), "badr", f"{seconds(t)}: {v:g}")
    x_axis(d, x, bottom, seconds_tick)
    return d.out(), int(bottom + BOTTOM)


def _pool_table(w: Words, data: PoolSeries) -> Table:
    """One row an instant; a cell that has no reading then is empty."""
    columns = (data.usage, data.running, data.waiting, data.preempted)
    times = sorted({t for points in columns for t, _ in points})
    at = [dict(points) for points in columns]
    rows = []
    for t in times:
        usage, *rest = (each.get(t) for each in at)
        rows.append(
            [
                Num(f"{t:.1f}", t),
                Num(percent(usage), usage) if usage is not None else "",
                *(Num(f"{v:g}", v) if v is not None else "" for v in rest),
            ]
        )
    return Table(
        name="kv-pool",
        caption=w("Pool over time (readings; of long runs the smallest and largest of each span)"),
        columns=[w("s since start"), w("KV in use"), w("running"), w("waiting"), w("preemptions")],
        rows=rows,
        numeric=frozenset(range(5)),
    )


def waits_chart(w: Words, cold: Points, warm: Points, span_s: float) -> Figure:
    """TTFT of every request at the instant that it was sent."""
    kept = [peaks(cold), peaks(warm)]
    names = [w("nothing from the prefix cache"), w("with a cached prefix")]
    rows = sorted(
        ((t, v, name) for points, name in zip(kept, names, strict=True) for t, v in points),
        key=lambda row: row[0],
    )
    return Figure(
        name="waits",
        title=w("Time to first token over the run"),
        description=w(
            "One mark for each of {n} requests; a logarithmic axis.", n=whole(len(cold) + len(warm))
        ),
        draw=lambda width: _waits(w, kept, span_s, width),
        legend=[
            Series(f"s{i}", name, "dot")
            for i, name, points in zip((1, 3), names, kept, strict=True)
            if points
        ],
        table=Table(
            name="ttft-over-time",
            caption=w("Time to first token by start"),
            columns=[w("s since start"), "TTFT", w("prefix cache")],
            rows=[[Num(f"{t:.2f}", t), Num(seconds(v), v), name] for t, v, name in rows],
            numeric=frozenset((0, 1)),
        ),
    )


def log_ends(values: Sequence[float], floor: float = 1e-5) -> tuple[float, float]:
    """Ends of a logarithmic axis that hold all of `values`."""
    low, high = max(min(values), floor), max([*values, floor])
    return low * 0.9, max(high * 1.1, low * 2)


def _waits(w: Words, kept: list[Points], span_s: float, width: int) -> tuple[str, int]:
    d = Drawing()
    lo, hi = log_ends([v for points in kept for _, v in points])
    bottom = TOP + 210
    y = Scale(lo, hi, bottom, TOP, log=True)
    left = left_margin([latency_tick(v) for v in y.ticks(6)])
    x = Scale(0.0, span_s, left, width - RIGHT)
    panel_title(d, 0, TOP - 12, "TTFT")
    y_axis(d, y, left, width - RIGHT, latency_tick, 6)
    for style, points in zip(("s1", "s3"), kept, strict=True):
        for t, v in points:
            d.dot(x(t), y(v), style, 2.6)
    x_axis(d, x, bottom, seconds_tick)
    return d.out(), int(bottom + BOTTOM)


def rates_chart(w: Words, pieces: list[tuple[float, int, int, int]], width_s: float) -> Figure:
    """Requests sent, ended well and failed, a second, in equal pieces of the load."""
    rows = [
        [Num(f"{t:.1f}", t), *(Num(figures(n / width_s), n / width_s) for n in counts)]
        for t, *counts in pieces
    ]
    return Figure(
        name="rates",
        title=w("Requests a second"),
        description=w("Sent, ended well and failed, in pieces of {width}.", width=seconds(width_s)),
        draw=lambda width: _rates(w, pieces, width_s, width),
        legend=[
            Series("s1", w("sent")),
            Series("s3 d2", w("ended well")),
            Series("badp d3", w("failed")),
        ],
        table=Table(
            name="request-rates",
            caption=w("Requests a second over the run"),
            columns=[w("s since start"), w("sent"), w("ended well"), w("failed")],
            rows=rows,
            numeric=frozenset(range(4)),
        ),
    )


def _rates(
    w: Words, pieces: list[tuple[float, int, int, int]], width_s: float, width: int
) -> tuple[str, int]:
    d = Drawing()
    top = nice_top(max(max(counts) / width_s for _, *counts in pieces))
    bottom = TOP + 150
    y = Scale(0.0, top, bottom, TOP)
    left = left_margin([f"{v:g}" for v in y.ticks(4)])
    x = Scale(0.0, pieces[-1][0] + width_s / 2, left, width - RIGHT)
    panel_title(d, 0, TOP - 12, w("requests/s"))
    y_axis(d, y, left, width - RIGHT, lambda v: f"{v:g}", 4)
    for i, style in enumerate(("s1", "s3 d2", "badp d3"), 1):
        d.path([(x(piece[0]), y(piece[i] / width_s)) for piece in pieces], style)
    x_axis(d, x, bottom, seconds_tick)
    return d.out(), int(bottom + BOTTOM)
