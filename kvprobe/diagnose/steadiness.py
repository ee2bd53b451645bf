"""Did the load reach a steady state?

Two straight lines are fitted over the time of sending: requests in flight, and the logarithm of TTFT
(it has a long tail). A line that
surely rises or falls (95 % t-interval of the slope without zero) and by a lot over the window means
that the numbers depend on how long the run was. TTFT is taken within its class first (served from
the prefix cache or not), so that a cache that warms up in the course of a run is not taken for drift.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator

import numpy as np

from kvprobe.diagnose.issues import Issue
from kvprobe.diagnose.view import View
from kvprobe.summary.latency import NS, ttft_s
from kvprobe.summary.quantiles import Floats
from kvprobe.summary.student import student_975
from kvprobe.summary.units import figures, seconds, whole

MIN_ROWS = 30
DRIFT_SHARE = 0.5
"""Change over the window, as a share of the median, below which a slope does not matter."""
MIN_TURNS = 3.0
"""A window shorter than so many typical requests is all ramp."""
OUTRUN = 1.25
PILED_UP_SHARE = 0.25
"""Of all requests: so many in flight at the last sending mean that they piled up."""


def overloaded(view: View) -> str | None:
    """The schedule of an open loop outruns the server: requests pile up for as long as it lasts."""
    rates = view.summary.metrics.rates
    sent, done = rates.achieved_per_s, rates.completed_per_s
    if view.summary.arrival.loop != "open" or sent is None or done is None or sent < OUTRUN * done:
        return None
    _, in_flight = _in_flight(view)
    if not in_flight.size or in_flight[-1] < PILED_UP_SHARE * in_flight.size:
        return None
    return (
        f"the server does not keep up: {figures(sent)} requests/s were sent and {figures(done)}/s done, so "
        f"{whole(in_flight[-1])} had piled up when the last one was sent; TTFT is mostly waiting, and its "
        "percentiles depend on the length of the run: do not quote them"
    )


def not_steady(view: View) -> Iterator[Issue]:
    if told := overloaded(view):
        yield Issue("warning", "warning", told)
        return
    span, e2e = view.summary.window.seconds, view.summary.metrics.e2e_s.p50
    if e2e is None:  # too few requests for a median
        e2e = view.summary.metrics.e2e_s.mean
    if span is not None and e2e is not None and span < MIN_TURNS * e2e:
        yield Issue(
            "warning",
            "warning",
            f"no steady state: the window of {seconds(span)} is shorter than {MIN_TURNS:g} typical requests "
            f"({seconds(e2e)})",
        )
        return
    for name, change in (
        ("requests in flight", drift(*_in_flight(view))),
        ("TTFT", drift(*_ttft(view), logarithmic=True)),
    ):
        if change is not None and change > 0:
            yield Issue(
                "warning",
                "warning",
                f"no steady state: {name} rose by {100 * change:.0f} % over the window; "
                "percentiles depend on the length of the run",
            )
            return


def drift(times_s: Floats, values: Floats, *, logarithmic: bool = False) -> float | None:
    """Change over the window as a share of the level, where the slope surely is not 0; else null.

    `logarithmic` fits the logarithms: for values with a long tail, which would bend a plain line.
    """
    n = int(times_s.size)
    middle = float(np.median(values)) if n else 0.0
    if n < MIN_ROWS or middle <= 0.0:
        return None
    if logarithmic:
        values = np.log(np.maximum(values, middle * 1e-6))
    centred = times_s - times_s.mean()
    spread = float(np.sum(centred**2))
    if spread == 0.0:
        return None
    slope = float(np.sum(centred * values)) / spread
    residuals = values - values.mean() - slope * centred
    error = math.sqrt(float(np.sum(residuals**2)) / (n - 2) / spread)
    if abs(slope) <= student_975(n - 2) * error:
        return None
    rise = slope * float(times_s.max() - times_s.min())
    change = math.expm1(min(rise, 50.0)) if logarithmic else rise / middle
    return change if abs(change) > DRIFT_SHARE else None


def _in_flight(view: View) -> tuple[Floats, Floats]:
    """Requests in flight just after each one was sent."""
    starts = sorted(r.sent_ns for r in view.run.records if r.sent_ns is not None)
    ends = sorted(e for r in view.run.records if r.sent_ns is not None and (e := r.end_ns or r.last_token_ns))
    at = [r.sent_ns for r in view.ok if r.sent_ns is not None]
    counts = [bisect_right(starts, t) - bisect_right(ends, t) for t in at]
    return np.asarray(at, dtype=np.float64) * NS, np.asarray(counts, dtype=np.float64)


def _ttft(view: View) -> tuple[Floats, Floats]:
    """TTFT over the time of sending, each class brought to the median of all."""
    rows = [(r, v) for r in view.ok if (v := ttft_s(r)) is not None]
    times = np.array([(r.sent_ns or 0) * NS for r, _ in rows], dtype=np.float64)
    values = np.array([v for _, v in rows], dtype=np.float64)
    cached = np.array(
        [bool(r.cached_tokens and r.prompt_tokens and 2 * r.cached_tokens > r.prompt_tokens) for r, _ in rows]
    )
    if values.size:
        middle = float(np.median(values))
        for kind in (cached, ~cached):
            if kind.any() and float(np.median(values[kind])) > 0.0:
                values[kind] *= middle / float(np.median(values[kind]))
    return times, values
