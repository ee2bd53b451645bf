"""Does the backlog grow? The requests that the schedule wanted and the server has not done, over time.

Percentiles of an overloaded server say how long the run was, and little else: what tells is whether
the number of requests that wait or run goes on rising. It is averaged over blocks of the window, so
that neighbouring instants, which are nearly the same queue, do not count as many observations (batch
means; Law & Kelton, Simulation Modeling and Analysis, 9.5.3), and a straight line is fitted to them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvprobe.evidence.records import RequestRecord
from kvprobe.summary.latency import NS
from kvprobe.summary.quantiles import Floats
from kvprobe.summary.student import student_975

BLOCKS = 8
MIN_REQUESTS = 8
POINTS_PER_BLOCK = 20
MIN_TURNS = 3.0
RISES = 1.1
MIN_WAITING_READINGS = 6


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """Growth of the number of requests that are wanted and not done, requests a second."""

    growth_per_s: float
    lo_per_s: float
    hi_per_s: float
    """95 % t-interval of the slope."""
    seconds: float
    """Window that the line was fitted to."""
    at_end: float
    """Mean backlog of the last block, in requests."""
    turns: float | None = None
    """Window over the median time from wanted to done: how often the server's work turned over."""
    served_rises: bool = False
    """More was done in the second half of the window than in the first."""
    waiting_lo_per_s: float | None = None
    """Growth of the server's own waiting queue, lower end of the interval; null where it shows none."""
    offered_per_s: float | None = None
    """What the schedule wanted in the window: random arrivals are as often below their rate as above it."""
    done_per_s: float | None = None
    done_hi_per_s: float | None = None
    """Requests done, and the upper end of a 95 % t-interval over the blocks. A queue can rise for a while
    below a server's capacity, by a bunch of arrivals or of long requests; what is done tells them apart."""

    @property
    def settling(self) -> bool:
        """Whether the rise can be that of a load that has not reached its level yet.

        At the start of a step the requests in flight rise to rate x time in system, whatever the
        server could do. It is over after a few turns, or when what is done no longer rises, or is no
        question when requests pile up in front of the server's own queue.
        """
        if self.waiting_lo_per_s is not None and self.waiting_lo_per_s > 0:
            return False
        if self.done_per_s == 0.0:
            return True  # each takes longer than the window: what the server could do is not seen yet
        return self.served_rises and (self.turns is None or self.turns < MIN_TURNS)

    @property
    def rise(self) -> float:
        """Requests by which it rose over the window."""
        return self.growth_per_s * self.seconds


def backlog(
    records: Sequence[RequestRecord],
    start_ns: int,
    end_ns: int,
    waiting: Sequence[tuple[int, float]] = (),
) -> Backlog | None:
    """The line over [start, end]; null for too few requests or no time.

    A request counts from the instant the schedule wanted it until it ended, sent or not, and a
    failed one no longer than it took to fail. `waiting` are readings (t_ns, requests) of the server's
    queue.
    """
    wanted = np.sort(np.array([r.intended_ns for r in records], dtype=np.int64))
    inside = int(np.count_nonzero((wanted >= start_ns) & (wanted <= end_ns)))
    if inside < MIN_REQUESTS or end_ns <= start_ns:
        return None
    ends = [r.end_ns or r.last_token_ns for r in records]
    done = np.sort(np.array([e for e in ends if e is not None], dtype=np.int64))
    edges = np.linspace(start_ns, end_ns, BLOCKS * POINTS_PER_BLOCK + 1)
    middles = ((edges[:-1] + edges[1:]) / 2).astype(np.int64)
    counts = np.searchsorted(wanted, middles, "right") - np.searchsorted(done, middles, "right")
    means = counts.reshape(BLOCKS, POINTS_PER_BLOCK).mean(axis=1)
    times = middles.reshape(BLOCKS, POINTS_PER_BLOCK).mean(axis=1) * NS
    slope, half = _line(times - times.mean(), means)
    finished = np.diff(np.searchsorted(done, edges[::POINTS_PER_BLOCK], "right"))
    rates = finished * BLOCKS / ((end_ns - start_ns) * NS)
    spread = float(rates.std(ddof=1)) / math.sqrt(BLOCKS)
    return Backlog(
        growth_per_s=slope,
        lo_per_s=slope - half,
        hi_per_s=slope + half,
        seconds=(end_ns - start_ns) * NS,
        at_end=float(means[-1]),
        turns=_turns(records, start_ns, end_ns),
        served_rises=_served_rises(done, start_ns, end_ns),
        waiting_lo_per_s=_waiting_lo(waiting, start_ns, end_ns),
        offered_per_s=inside / ((end_ns - start_ns) * NS),
        done_per_s=float(rates.mean()),
        done_hi_per_s=float(rates.mean()) + student_975(BLOCKS - 1) * spread,
    )


def _turns(records: Sequence[RequestRecord], start_ns: int, end_ns: int) -> float | None:
    spent = [
        e - r.intended_ns for r in records if (e := r.end_ns or r.last_token_ns) and start_ns <= e <= end_ns
    ]
    middle = float(np.median(spent)) if spent else 0.0
    return (end_ns - start_ns) / middle if middle > 0 else None


def _served_rises(done: NDArray[np.int64], start_ns: int, end_ns: int) -> bool:
    half = (start_ns + end_ns) // 2
    first, second = (
        int(np.searchsorted(done, b, "right") - np.searchsorted(done, a, "left"))
        for a, b in ((start_ns, half), (half + 1, end_ns))
    )
    return second > RISES * first


def _waiting_lo(waiting: Sequence[tuple[int, float]], start_ns: int, end_ns: int) -> float | None:
    inside = [(t, v) for t, v in waiting if start_ns <= t <= end_ns]
    if len(inside) < MIN_WAITING_READINGS:
        return None
    times = np.array([t * NS for t, _ in inside], dtype=np.float64)
    slope, half = _line(times - times.mean(), np.array([v for _, v in inside], dtype=np.float64))
    return slope - half


def _line(times_s: Floats, values: Floats) -> tuple[float, float]:
    """Slope by least squares, and the half-width of its 95 % interval."""
    spread = float(np.sum(times_s**2))
    slope = float(np.sum(times_s * values)) / spread
    residuals = values - values.mean() - slope * times_s
    freedom = values.size - 2
    error = math.sqrt(float(np.sum(residuals**2)) / freedom / spread)
    return slope, student_975(freedom) * error
