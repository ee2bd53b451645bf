"""A quantile function through the quantiles that somebody named.

Knots are pairs of a share of requests and the tokens that they do not exceed, in order.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from statistics import NormalDist

Z = NormalDist()
STEPS = 2_000
"""Points that stand for a distribution given by formula: each carries 1/2000 of the requests."""
TOP = 1 - 0.5 / STEPS
"""The quantile that is called the longest request where no max is given."""


def between(knots: list[tuple[float, float]], longest: float | None) -> str:
    """What is assumed between and above the quantiles that were given."""
    tail = (
        f"above it up to max at an even pace in ln(tokens) (max {longest:,.0f})"
        if longest is not None
        else f"above it the last slope goes on, and `max` is the quantile {TOP}"
    )
    names = ", ".join(f"p{100 * q:g}" for q, _ in knots)
    return f"lengths between {names} follow a lognormal through them; {tail}"


def through(
    knots: list[tuple[float, float]], shortest: float, longest: float | None
) -> Callable[[float], float]:
    """The quantile function: between two knots ln(tokens) is linear in the normal score."""
    scores = [(Z.inv_cdf(q), math.log(v)) for q, v in knots]
    first, last = knots[0], knots[-1]
    low_slope = _slope(scores[0], scores[1]) if len(scores) > 1 else None
    high_slope = _slope(scores[-2], scores[-1]) if len(scores) > 1 else 0.0

    def value(q: float) -> float:
        if q > last[0]:
            if longest is not None:
                share = (q - last[0]) / (1 - last[0])
                return math.exp(math.log(last[1]) + share * math.log(longest / last[1]))
            return math.exp(scores[-1][1] + high_slope * (Z.inv_cdf(q) - scores[-1][0]))
        if q < first[0]:
            if low_slope is None:  # one knot says nothing of the shorter half: even between min and it
                return shortest + (q / first[0]) * (first[1] - shortest)
            return max(shortest, math.exp(scores[0][1] + low_slope * (Z.inv_cdf(q) - scores[0][0])))
        return _inside(scores, Z.inv_cdf(q))

    return value


def _slope(a: tuple[float, float], b: tuple[float, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def _inside(scores: list[tuple[float, float]], z: float) -> float:
    at = max(1, min(len(scores) - 1, bisect_left([s for s, _ in scores], z)))
    if len(scores) == 1:
        return math.exp(scores[0][1])
    a, b = scores[at - 1], scores[at]
    return math.exp(a[1] + _slope(a, b) * (z - a[0]))
