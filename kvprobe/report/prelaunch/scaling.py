"""Section 11 and what a change would do: replicas with one to spare, when to add one, the tornado."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from kvprobe.report.charts_capacity import number
from kvprobe.report.content import Block, Facts, Figure, Inline, Num, Para, Said, Section, Table
from kvprobe.report.prelaunch.budget import fill, said
from kvprobe.report.prelaunch.view import Measure, Prelaunch, amount, capacity, demand
from kvprobe.report.scales import Scale, nice_top, text_width
from kvprobe.report.svg import FONT_PX, Drawing, fitting, left_margin
from kvprobe.summary.units import figures, percent, whole

SAFE_SHARE = 0.8
"""Of a replica's capacity that is planned with. A default, stated on the page."""
SAFE_WORDS = f"{100 * SAFE_SHARE:.0f} %"
MOST_BARS = 12


def replicas(view: Prelaunch) -> Section:
    """11: how many, with one to spare; and from which readings another is due."""
    w, have = view.w, capacity(view)
    need = demand(view, have.unit) if have is not None else None
    blocks: list[Block] = []
    if have is not None and need is not None and have.value > 0:
        blocks.append(Facts(_counts(view, have, need)))
        note = w(
            "The share of 80 % is a default of kvprobe, not a measurement. Replicas behind a router that "
            "spreads equal prefixes lose prefix hits."
        )
        blocks.append(Para(Said(note, "dim")))
    else:
        blocks.append(fill(view, "kvprobe report RUN --plan PLAN.json --demand RATE"))
    blocks.append(_thresholds(view, have))
    return Section("s11", w("11 Replicas and scaling"), blocks)


def _thresholds(view: Prelaunch, have: Measure | None) -> Table:
    """Readings from which another replica is due, in the order in which they come, each with its origin."""
    w = view.w
    rows: list[list[Inline]] = []
    if have is not None and have.value > 0:
        scaled = SAFE_SHARE * have.value
        load = figures(scaled) if have.unit == "requests/s" else whole(math.floor(scaled))
        origin = w("{share} of the capacity: {source}", share=SAFE_WORDS, source=have.source)
        rows.append([w("load of a replica"), f">= {load} {w(have.unit)}", origin])
    waiting = w("for several readings: a queue is a wait for the first token")
    rows.append([w("requests waiting"), "> 0", waiting])
    rows.append([w("KV use"), ">= 90 %", w("the red line: a burst then queues, preempts or evicts")])
    rows.append([w("preemptions"), w("> 0 a minute"), w("each computes its tokens again: too late to scale")])
    return Table(
        name="autoscale",
        caption=w("Readings from which another replica is due"),
        columns=[w("sign"), w("threshold"), w("source")],
        rows=rows,
        note=w("How long a new replica takes to start decides how early a sign must be used (section 10)."),
    )


def _counts(view: Prelaunch, have: Measure, need: Measure) -> list[tuple[str, Inline]]:
    w, n = view.w, math.ceil(need.value / (SAFE_SHARE * have.value))
    told = w(
        "{n} = demand {need} / ({share} x {have}), rounded up",
        n=n,
        need=amount(view, need),
        share=f"{SAFE_SHARE:g}",
        have=amount(view, have),
    )
    rows: list[tuple[str, Inline]] = [
        (w("replicas, each at {share} of its capacity at most", share=SAFE_WORDS), told),
        (w("with one to spare (N+1)"), whole(n + 1)),
        (w("load of each replica"), _loads(view, have, need, n)),
    ]
    if have.unit == "requests/s":
        rate, share = figures(SAFE_SHARE * have.value), f"{100 * SAFE_SHARE:.0f} %"
        text = w("{n} requests/s a replica ({share} of its capacity)", n=rate, share=share)
        rows.append((w("add a replica from"), text))
    return rows


def _loads(view: Prelaunch, have: Measure, need: Measure, n: int) -> str:
    """With all of them, and when one is lost: shares of a replica's capacity."""
    each, left = (need.value / (k * have.value) for k in (n + 1, n))
    return view.w("{a} of its capacity; {b} when one is lost", a=percent(each), b=percent(left))


@dataclass(frozen=True, slots=True)
class Change:
    label: str
    value: float
    share: float
    """Relative to the plan: 0.5 is half as many again."""
    note: str


def changes(view: Prelaunch) -> list[Change]:
    """What the plan's own "what if" says, in requests at once; the largest effects first."""
    rows = view.items("what_if")
    key = next((k for k in ("max_num_seqs", "p95", "mean", "max") if rows and number(rows[0].get(k))), None)
    base = number(rows[0].get(key)) if key is not None else None
    if key is None or not base:
        return []
    found = [
        Change(str(r.get("change")), value, value / base - 1.0, str(r.get("note") or ""))
        for r in rows[1:]
        if (value := number(r.get(key))) is not None
    ]
    return sorted(found, key=lambda c: -abs(c.share))[:MOST_BARS]


def tornado(view: Prelaunch) -> Figure | None:
    """By how much each change moves the requests that fit at once."""
    w, found = view.w, changes(view)
    if not found:
        return None
    return Figure(
        name="what-if",
        title=w("What a change would do to the requests that fit at once"),
        description=w("Against the plan; every bar is the plan calculated again with one thing changed."),
        draw=lambda width: _draw([replace(c, label=said(view, c.label).text) for c in found], width),
        table=Table(
            name="what-if",
            caption=w("What if"),
            columns=[w("change"), w("requests"), w("against the plan"), w("note")],
            rows=[
                [
                    said(view, c.label),
                    Num(whole(c.value), c.value),
                    Num(_percent(c), c.share),
                    said(view, c.note) if c.note else "",
                ]
                for c in found
            ],
            numeric=frozenset((1, 2)),
        ),
    )


def _percent(c: Change) -> str:
    return f"{100 * c.share:+,.0f} %"


def _draw(found: list[Change], width: int) -> tuple[str, int]:
    """Bars from a middle line; labels in a column of their own, above the bar on a phone."""
    d = Drawing()
    narrow = width < 500
    row = 40.0 if narrow else 26.0
    left = 0.0 if narrow else min(left_margin([c.label for c in found]), width * 0.5)
    room = text_width("+1,000 %", FONT_PX) + 8
    low = min(0.0, *(c.share for c in found))
    high = max(0.0, *(c.share for c in found))
    top = nice_top(max(high, 0.01))
    x = Scale(-nice_top(-low) if low < 0 else 0.0, top, left + (room if low < 0 else 4), width - room)
    for i, c in enumerate(found):
        y = row * i + (16 if narrow else 0)
        if narrow:
            d.text(0, y - 3, fitting(c.label, width), "note")
        else:
            d.text(left - 8, y + 15, fitting(c.label, left - 10), "", "end")
        a, b = sorted((x(0.0), x(c.share)))
        d.rect(
            a,
            y + 2,
            max(b - a, 1.5),
            17,
            "s3" if c.share >= 0 else "badr",
            f"{c.label}: {_percent(c)}",
        )
        d.line(x(0.0), y - 1, x(0.0), y + 22, "axis")
        words = _percent(c)
        d.text(b + 5 if c.share >= 0 else a - 5, y + 15, words, "tick", "start" if c.share >= 0 else "end")
    return d.out(), int(row * len(found) + 8)
