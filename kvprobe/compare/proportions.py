"""Intervals for a share and for the difference of two shares."""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson(hits: int, n: int, level: float) -> tuple[float, float]:
    """Wilson's score interval of a share (Wilson 1927): inside 0 to 1, and not empty for 0 of n."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    share = hits / n
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    bottom = 1 + z * z / n
    return max(0.0, (middle - half) / bottom), min(1.0, (middle + half) / bottom)


def newcombe(hits_a: int, n_a: int, hits_b: int, n_b: int, level: float) -> tuple[float, float]:
    """Interval of share B - share A for independent samples (Newcombe 1998, method 10)."""
    a, b = hits_a / n_a, hits_b / n_b
    lo_a, hi_a = wilson(hits_a, n_a, level)
    lo_b, hi_b = wilson(hits_b, n_b, level)
    difference = b - a
    low = difference - math.sqrt((b - lo_b) ** 2 + (hi_a - a) ** 2)
    high = difference + math.sqrt((hi_b - b) ** 2 + (a - lo_a) ** 2)
    return low, high
