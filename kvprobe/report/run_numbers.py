"""Latency, load and capacity of a run, as sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvprobe.report import charts_capacity as capacity_charts
from kvprobe.report import charts_time, charts_waits
from kvprobe.report.content import Block, Facts, Inline, Num, Para, Said, Section, Table
from kvprobe.report.run_first import requests_text
from kvprobe.report.run_gaps import gaps
from kvprobe.report.run_series import request_rates, server_wait, waits
from kvprobe.report.run_view import RunView, percentile
from kvprobe.summary.latency import Distribution
from kvprobe.summary.units import figures, seconds, whole

PIECES = 60
LONG_S = 0.25
"""Shortest piece in which requests a second are counted."""
FROM_SCHEDULE_DIFFERS = 0.01


def latency(view: RunView) -> Section:
    """Percentiles with intervals, then where the waits come from."""
    w, rows = view.w, _distributions(view)
    blocks: list[Block] = []
    table = _table(view, rows)
    if any(found.p50 for _, found in rows):
        blocks.append(charts_waits.whiskers_chart(w, rows, table))
    blocks.append(table)
    if view.data is not None and view.span is not None:
        records = view.data.records
        cold, warm = waits(records, view.span)
        if len(cold) + len(warm) > 1:
            blocks.append(charts_time.waits_chart(w, cold, warm, view.span.seconds))
        blocks += _parts(view)
        found = gaps(records)
        if found.alone.size + found.beside_prefill.size > 1:
            blocks.append(charts_waits.gaps_chart(w, found))
    return Section("latency", w("Latency"), blocks)


def _distributions(view: RunView) -> list[tuple[str, Distribution]]:
    w, m = view.w, view.summary.metrics
    rows = [("TTFT", m.ttft_s)]
    if _differ(m.ttft_s, m.ttfo_s):
        rows.append(("TTFO", m.ttfo_s))
    if _differ(m.ttft_s, m.response_ttft_s):
        rows.append((w("TTFT, from schedule"), m.response_ttft_s))
    rows += [("TPOT", m.tpot_s), (w("chunk gap"), m.gap_s), (w("end to end"), m.e2e_s)]
    if _differ(m.e2e_s, m.response_latency_s):
        rows.append((w("end to end, from schedule"), m.response_latency_s))
    return rows


def _differ(a: Distribution, b: Distribution) -> bool:
    pairs = [(a.mean, b.mean), (a.p50, b.p50), (a.p95, b.p95)]
    return any(
        x is not None and y is not None and abs(x - y) > FROM_SCHEDULE_DIFFERS * max(x, y) for x, y in pairs
    )


def _table(view: RunView, rows: list[tuple[str, Distribution]]) -> Table:
    w = view.w
    cells: list[list[Inline]] = []
    for name, found in rows:
        ends = [found.min, found.max]
        cells.append(
            [
                name,
                Num(whole(found.n), found.n),
                *(percentile(view, found, p) for p in ("p50", "p95", "p99")),
                *(Num(seconds(v), v) if v is not None else "-" for v in ends),
            ]
        )
        cells += _with_failures(view, found)
    return Table(
        name="latency",
        caption=w("Requests that ended well; 95 % intervals from order statistics"),
        columns=[w("latency"), "n", "p50", "p95", "p99", w("smallest"), w("largest")],
        rows=cells,
        numeric=frozenset(range(1, 7)),
        note=w(
            "A percentile needs 5, 59 and 299 independent values (p50, p95, p99); the chunks of one answer "
            "count for less than their number."
        ),
    )


def _with_failures(view: RunView, found: Distribution) -> list[list[Inline]]:
    """The same with failed requests let in, where there are any."""
    other = found.with_failures
    if other is None or other.n == found.n or not view.summary.requests.failed:
        return []
    w = view.w
    shown: list[Inline] = []
    for name in ("p50", "p95", "p99"):
        value: float | None = getattr(other, name)
        shown.append(
            Num(seconds(value), value)
            if value is not None
            else Num(view.reason(other.reasons.get(name)), tone="dim")
        )
    label = (
        w("- with failed ({n} cut short)", n=whole(other.censored)) if other.censored else w("- with failed")
    )
    return [[Said(label, "dim"), Num(whole(other.n), other.n), *shown, "", ""]]


def _parts(view: RunView) -> list[Block]:
    """TTFT in queue and prefill, from the server's own histograms; their absence is told."""
    w, data = view.w, view.data
    if data is None:
        return []
    queue, prefill = server_wait(data, "engine.queue_seconds"), server_wait(data, "engine.prefill_seconds")
    if queue is None or prefill is None:
        text = w("TTFT is not taken apart: the server exports no histograms of queue and prefill time.")
        return [Para(Said(text, "dim"))]
    everything = [r for r in data.records if r.first_token_ns and r.sent_ns]
    mean = (
        sum((r.first_token_ns or 0) - (r.sent_ns or 0) for r in everything) / len(everything) * 1e-9
        if everything
        else None
    )
    parts = charts_waits.TtftParts(queue, prefill, server_wait(data, "engine.ttft_seconds"), mean)
    return [charts_waits.ttft_chart(w, parts)]


def load(view: RunView) -> Section:
    """How requests came, how many were served."""
    w, s = view.w, view.summary
    rates = s.metrics.rates
    rows: list[tuple[str, Inline]] = [
        (w("arrival"), arrival_words(view)),
        (w("requests"), requests_text(view)),
    ]
    for label, value in (
        (w("offered"), rates.offered_per_s),
        (w("sent"), rates.achieved_per_s),
        (w("done"), rates.completed_per_s),
    ):
        rows.append((label, w("{n} requests/s", n=figures(value)) if value is not None else w("not known")))
    rows.append((w("most in flight"), _active(view)))
    blocks: list[Block] = [Facts(rows)]
    if view.data is not None and view.span is not None and view.data.records:
        pieces = max(4, min(PIECES, int(view.span.seconds / LONG_S)))
        counted = request_rates(view.data.records, view.span, pieces)
        if any(n for _, *n3 in counted for n in n3):
            blocks.append(charts_time.rates_chart(w, counted, view.span.seconds / pieces))
    return Section("load", w("Load and throughput"), blocks)


def arrival_words(view: RunView) -> str:
    w, arrival = view.w, view.summary.arrival
    if arrival.loop == "closed":
        if arrival.users is None:
            return w("closed loop: each user waits for its answer")
        return w("closed loop, {n} users: each waits for its answer", n=whole(arrival.users))
    if arrival.loop != "open":
        return w("not known")
    asked = w(", {n} requests/s asked for", n=figures(arrival.rate_per_s)) if arrival.rate_per_s else ""
    return (
        w("open loop: a schedule that does not wait")
        + (f" ({arrival.process})" if arrival.process else "")
        + asked
    )


def _active(view: RunView) -> str:
    w, active = view.w, view.summary.metrics.active
    client = (
        w("{n} at the client", n=whole(active.client))
        if active.client is not None
        else w("none at the client")
    )
    if active.server is None:
        return f"{client}; {w('server')}: {view.reason(active.server_reason)}"
    how = (
        w("its own high-water mark") if active.server_source == "high_water" else w("sampled, a lower bound")
    )
    return client + w("; {n} running at the server ({how})", n=whole(active.server), how=how)


def sweep(w: Any, found: Mapping[str, Any]) -> Section | None:
    """A sweep's curve: throughput against waits, the knee, what is sustained."""
    steps = capacity_charts.read_steps(found)
    if not steps:
        return None
    knee_raw = found.get("knee")
    ends = (
        (capacity_charts.number(knee_raw.get("below")), capacity_charts.number(knee_raw.get("above")))
        if isinstance(knee_raw, Mapping)
        else (None, None)
    )
    knee = (ends[0], ends[1]) if ends[0] is not None and ends[1] is not None else None
    blocks: list[Block] = []
    blocks += _limit(w, found)
    if (curve := capacity_charts.curve_chart(w, steps, knee)) is not None:
        blocks.append(curve)
    if found.get("axis") != "users" and (chart := capacity_charts.goodput_chart(w, steps)) is not None:
        blocks.append(chart)
    blocks.append(capacity_charts.steps_table(w, steps))
    return Section("capacity", w("Capacity curve"), blocks)


def _limit(w: Any, found: Mapping[str, Any]) -> list[Block]:
    limit = found.get("interval")
    if not isinstance(limit, Mapping):
        return []
    lo, hi = capacity_charts.number(limit.get("lo")), capacity_charts.number(limit.get("hi"))
    unit = w("users") if found.get("axis") == "users" else w("requests/s")
    if lo is not None and hi is not None:
        text = w("Sustained: {lo} {unit}; {hi} is too much.", lo=figures(lo), hi=figures(hi), unit=unit)
    elif lo is not None:
        text = w("Sustained: at least {lo} {unit}; nothing tried was too much.", lo=figures(lo), unit=unit)
    elif hi is not None:
        text = w("Nothing tried was sustained; the limit lies below {hi} {unit}.", hi=figures(hi), unit=unit)
    else:
        text = w("No load could be decided.")
    return [Para(Said(text, strong=True))]
