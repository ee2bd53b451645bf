"""What is known while the load goes on: the spool files of the run, read as they grow.

The parent reads what the workers and the sampler have written for keeps, so nothing new crosses the
pipes. Instants of workers on other machines are never compared with ours: a row counts from the moment
at which it was read here, and how long a request has waited is said by its worker, on one clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvprobe.evidence.records import OpenedRequest, RequestRecord, Waiting, WaitingRequest
from kvprobe.evidence.samples import Sample
from kvprobe.evidence.spool import Item
from kvprobe.evidence.tail import SpoolTail
from kvprobe.gates.expressions import Gate
from kvprobe.gates.gauges import SERIES, combine
from kvprobe.gates.measure import values_of
from kvprobe.gates.metrics import FIRST_TOKEN_WAITS, WHOLE_WAITS

WINDOW_S = 10.0
"""Rows that ended within this time are judged ..."""
WINDOW_ROWS = 20
"""... or the last so many, where fewer have ended within it (slow targets)."""
MIN_ROWS = 5
GAUGE_AGE_S = 5.0
WAITS_AGE_S = 3.0
"""A worker that has said nothing of waits for so long says nothing about this moment."""
_FROM_INTENDED = frozenset({"response_ttft", "response_latency"})
NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Moment:
    """A value, the rows or readings that it stands on, and how many of them still wait: these count
    as long as they have waited, so the value is then a lower bound. Null while too little is known."""

    value: float | None
    n: int
    waiting: int = 0


@dataclass(slots=True)
class Spent:
    """Tokens of the requests so far: counted by the server, or as asked where it did not say."""

    input_tokens: int = 0
    output_tokens: int = 0
    finished: int = 0


@dataclass(slots=True)
class Live:
    """Rows and gauges of the moment."""

    folder: Path
    spent: Spent = field(default_factory=Spent)
    _tail: SpoolTail = field(init=False)
    _rows: deque[tuple[float, RequestRecord]] = field(default_factory=deque)
    _open: set[str] = field(default_factory=set)
    _waits: dict[str, tuple[float, Waiting]] = field(default_factory=dict)
    _moved_s: float | None = None
    """When a request last ended, or the first one was sent."""
    _gauges: dict[str, deque[tuple[float, Sample]]] = field(
        default_factory=lambda: {metric: deque(maxlen=256) for metric in SERIES}
    )

    def __post_init__(self) -> None:
        self._tail = SpoolTail(self.folder)

    def read(self, now_s: float) -> None:
        """Take in what was written since the last time. Never raises for what stands in the files."""
        for item in self._tail.items():
            self._take(item, now_s)
        while len(self._rows) > WINDOW_ROWS and self._rows[0][0] < now_s - WINDOW_S:
            self._rows.popleft()

    def _take(self, item: Item, now_s: float) -> None:
        if isinstance(item, RequestRecord):
            self._open.discard(item.request_id)
            self._moved_s = now_s
            if item.failure != "cancelled_at_end":
                self._rows.append((now_s, item))
            self._count(item)
        elif isinstance(item, OpenedRequest):
            self._open.add(item.request_id)
            self._moved_s = self._moved_s if self._moved_s is not None else now_s
        elif isinstance(item, Waiting):
            self._waits[item.worker] = (now_s, item)
        elif isinstance(item, Sample):
            for metric, series in SERIES.items():
                if item.metric == series:
                    self._gauges[metric].append((now_s, item))

    def _count(self, row: RequestRecord) -> None:
        if row.sent_ns is None:
            return
        self.spent.finished += 1
        prompt, completion = row.prompt_tokens, row.completion_tokens
        self.spent.input_tokens += prompt if prompt is not None else row.asked_prompt_tokens or 0
        if completion is None:  # a failed stream has delivered at least its chunks
            completion = row.content_chunks if row.failure else row.asked_completion_tokens or 0
        self.spent.output_tokens += completion

    @property
    def in_flight(self) -> int:
        """Requests that were sent and have not ended."""
        return len(self._open)

    def value(self, gate: Gate, now_s: float) -> Moment:
        """The value of the moment."""
        if gate.of.form == "gauge":
            return self._gauge(gate.metric, now_s)
        rows = [r for _, r in self._rows]
        if gate.metric == "error_rate":
            if len(rows) < MIN_ROWS:
                return Moment(None, len(rows))
            return Moment(sum(1 for r in rows if r.failure is not None) / len(rows), len(rows))
        return self._latency(gate, rows, now_s)

    def _latency(self, gate: Gate, rows: list[RequestRecord], now_s: float) -> Moment:
        """Over the rows, and the requests that still wait and have exceeded the limit by now."""
        waits = list(self._ages_s(gate, now_s))
        if waits and self._stands_still(len(waits), now_s):
            return Moment(_of(gate, waits), len(waits), len(waits))
        found = values_of(gate.metric, [r for r in rows if not r.warmup])
        values = [*found.seen, *found.cut, *waits]
        if len(values) < MIN_ROWS:
            return Moment(None, len(values), len(waits))
        return Moment(_of(gate, values), len(values), len(waits))

    def _ages_s(self, gate: Gate, now_s: float) -> Iterator[float]:
        for told_s, told in self._waits.values():
            if told_s < now_s - WAITS_AGE_S:
                continue
            for request in told.requests:
                age_s = _age_s(gate.metric, request, told.t_ns)
                under_way = request.request_id in self._open and not request.warmup
                if under_way and age_s is not None and age_s > gate.limit:
                    yield age_s

    def _stands_still(self, waits: int, now_s: float) -> bool:
        """Whether nothing has ended for the whole window, and whatever is under way waits for too long:
        then the waits are all that there is, however few, and older rows tell of another time."""
        moved_s = self._moved_s
        return waits == len(self._open) and moved_s is not None and now_s - moved_s >= WINDOW_S

    def _gauge(self, metric: str, now_s: float) -> Moment:
        recent = [s for at_s, s in self._gauges[metric] if at_s >= now_s - GAUGE_AGE_S]
        found = combine(metric, recent)
        return Moment(found[max(found)], 1) if found else Moment(None, 0)


def _age_s(metric: str, request: WaitingRequest, t_ns: int) -> float | None:
    """How long it has waited so far; null where this latency is known already, or not bounded by it."""
    if metric not in WHOLE_WAITS and (request.first_token or metric not in FIRST_TOKEN_WAITS):
        return None
    return (t_ns - (request.intended_ns if metric in _FROM_INTENDED else request.sent_ns)) / NS


def _of(gate: Gate, values: list[float]) -> float:
    """An estimate: no interval, and no promise that so few values carry the percentile."""
    match gate.statistic:
        case "mean":
            return float(np.mean(values))
        case "max":
            return max(values)
        case "min":
            return min(values)
    return float(np.quantile(values, gate.q or 0.0))
