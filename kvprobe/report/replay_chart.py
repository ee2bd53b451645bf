"""The time line of a replay: how full the pool was, how many ran and waited."""

from __future__ import annotations

from collections.abc import Sequence

from kvprobe.plan.simulate.outcome import Moment
from kvprobe.plan.simulate.replay import Replay
from kvprobe.report.content import Figure, Num, Series, Table
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
from kvprobe.summary.units import percent, seconds, whole

PANEL = 120.0


def time_line_chart(w: Words, found: Replay) -> list[Figure]:
    """Empty for a time line of one stretch."""
    line = found.time_line
    if len(line) < 2:
        return []
    columns = [
        w("at"),
        w("pool in use, peak"),
        w("at once, peak"),
        w("waiting"),
        w("preemptions"),
    ]
    table = Table(
        name="replay-time-line",
        caption=w("The replay over time"),
        columns=columns,
        rows=[
            [
                Num(seconds(m.t_s), m.t_s),
                Num(percent(m.used_peak_ratio), m.used_peak_ratio),
                Num(whole(m.running_peak), m.running_peak),
                Num(whole(m.waiting), m.waiting),
                Num(whole(m.preemptions), m.preemptions),
            ]
            for m in line
        ],
        numeric=frozenset(range(len(columns))),
    )
    return [
        Figure(
            name="replay-time-line",
            title=w("The replay over time"),
            description=w(
                "Above how much of the pool is held, below how many requests run and wait; dots: preemptions."
            ),
            draw=lambda width: _draw(w, line, width),
            table=table,
            legend=[
                Series("s1", w("pool in use, peak")),
                Series("s2", w("at once, peak")),
                Series("s3", w("waiting"), "dash"),
                Series("s4", w("preemptions"), "dot"),
            ],
        )
    ]


def _draw(w: Words, line: Sequence[Moment], width: int) -> tuple[str, int]:
    d = Drawing()
    top = nice_top(max(1.0, *(float(max(m.running_peak, m.waiting)) for m in line)))
    left = left_margin(["100 %", whole(top)])
    x = Scale(line[0].t_s, line[-1].t_s, left, width - RIGHT)
    used = Scale(0.0, 1.0, TOP + PANEL, TOP)
    begin = TOP + PANEL + 2 * TOP
    count = Scale(0.0, top, begin + PANEL, begin)
    panel_title(d, 0, TOP - 12, w("pool in use, peak"))
    y_axis(d, used, left, width - RIGHT, lambda v: f"{100 * v:.0f} %", 4)
    d.path([(x(m.t_s), used(m.used_peak_ratio)) for m in line], "s1")
    for m in line:
        if m.preemptions:
            d.dot(x(m.t_s), used(m.used_peak_ratio), "s4", 2.5, f"{seconds(m.t_s)}: {m.preemptions:,}")
    panel_title(d, 0, begin - 12, w("requests that run and wait"))
    count_axis(d, count, left, width - RIGHT, whole, 4)
    d.path([(x(m.t_s), count(m.running_peak)) for m in line], "s2")
    d.path([(x(m.t_s), count(m.waiting)) for m in line], "s3 d2")
    x_axis(d, x, begin + PANEL, seconds)
    return d.out(), int(begin + PANEL + BOTTOM)
