"""Sections 9 and 10: failures and overload, cold start. What a run did not try is said, never guessed."""

from __future__ import annotations

from collections.abc import Sequence

from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.rundata import RunData
from kvprobe.report import run_findings
from kvprobe.report.content import Block, Facts, Inline, Num, Para, Said, Section, Table
from kvprobe.report.prelaunch.budget import fill
from kvprobe.report.prelaunch.view import Prelaunch
from kvprobe.report.run_view import RunView
from kvprobe.summary import activity
from kvprobe.summary.latency import NS, ttft_s
from kvprobe.summary.units import seconds, whole

FIRST = 5
"""Requests that are told one by one."""
START_METRIC = "engine.process_start_time_s"


def overload(view: Prelaunch) -> Section:
    """9: failures, refusals, what happens above the limit."""
    w, run = view.w, view.run if not view.unlike else None
    blocks: list[Block] = []
    if run is not None:
        found = run_findings.failures(run)
        blocks += found.blocks if found is not None else [Para(w("No request failed in this run."))]
        m = run.summary.metrics
        if m.preemptions is not None:
            blocks.append(Facts([(w("preemptions"), whole(m.preemptions))]))
    untried = w("Refusals (429, 503), cancelled requests and the time to recover were not tried.")
    blocks.append(Para(Said(untried, "dim")))
    blocks.append(fill(view, "kvprobe run sweep --target URL --abort 'error_rate > 50%'"))
    return Section("s9", w("9 Failures and overload"), blocks)


def cold_start(view: Prelaunch) -> Section:
    """10: the first requests beside the later ones, and how long the server had been up."""
    w, run = view.w, view.run if not view.unlike else None
    blocks: list[Block] = []
    if run is not None and run.data is not None:
        blocks += _first_requests(run, run.data)
    missing = w(
        "The time from start to the first answer was not measured: start the server, and time its first "
        "request."
    )
    blocks.append(Para(Said(missing, "dim")))
    return Section("s10", w("10 Cold start"), blocks)


def _first_requests(run: RunView, data: RunData) -> list[Block]:
    w = run.w
    answered = sorted(
        (r for r in data.records if r.sent_ns is not None and ttft_s(r) is not None),
        key=lambda r: r.sent_ns or 0,
    )
    if not answered:
        return []
    rows: list[tuple[str, Inline]] = [(w("server up before the first request"), _up(run, data, answered[0]))]
    median = run.summary.metrics.ttft_s.p50
    rows.append(
        (w("TTFT p50 of the measured requests"), seconds(median) if median is not None else w("n too small"))
    )
    return [Facts(rows), _table(run, answered[:FIRST])]


def _up(run: RunView, data: RunData, first: RequestRecord) -> str:
    """By the server's own start time, on the wall clock that the run's monotonic clock was set beside."""
    w = run.w
    started = max((v for _, v in activity.readings(data.samples, START_METRIC)), default=None)
    clock = data.environment.get("clock")
    utc, mono = (clock.get(k) if isinstance(clock, dict) else None for k in ("utc_ns", "monotonic_ns"))
    if started is None or first.sent_ns is None or not isinstance(utc, int) or not isinstance(mono, int):
        return w("not known: the server does not export its start time")
    up = (utc + first.sent_ns - mono) * NS - started
    # Another machine's clock may be ahead of this one.
    return seconds(up) if up >= 0 else w("not known: the clocks of client and server disagree")


def _table(run: RunView, first: Sequence[RequestRecord]) -> Table:
    w = run.w
    rows: list[list[Inline]] = []
    for i, r in enumerate(first, 1):
        wait = ttft_s(r)
        rows.append(
            [
                Num(str(i), i),
                Num(seconds(wait), wait) if wait is not None else "-",
                Num(whole(r.prompt_tokens), r.prompt_tokens) if r.prompt_tokens is not None else "-",
                Num(whole(r.cached_tokens), r.cached_tokens) if r.cached_tokens is not None else "-",
                w("warm-up") if r.warmup else w("measured"),
            ]
        )
    return Table(
        name="first-requests",
        caption=w("The first requests of the run"),
        columns=[w("request"), "TTFT", w("prompt tokens"), w("of them cached"), w("counts as")],
        rows=rows,
        numeric=frozenset(range(4)),
        note=w("Warm-up requests count in no other number of this report."),
    )
