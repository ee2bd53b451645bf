"""What a run's charts are drawn from: series in seconds since the load began, and waits taken apart."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.rundata import RunData
from kvprobe.evidence.samples import Sample
from kvprobe.report.run_gaps import chunk_ends
from kvprobe.summary import activity
from kvprobe.summary.latency import NS
from kvprobe.summary.latency import ttft_s as ttft_of
from kvprobe.summary.rates import CUT

Points = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Span:
    """The load on the sampler's clock, ns."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) * NS


def span_of(run: RunData) -> Span | None:
    """From the load's start mark to its end mark; from the rows where a mark is missing."""
    start = activity.mark_ns(run.samples, activity.LOAD_START)
    end = activity.mark_ns(run.samples, activity.LOAD_END)
    sent = [r.sent_ns for r in run.records if r.sent_ns is not None]
    ends = [t for r in run.records if (t := r.end_ns or r.last_token_ns) is not None]
    first = start if start is not None else min(sent, default=None)
    last = end if end is not None else max(ends, default=None)
    return Span(first, last) if first is not None and last is not None and last > first else None


def gauge(run: RunData, metric: str, span: Span) -> Points:
    """A gauge while the load ran; replicas at one instant averaged."""
    found = activity.series(run.samples, metric, span.start_ns, span.end_ns)
    return [((t - span.start_ns) * NS, v) for t, v in found]


def total(run: RunData, metric: str, span: Span) -> Points:
    """A gauge or counter, label sets summed, while the load ran."""
    at: dict[int, float] = defaultdict(float)
    for sample, value in activity.readings(run.samples, metric):
        if span.start_ns <= sample.t_ns <= span.end_ns:
            at[sample.t_ns] += value
    return [((t - span.start_ns) * NS, v) for t, v in sorted(at.items())]


def increments(points: Points) -> Points:
    """A counter as growth since the reading before; a fall is a restart and counts from 0."""
    out = []
    for (_, before), (t, after) in pairwise(points):
        out.append((t, after if after < before else after - before))
    return out


@dataclass(frozen=True, slots=True)
class ServerWait:
    """One of the server's own histograms over the load: its mean (exact: sum over count) and between
    which bucket borders its median and p95 lie; seconds."""

    count: float
    mean_s: float
    p50: tuple[float, float | None] | None
    p95: tuple[float, float | None] | None


def server_wait(run: RunData, stem: str) -> ServerWait | None:
    """`engine.queue_seconds` and the like; null where the server does not export it or nothing came."""
    count = activity.increase(run.samples, f"{stem}_count")
    summed = activity.increase(run.samples, f"{stem}_sum")
    if count is None or summed is None or count.value <= 0:
        return None
    buckets = _buckets(run.samples, f"{stem}_bucket")
    return ServerWait(
        count=count.value,
        mean_s=summed.value / count.value,
        p50=_between(buckets, 0.50),
        p95=_between(buckets, 0.95),
    )


def _buckets(samples: Sequence[Sample], metric: str) -> list[tuple[float, float]]:
    """(upper border, growth over the load), cumulative, in order of the borders."""
    by_border: dict[float, list[Sample]] = defaultdict(list)
    marks = [s for s in samples if s.metric in (activity.LOAD_START, activity.LOAD_END)]
    for s in samples:
        if s.metric == metric and "le" in s.labels:
            try:
                by_border[float(s.labels["le"])].append(s)
            except ValueError:
                continue
    out = []
    for border, kept in sorted(by_border.items()):
        grown = activity.increase([*marks, *kept], metric)
        if grown is not None:
            out.append((border, grown.value))
    return out


def _between(buckets: list[tuple[float, float]], q: float) -> tuple[float, float | None] | None:
    """The borders between which the q-quantile lies; null above the last finite one."""
    if not buckets or buckets[-1][1] <= 0:
        return None
    wanted, below = q * buckets[-1][1], 0.0
    for border, grown in buckets:
        if grown >= wanted:
            return below, border if math.isfinite(border) else None
        below = border
    return None


def waits(records: Sequence[RequestRecord], span: Span) -> tuple[Points, Points]:
    """(start, TTFT) of measured requests: those with nothing from the prefix cache, and those with."""
    cold: Points = []
    warm: Points = []
    for r in sorted(
        (r for r in records if not r.warmup and r.sent_ns is not None), key=lambda r: r.sent_ns or 0
    ):
        value = ttft_of(r)
        if value is not None:
            target = warm if r.cached_tokens else cold
            target.append((((r.sent_ns or 0) - span.start_ns) * NS, value))
    return cold, warm


def request_rates(
    records: Sequence[RequestRecord], span: Span, pieces: int
) -> list[tuple[float, int, int, int]]:
    """(middle of the piece, sent, ended well, failed) in equal pieces of the load."""
    width = span.seconds / pieces
    counted = [[0, 0, 0] for _ in range(pieces)]

    def put(t_ns: int | None, kind: int) -> None:
        if t_ns is not None:
            i = int((t_ns - span.start_ns) * NS / width)
            if 0 <= i < pieces:
                counted[i][kind] += 1

    for r in records:
        put(r.sent_ns, 0)
        if r.failure != CUT:
            put(r.end_ns or r.last_token_ns, 2 if r.failure is not None else 1)
    return [((i + 0.5) * width, *c) for i, c in enumerate(counted)]  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class Interval:
    """A value with its 95 % interval, or why there is none."""

    value: float | None
    lo: float | None = None
    hi: float | None = None
    reason: str | None = None


_BATCHES = 10
_T_975_9 = 2.262
"""Student's t, 97.5 %, 9 degrees of freedom."""


def output_rate(records: Sequence[RequestRecord], start_ns: int, end_ns: int, value: float) -> Interval:
    """Output tokens a second by the method of batch means: ten equal pieces of the load, whose rates
    are taken as independent (Law, Simulation Modeling and Analysis, 9.5.3)."""
    if (end_ns - start_ns) * NS < _BATCHES:
        return Interval(value, reason="n too small: an interval needs 10 s of load")
    kept = [r for r in records if r.failure is None and r.first_token_ns and r.completion_tokens]
    lengths = np.array([g for r in kept for g in r.gaps_ns], dtype=np.int64)
    firsts = np.array([r.first_token_ns or 0 for r in kept], dtype=np.int64)
    each = np.array([(r.completion_tokens or 0) / (1 + len(r.gaps_ns)) for r in kept])
    at = np.concatenate((firsts, chunk_ends(kept, lengths)))
    tokens = np.concatenate((each, np.repeat(each, [len(r.gaps_ns) for r in kept])))
    inside = (at >= start_ns) & (at < end_ns)
    index = (at[inside] - start_ns) * _BATCHES // (end_ns - start_ns)
    sums = np.bincount(index.astype(np.int64), weights=tokens[inside], minlength=_BATCHES)
    means = sums / ((end_ns - start_ns) * NS / _BATCHES)
    half = _T_975_9 * float(means.std(ddof=1)) / math.sqrt(_BATCHES)
    return Interval(value, max(0.0, value - half), value + half)


def share(hits: int, n: int) -> Interval:
    """A share with Wilson's 95 % interval (Wilson 1927); null without a case."""
    if n == 0:
        return Interval(None, reason="no request was sent")
    z, p = 1.959964, hits / n
    middle, scale = p + z * z / (2 * n), 1 + z * z / n
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(p, max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale))


_GROUPS = 400


def hit_share(pairs: Sequence[tuple[int, int]], value: float | None) -> Interval:
    """A token-weighted hit rate; `pairs` are (cached, prompt tokens) of requests. A seeded bootstrap over
    requests, 1,000 draws; needs 20."""
    if value is None or len(pairs) < 20:
        return Interval(value, reason=f"n too small: {len(pairs)}, an interval needs 20")
    data = np.asarray(pairs, dtype=np.float64)
    rng = np.random.default_rng(20_261_130)
    if len(data) > _GROUPS:
        # Sums of random groups instead of single requests: the same interval in a fraction of the time.
        data = np.array([part.sum(axis=0) for part in np.array_split(rng.permutation(data), _GROUPS)])
    draws = []
    for _ in range(1_000):
        cached, prompt = data[rng.integers(0, len(data), len(data))].sum(axis=0)
        draws.append(cached / prompt if prompt else 0.0)
    lo, hi = np.quantile(draws, [0.025, 0.975])
    return Interval(value, min(float(lo), value), max(float(hi), value))
