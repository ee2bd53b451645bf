"""Charts of distributions: the gaps between chunks, percentiles with intervals, the parts of TTFT."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvprobe.report.charts_time import latency_tick, log_ends
from kvprobe.report.content import Figure, Num, Series, Table
from kvprobe.report.reduce import steps
from kvprobe.report.run_gaps import GapClass, Gaps
from kvprobe.report.run_series import Points, ServerWait
from kvprobe.report.scales import Scale
from kvprobe.report.svg import BOTTOM, RIGHT, TOP, Drawing, left_margin, panel_title, x_axis, y_axis
from kvprobe.report.words import Words
from kvprobe.summary.latency import Distribution
from kvprobe.summary.units import percent, seconds, whole

GAP_FLOOR_S = 1e-5
"""Smallest gap that a logarithmic axis shows; chunks of one receive have none and stand at its left end."""


def _curves(w: Words, found: Gaps) -> list[tuple[str, str, Points]]:
    """(style, name, points): alone, then beside prefill, in classes where there are several."""
    curves = [("s1", w("no other request in prefill"), steps(found.alone.tolist()))]
    if len(found.by_tokens) < 2:
        beside = steps(found.beside_prefill.tolist())
        curves.append(("s2 d2", w("another request in prefill"), beside))
    else:
        for style, part in zip(_CLASS_STYLES, found.by_tokens, strict=False):
            curves.append((style, _class_name(w, part), steps(part.seconds.tolist())))
    return [curve for curve in curves if curve[2]]


_CLASS_STYLES = ("s3 d2", "s5 d3", "s2 d2", "s4 d3")


def _class_name(w: Words, part: GapClass) -> str:
    if part.high is None:
        return w("above {n} prompt tokens in prefill", n=whole(part.low))
    return w("{a} to {b} prompt tokens in prefill", a=whole(part.low + (part.low > 0)), b=whole(part.high))


def gaps_chart(w: Words, found: Gaps) -> Figure:
    """How large are the gaps between chunks: alone, and while other requests were being prefilled."""
    kept = _curves(w, found)
    curves = [(style, points) for style, _, points in kept]
    low = _low_end(curves)
    cut = any(points[0][0] < low for _, points in curves)
    return Figure(
        name="gaps",
        title=w("Gaps between chunks (inter-chunk latency)"),
        description=w(
            "Share of the gaps that were at most so long: {alone} alone, {beside} while another request "
            "was in prefill.",
            alone=whole(found.alone.size),
            beside=whole(found.beside_prefill.size),
        ),
        draw=lambda width: _ecdf(w, curves, width),
        legend=[Series(style, name) for style, name, _ in kept],
        table=Table(
            name="gaps",
            caption=w("Distribution of the gaps"),
            columns=[w("gap at most"), w("share of gaps"), w("when")],
            rows=[
                [Num(seconds(v), v), Num(percent(q), q), name] for _, name, points in kept for v, q in points
            ],
            numeric=frozenset((0, 1)),
            note=w("At most 200 evenly spread points of each curve, and its 20 largest gaps."),
        ),
        note=w("The few gaps that are shorter than the axis stand at its left end.") if cut else "",
    )


def _low_end(curves: Sequence[tuple[str, Points]]) -> float:
    """Half of the 2 % quantile: a handful of tiny gaps must not take half of the chart."""
    return max(
        GAP_FLOOR_S, min(next((v for v, q in points if q >= 0.02), points[-1][0]) for _, points in curves) / 2
    )


def _ecdf(w: Words, curves: Sequence[tuple[str, Points]], width: int) -> tuple[str, int]:
    d = Drawing()
    bottom = TOP + 200
    y = Scale(0.0, 1.0, bottom, TOP)
    left = left_margin(["100 %"])
    lo, hi = log_ends([v for _, points in curves for v, _ in points], _low_end(curves))
    x = Scale(lo, hi, left, width - RIGHT, log=True)
    panel_title(d, 0, TOP - 12, w("share of gaps at or below"))
    y_axis(d, y, left, width - RIGHT, lambda v: f"{100 * v:.0f} %", 5)
    for style, points in curves:
        placed: list[tuple[float, float]] = []
        before = y(0.0)
        for v, q in points:
            placed += [(x(v), before), (x(v), y(q))]
            before = y(q)
        d.path(placed, style)
    x_axis(d, x, bottom, latency_tick, TOP)
    return d.out(), int(bottom + BOTTOM)


PERCENTILES = ("p50", "p95", "p99")


def whiskers_chart(w: Words, rows: Sequence[tuple[str, Distribution]], table: Table) -> Figure:
    """Percentiles with their intervals; what n cannot carry is not drawn, the table says so."""
    kept = [(name, found) for name, found in rows if any(getattr(found, p) for p in PERCENTILES)]
    return Figure(
        name="latencies",
        title=w("Latencies with 95 % intervals"),
        description=w(
            "Median, p95 and p99; a bar is the interval. A percentile that n cannot carry is not drawn."
        ),
        draw=lambda width: _whiskers(kept, width),
        legend=[Series(f"s{i}", p, "dot") for i, p in zip((1, 2, 4), PERCENTILES, strict=True)],
        table=table,
    )


def _whiskers(rows: Sequence[tuple[str, Distribution]], width: int) -> tuple[str, int]:
    d = Drawing()
    values = [v for _, found in rows for p in PERCENTILES for v in _ends(found, p) if v]
    lo, hi = log_ends(values) if values else (0.001, 1.0)
    left = left_margin([name for name, _ in rows])
    x = Scale(lo, hi, left, width - RIGHT, log=True)
    bottom = 14 + 46.0 * len(rows)
    x_axis(d, x, bottom, latency_tick, 8)
    for i, (name, found) in enumerate(rows):
        y = 14 + 46.0 * i + 20
        d.text(left - 8, y + 4, name, "", "end")
        for k, (number, p) in enumerate(zip((1, 2, 4), PERCENTILES, strict=True)):
            value = getattr(found, p)
            if value is None:
                continue
            at = y + (k - 1) * 11
            low, high = found.ci.get(p, {}).get("lo"), found.ci.get(p, {}).get("hi")
            start = x(low) if low is not None else x(value)
            if high is not None:
                d.line(start, at, x(high), at, f"w{number}")
                d.line(x(high), at - 4, x(high), at + 4, f"w{number}")
            if low is not None:
                d.line(start, at - 4, start, at + 4, f"w{number}")
            d.dot(x(value), at, f"s{number}", 4, f"{name} {p} {seconds(value)}")
    return d.out(), int(bottom + BOTTOM)


def _ends(found: Distribution, p: str) -> list[float | None]:
    ci = found.ci.get(p, {})
    return [getattr(found, p), ci.get("lo"), ci.get("hi")]


@dataclass(frozen=True, slots=True)
class TtftParts:
    """The mean TTFT taken apart; seconds. Means add up, percentiles do not: those stand in the table."""

    queue: ServerWait
    prefill: ServerWait
    server: ServerWait | None
    client_mean_s: float | None


def ttft_chart(w: Words, parts: TtftParts) -> Figure:
    """Mean time to first token in queue, prefill and the rest (network, HTTP, client)."""
    pieces = _pieces(w, parts)
    rows = [
        [name, Num(seconds(value), value), _borders(w, wait, "p50"), _borders(w, wait, "p95")]
        for _, name, value, wait in pieces
    ]
    if parts.client_mean_s is not None:
        rows.append([w("TTFT at the client"), Num(seconds(parts.client_mean_s), parts.client_mean_s), "", ""])
    told = ", ".join(f"{name} {seconds(value)}" for _, name, value, _ in pieces)
    return Figure(
        name="ttft-parts",
        title=w("Where the time to first token goes"),
        description=w(
            "Means of the server's own histograms over {n} requests: {told}.",
            n=whole(parts.queue.count),
            told=told,
        ),
        draw=lambda width: _stack([(style, value, seconds(value)) for style, _, value, _ in pieces], width),
        legend=[Series(style, name, "area") for style, name, _, _ in pieces],
        table=Table(
            name="ttft-parts",
            caption=w("Parts of TTFT (percentiles lie between two borders of the server's buckets)"),
            columns=[w("part"), w("mean"), "p50", "p95"],
            rows=rows,
            numeric=frozenset((1, 2, 3)),
            note=w("The server counts every request of the load, warm-up included; only means can be added."),
        ),
    )


def _pieces(w: Words, parts: TtftParts) -> list[tuple[str, str, float, ServerWait | None]]:
    pieces: list[tuple[str, str, float, ServerWait | None]] = [
        ("s2", w("queue"), parts.queue.mean_s, parts.queue),
        ("s1", w("prefill"), parts.prefill.mean_s, parts.prefill),
    ]
    known = parts.queue.mean_s + parts.prefill.mean_s
    if parts.client_mean_s is not None and parts.client_mean_s > known:
        pieces.append(("s6", w("the rest: network, HTTP, client"), parts.client_mean_s - known, None))
    return pieces


def _borders(w: Words, wait: ServerWait | None, name: str) -> Num | str:
    found = getattr(wait, name) if wait is not None else None
    if found is None:
        return ""
    low, high = found
    if high is None:
        return Num(w("above {low}", low=seconds(low)), low)
    return Num(f"{seconds(low)} - {seconds(high)}", high)


def _stack(pieces: Sequence[tuple[str, float, str]], width: int) -> tuple[str, int]:
    """Pieces of one bar, their amounts inside where they have room."""
    d = Drawing()
    total = sum(value for _, value, _ in pieces) or 1.0
    x = Scale(0.0, total, 0.0, float(width))
    at = 0.0
    for style, value, words in pieces:
        start, end = x(at), x(at + value)
        d.rect(start, 6, end - start, 34, style, words)
        if end - start > 8 * len(words):
            d.text((start + end) / 2, 28, words, "on", "middle")
        at += value
    return d.out(), 46
