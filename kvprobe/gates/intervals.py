"""95 % intervals of what is no percentile: shares and means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kvprobe.summary.quantiles import Floats

_Z = 1.959964
BATCHES = 20
MIN_VALUES = 2 * BATCHES
_T_975_19 = 2.093
"""97.5 % point of Student's t with `BATCHES` - 1 degrees of freedom."""

Interval = tuple[float, float]


def wilson(k: int, n: int) -> Interval | None:
    """Interval of a share k/n (Wilson, 1927): it stays within 0 and 1, and is no point at k = 0."""
    if n <= 0:
        return None
    p, z2 = k / n, _Z * _Z
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n)) / (1 + z2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def mean_interval(values: Sequence[float] | Floats) -> Interval | None:
    """Interval of the mean of values in order of time, by batch means: neighbours may be alike, and the
    means of long stretches are nearly independent (Law & Kelton, Simulation Modeling, 9.5.3).
    Null for fewer than `MIN_VALUES`."""
    data = np.asarray(values, dtype=np.float64)
    if data.size < MIN_VALUES:
        return None
    means = np.array([part.mean() for part in np.array_split(data, BATCHES)])
    half = _T_975_19 * float(means.std(ddof=1)) / math.sqrt(BATCHES)
    middle = float(data.mean())
    return middle - half, middle + half
