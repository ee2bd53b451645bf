"""Several readings to one number: counters over restarts, histograms by their growth, replicas together.

Gauges are averaged or summed by what they are (a share is averaged, a count summed), counters are
summed, percentages are never added. A fall of a counter means that the server restarted and counts
from 0: what it shows then is growth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvprobe.observe.dialects.model import Absent
from kvprobe.observe.dialects.page import aggregate
from kvprobe.observe.dialects.table import DIALECTS

Buckets = Mapping[float, float]
"""Upper edge -> observations at or below it; `inf` holds all."""

_RULES = {series.canonical: series.over_label_sets for d in DIALECTS for series in d.series}


@dataclass(frozen=True, slots=True)
class Growth:
    """What a counter grew by; `resets` counts the restarts in between."""

    value: float
    resets: int = 0


@dataclass(frozen=True, slots=True)
class Quantile:
    """`at_least`: the observations lie above the last finite edge, which is all that can be said."""

    value: float
    at_least: bool = False


def growth(values: Sequence[float]) -> Growth | None:
    """Growth of a counter over its readings in order; null for fewer than two."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return None
    total, resets = 0.0, 0
    for before, after in pairwise(known):
        resets += after < before
        total += after if after < before else after - before
    return Growth(total, resets)


def over_replicas(canonical: str, values: Iterable[float | Absent]) -> float | Absent:
    """One number for several replicas, by what the series is.

    A replica that gives no number leaves the sum of counts unknown; a mean and a maximum are taken over
    those that answer. Without any number it is the reason that the first of them gives.
    """
    given = list(values)
    numbers = [value for value in given if not isinstance(value, Absent)]
    how = _RULES.get(canonical, "sum")
    missing = next((value for value in given if isinstance(value, Absent)), None)
    if missing is not None and (how == "sum" or not numbers):
        return missing
    return aggregate(how, numbers) if numbers else Absent.NO_READING


def bucket_growth(before: Buckets, after: Buckets) -> Buckets | None:
    """How many observations came in, by upper edge. Null when the edges are not the same (the server
    came back with other buckets): then nothing can be subtracted."""
    if not before or before.keys() != after.keys():
        return None
    if any(after[edge] < before[edge] for edge in after):
        return dict(after)  # it restarted: all that it shows is new
    return {edge: after[edge] - before[edge] for edge in after}


def merged(parts: Sequence[Buckets]) -> Buckets:
    """Histograms of several replicas as one. Counts are cumulative, so they add up at every edge that
    all of them have, whatever other edges each has."""
    if not parts:
        return {}
    shared = set(parts[0]).intersection(*parts[1:])
    return {edge: sum(part[edge] for part in parts) for edge in sorted(shared)}


def quantile(buckets: Buckets, q: float) -> Quantile | None:
    """The q-quantile of a histogram, linear inside its bucket as Prometheus' histogram_quantile.

    Null without observations. The lower edge of the first bucket is 0.
    """
    edges = sorted(buckets)
    total = buckets[edges[-1]] if edges else 0.0
    if not total > 0 or not math.isfinite(total):
        return None
    rank, low_edge, below = q * total, 0.0, 0.0
    for edge in edges:
        if buckets[edge] >= rank and buckets[edge] > below:
            if math.isinf(edge):
                return Quantile(low_edge, at_least=True)
            share = (rank - below) / (buckets[edge] - below)
            return Quantile(low_edge + (edge - low_edge) * max(0.0, share))
        low_edge, below = edge if math.isfinite(edge) else low_edge, buckets[edge]
    return Quantile(low_edge, at_least=True)


def buckets_of(readings: Iterable[tuple[str, dict[str, str], float]], canonical: str) -> Buckets:
    """The buckets of one histogram out of a page's readings; damaged edges are left out."""
    found: dict[float, float] = {}
    for metric, labels, value in readings:
        if metric == f"{canonical}_bucket" and math.isfinite(value):
            try:
                edge = float(labels.get("le", ""))
            except ValueError:
                continue
            if not math.isnan(edge):
                found[edge] = value
    return dict(sorted(found.items()))
