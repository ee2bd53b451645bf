"""What the server held over time: requests in flight, KV use, prefix hits, memory.

Counters are read as increases between two instants, so that a server that restarted in between does
not make a rate negative. A series that was never exported stays null.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec

from kvprobe.evidence.records import OpenedRequest, RequestRecord
from kvprobe.evidence.samples import Sample

RUNNING = "engine.requests_running"
RUNNING_HIGH_WATER = "engine.requests_running_max"
KV_USAGE = "engine.kv_usage_ratio"
PREFIX_QUERIES = "engine.prefix_queries_tokens_total"
PREFIX_HITS = "engine.prefix_hits_tokens_total"
LOAD_START, LOAD_END = "mark.load_start", "mark.load_end"

Point = tuple[int, float]
"""(t_ns, value)"""


class MaxActive(msgspec.Struct, kw_only=True):
    """Most requests in flight at once, seen from both ends."""

    client: int | None
    """From the overlap of the records: exact, queueing at the server included."""
    server: float | None = None
    server_source: str | None = None
    """`high_water` (the server's own mark) or `sampled` (largest reading: a lower bound)."""
    server_reason: str | None = None
    """Why `server` is null."""


class Increase(msgspec.Struct, frozen=True, kw_only=True):
    """Growth of a counter between two instants, summed over its label sets."""

    value: float
    resets: int = 0
    readings: int = 0


def overlap_max(
    records: Sequence[RequestRecord], opened: Sequence[OpenedRequest], until_ns: int | None
) -> int | None:
    """Most requests between sent and end at one instant; a sweep over the exact instants.

    A request that was opened and never ended counts until `until_ns`. A request that ends in the
    nanosecond in which another starts does not overlap it. Null without a request.
    """
    done = {r.request_id for r in records}
    spans = [(r.sent_ns, r.end_ns or r.last_token_ns or until_ns) for r in records if r.sent_ns is not None]
    spans += [(o.sent_ns, until_ns) for o in opened if o.request_id not in done]
    # (t, -1) sorts before (t, +1): ends come first.
    edges = sorted(
        edge
        for start, end in spans
        for edge in ((start, 1), (max(start, end if end is not None else start), -1))
    )
    if not edges:
        return None
    active = most = 0
    for _, step in edges:
        active += step
        most = max(most, active)
    # Requests of zero length (sent and cut in one nanosecond) still were one request in flight.
    return max(most, 1)


def readings(samples: Iterable[Sample], metric: str) -> Iterator[tuple[Sample, float]]:
    """The readings of one metric that hold a number (a page may say NaN; a failed reading is null)."""
    for s in samples:
        if s.metric == metric and s.value is not None and math.isfinite(s.value):
            yield s, s.value


def series(
    samples: Iterable[Sample], metric: str, start_ns: int | None = None, end_ns: int | None = None
) -> list[Point]:
    """A gauge over time; several label sets (replicas, engines) at one instant are averaged."""
    at: dict[int, list[float]] = defaultdict(list)
    for s, value in readings(samples, metric):
        if (start_ns is None or s.t_ns >= start_ns) and (end_ns is None or s.t_ns <= end_ns):
            at[s.t_ns].append(value)
    return [(t, sum(v) / len(v)) for t, v in sorted(at.items())]


def why_absent(samples: Iterable[Sample]) -> str:
    """Why a series of the server has no reading: it exports none, or its page was never read."""
    read = any(s.metric == "scrape.ok" and s.value == 1.0 for s in samples)
    return "not exported" if read else "no server metrics"


def largest(samples: Iterable[Sample], metric: str) -> float | None:
    """Largest reading of any label set; null when there is none."""
    return max((value for _, value in readings(samples, metric)), default=None)


def mark_ns(samples: Iterable[Sample], mark: str) -> int | None:
    """When the sampler set a mark; null when it did not."""
    return next((s.t_ns for s in samples if s.metric == mark), None)


def increase(samples: Sequence[Sample], metric: str) -> Increase | None:
    """Growth of a counter from the start mark of the load to its end mark (else first to last reading).

    The reading nearest to a mark is the one that the mark took. A fall means that the server
    restarted and counts from 0. Engines of one page are taken one by one where they stand apart
    (`engines.…`): of a sum it cannot be told how much of a fall is one's restart and how much the others'
    growth. Null when the counter has fewer than two readings.
    """
    start, end = mark_ns(samples, LOAD_START), mark_ns(samples, LOAD_END)
    wholes: dict[_Labels, list[Point]] = defaultdict(list)
    parts: dict[_Labels, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    of_engines = metric.replace("engine.", "engines.", 1)
    for s in samples:
        if s.metric not in (metric, of_engines) or s.value is None or not math.isfinite(s.value):
            continue
        if s.metric == metric:
            wholes[tuple(sorted(s.labels.items()))].append((s.t_ns, s.value))
        else:
            kept = tuple(sorted((k, v) for k, v in s.labels.items() if k != "engine"))
            parts[kept][s.t_ns][s.labels.get("engine", "")] = s.value
    total, resets, most = 0.0, 0, 0
    for labels, points in wholes.items():
        kept_points = _between_marks(sorted(points), start, end)
        most = max(most, len(kept_points))
        for before, after in pairwise(kept_points):
            grown, began_anew = _step(before, after, parts.get(labels, {}))
            total, resets = total + grown, resets + began_anew
    return Increase(value=total, resets=resets, readings=most) if most >= 2 else None


_Labels = tuple[tuple[str, str], ...]


def _step(before: Point, after: Point, parts: Mapping[int, Mapping[str, float]]) -> tuple[float, int]:
    """(growth between two readings, whether something began anew)"""
    was, now = parts.get(before[0], {}), parts.get(after[0], {})
    if was and was.keys() == now.keys():
        grown = sum(now[e] if now[e] < was[e] else now[e] - was[e] for e in now)
        return grown, int(any(now[e] < was[e] for e in now))
    if after[1] >= before[1]:
        return after[1] - before[1], 0
    # It fell because an engine left the page: what the others grew by is not known, so nothing is added.
    return (0.0 if was or now else after[1]), 1


def _between_marks(points: list[Point], start: int | None, end: int | None) -> list[Point]:
    """The readings from the one nearest to `start` to the one nearest to `end`."""
    times = [t for t, _ in points]
    first = 0 if start is None else min(range(len(times)), key=lambda i: abs(times[i] - start))
    last = len(times) - 1 if end is None else min(range(len(times)), key=lambda i: abs(times[i] - end))
    return points[first : last + 1]


def max_active(
    records: Sequence[RequestRecord],
    opened: Sequence[OpenedRequest],
    samples: Sequence[Sample],
    until_ns: int | None,
) -> MaxActive:
    """Client overlap and the server's own mark, side by side."""
    out = MaxActive(client=overlap_max(records, opened, until_ns))
    mark = _risen_to(samples, RUNNING_HIGH_WATER)
    sampled = [
        v for _, v in series(samples, RUNNING, mark_ns(samples, LOAD_START), mark_ns(samples, LOAD_END))
    ]
    if mark is not None:
        out.server, out.server_source = mark, "high_water"
    elif sampled:
        out.server, out.server_source = max(sampled), "sampled"
    else:
        out.server_reason = why_absent(samples)
    return out


def _risen_to(samples: Sequence[Sample], metric: str) -> float | None:
    """Highest value to which a high-water mark rose while it was watched.

    A server keeps its mark for as long as it lives: one that did not rise is of an earlier load, and
    says only that this one stayed at or below it. Null then.
    """
    points = sorted((s.t_ns, value) for s, value in readings(samples, metric))
    return max((after for (_, before), (_, after) in pairwise(points) if after > before), default=None)
