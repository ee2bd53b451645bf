"""What is known while the load goes on: the spool files of the run, read as they grow.

The parent reads what the workers and the sampler have written for keeps, so nothing new crosses the
pipes and a worker does nothing more for an abort rule. Instants of workers on other machines are never
compared with ours: a row counts from the moment at which it was read here.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvprobe.evidence.records import OpenedRequest, RequestRecord
from kvprobe.evidence.samples import Sample
from kvprobe.evidence.spool import Item
from kvprobe.evidence.tail import SpoolTail
from kvprobe.gates.expressions import Gate
from kvprobe.gates.gauges import SERIES, combine
from kvprobe.gates.measure import values_of

WINDOW_S = 10.0
"""Rows that ended within this time are judged ..."""
WINDOW_ROWS = 20
"""... or the last so many, where fewer have ended within it (slow targets)."""
MIN_ROWS = 5
GAUGE_AGE_S = 5.0


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
            if item.failure != "cancelled_at_end":
                self._rows.append((now_s, item))
            self._count(item)
        elif isinstance(item, OpenedRequest):
            self._open.add(item.request_id)
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

    def value(self, gate: Gate, now_s: float) -> tuple[float | None, int]:
        """The value of the moment and how many rows or readings it stands on; null while too few do."""
        if gate.of.form == "gauge":
            return self._gauge(gate.metric, now_s)
        rows = [r for _, r in self._rows]
        if len(rows) < MIN_ROWS:
            return None, len(rows)
        if gate.metric == "error_rate":
            return sum(1 for r in rows if r.failure is not None) / len(rows), len(rows)
        measured = [r for r in rows if not r.warmup]
        found = values_of(gate.metric, measured)
        values = [*found.seen, *found.cut]
        if len(values) < MIN_ROWS:
            return None, len(values)
        return _of(gate, values), len(values)

    def _gauge(self, metric: str, now_s: float) -> tuple[float | None, int]:
        recent = [s for at_s, s in self._gauges[metric] if at_s >= now_s - GAUGE_AGE_S]
        found = combine(metric, recent)
        return (found[max(found)], 1) if found else (None, 0)


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
