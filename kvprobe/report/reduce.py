"""Long series made short for drawing, with every peak kept.

An hour at two readings a second is 7,200 points, a screen has some 700 columns. Time is cut into equal
spans; of each, the smallest and the largest reading stay, in the order in which they came, and so do the
first and the last of all. Nothing is averaged: a peak of one reading is drawn with its true value.
"""

from __future__ import annotations

from collections.abc import Sequence

Point = tuple[float, float]
SPANS = 240
"""Of a drawn series: at most two points each."""


def peaks(points: Sequence[Point], spans: int = SPANS) -> list[Point]:
    """At most `2 * spans + 2` of `points` (sorted by time); all of them when they are no more."""
    if len(points) <= 2 * spans + 2:
        return list(points)
    first, last = points[0][0], points[-1][0]
    if last <= first:
        return [min(points, key=lambda p: p[1]), max(points, key=lambda p: p[1])]
    kept: set[int] = {0, len(points) - 1}
    low: dict[int, int] = {}
    high: dict[int, int] = {}
    for i, (t, value) in enumerate(points):
        span = min(int((t - first) / (last - first) * spans), spans - 1)
        if span not in low or value < points[low[span]][1]:
            low[span] = i
        if span not in high or value > points[high[span]][1]:
            high[span] = i
    kept.update(low.values(), high.values())
    return [points[i] for i in sorted(kept)]


def steps(values: Sequence[float], most: int = 200) -> list[Point]:
    """The distribution of sorted `values` as (value, share at or below), at most about `most` points.

    Evenly spread over the shares, and the largest ones one by one: the tail is what is looked at.
    """
    n = len(values)
    if n == 0:
        return []
    grid = {round(i * (n - 1) / (most - 1)) for i in range(most)} if n > most else set(range(n))
    grid |= set(range(max(0, n - 20), n))
    return [(values[i], (i + 1) / n) for i in sorted(grid)]
