"""The last looks at one page: rates and percentiles out of what grew between them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from itertools import pairwise

from kvprobe.observe.aggregate import (
    Buckets,
    Growth,
    Quantile,
    bucket_growth,
    buckets_of,
    growth,
    merged,
    quantile,
)
from kvprobe.observe.dialects import Page

SPAN_S = 30.0
"""How far back the looks reach that rates are taken over."""
MIN_LOOKS = 4
"""So many are kept even where the interval is longer than the span."""
_FALLING = (
    "engine.generation_tokens_total",
    "engine.prompt_tokens_total",
    "engine.prompt_tokens_computed_total",
    "engine.prefix_queries_tokens_total",
)
"""Counters whose fall tells a restart where the page has no start time."""
_HISTOGRAMS = ("engine.ttft_seconds", "engine.itl_seconds", "engine.queue_seconds")
_START = "engine.process_start_time_s"


class Window:
    """Pages in the order in which they came; failed looks leave a hole."""

    def __init__(self, span_s: float = SPAN_S) -> None:
        self._span_ns = round(span_s * 1e9)
        self._looks: deque[tuple[int, Page]] = deque()
        self._buckets: deque[dict[str, Buckets]] = deque()

    def add(self, t_ns: int, page: Page) -> None:
        """Take in a page that was read at `t_ns` (CLOCK_MONOTONIC)."""
        self._looks.append((t_ns, page))
        self._buckets.append({name: buckets_of(page.readings, name) for name in _HISTOGRAMS})
        while len(self._looks) > MIN_LOOKS and t_ns - self._looks[0][0] > self._span_ns:
            self._looks.popleft()
            self._buckets.popleft()

    def __len__(self) -> int:
        return len(self._looks)

    @property
    def last(self) -> Page | None:
        return self._looks[-1][1] if self._looks else None

    @property
    def span_s(self) -> float:
        """From the first to the last look."""
        return (self._looks[-1][0] - self._looks[0][0]) / 1e9 if self._looks else 0.0

    def values(self, metric: str) -> list[float]:
        """The readings of a series without labels, the oldest first; what says NaN is left out."""
        return [value for _, value in self._points(lambda page: _plain(page, metric))]

    def growth(self, metric: str) -> tuple[Growth, float] | None:
        """(growth of a counter over the window, seconds between its first and last reading); null with
        fewer than two readings. Engines of one page are taken one by one: of a sum it cannot be told how
        much of a fall is the restart of one and how much the growth of the others."""
        points = self._points(lambda page: _plain(page, metric))
        if len(points) < 2:
            return None
        seconds = (points[-1][0] - points[0][0]) / 1e9
        engines = sorted({e for _, page in self._looks for e in engines_of(page, metric)})
        if len(engines) > 1:
            parts = [growth([v for _, v in self._points(_of_engine(metric, e))]) for e in engines]
            known = [part for part in parts if part is not None]
            if known:
                whole = Growth(sum(p.value for p in known), max(p.resets for p in known))
                return whole, seconds
        found = growth([value for _, value in points])
        return (found, seconds) if found is not None and seconds > 0 else None

    def halves(self, metric: str) -> tuple[float, float] | None:
        """Growth per second of a counter in the older and in the newer half of the window."""
        points = self._points(lambda page: _plain(page, metric))
        if len(points) < MIN_LOOKS:
            return None
        middle = len(points) // 2
        older, newer = points[: middle + 1], points[middle:]
        rates = [_per_second(half) for half in (older, newer)]
        return None if rates[0] is None or rates[1] is None else (rates[0], rates[1])

    def quantile(self, metric: str, q: float) -> tuple[Quantile | None, float]:
        """(q-quantile of what a histogram took in during the window, how many observations)."""
        steps = []
        several = any(page.parts for _, page in self._looks)
        for before, after in pairwise(self._buckets):
            step = bucket_growth(before[metric], after[metric])
            # Of several engines' sum, a fall does not tell what the others took in: this step is left out.
            if step and not (several and _fell(before[metric], after[metric])):
                steps.append(step)
        whole = merged(steps)
        return quantile(whole, q), whole.get(math.inf, 0.0)

    def restarted_s_ago(self) -> float | None:
        """Seconds since the last look that found the server begun anew; null when none did."""
        found = None
        for (_, before), (t_ns, after) in pairwise(self._looks):
            if _restarted(before, after):
                found = t_ns
        return None if found is None else (self._looks[-1][0] - found) / 1e9

    def _points(self, read: Callable[[Page], float | None]) -> list[tuple[int, float]]:
        found = ((t_ns, read(page)) for t_ns, page in self._looks)
        return [(t_ns, value) for t_ns, value in found if value is not None]


def engines_of(page: Page, metric: str) -> list[str]:
    """The engines that stand apart on a page for this series, empty where there is one."""
    return [labels["engine"] for name, labels, _ in page.parts if name == metric and len(labels) == 1]


def _plain(page: Page, metric: str) -> float | None:
    for name, labels, value in page.readings:
        if name == metric and not labels:
            return value if math.isfinite(value) else None
    return None


def _of_engine(metric: str, engine: str) -> Callable[[Page], float | None]:
    def read(page: Page) -> float | None:
        for name, labels, value in page.parts:
            if name == metric and labels == {"engine": engine}:
                return value if math.isfinite(value) else None
        return None

    return read


def _per_second(points: list[tuple[int, float]]) -> float | None:
    found = growth([value for _, value in points])
    seconds = (points[-1][0] - points[0][0]) / 1e9
    return found.value / seconds if found is not None and seconds > 0 else None


def _fell(before: Buckets, after: Buckets) -> bool:
    return any(after.get(edge, math.inf) < count for edge, count in before.items())


def _restarted(before: Page, after: Page) -> bool:
    started, started_now = _plain(before, _START), _plain(after, _START)
    if started is not None and started_now is not None:
        return abs(started_now - started) > 1.0
    for metric in _FALLING:
        was, now = _plain(before, metric), _plain(after, metric)
        if was is not None and now is not None and now < was:
            return True
        for engine in engines_of(after, metric):
            read = _of_engine(metric, engine)
            was, now = read(before), read(after)
            if was is not None and now is not None and now < was:
                return True
    return False
