"""From the draws of two runs to the interval of their difference, no narrower than the draws can promise.

Two widenings, both 1 for independent requests. Blocks of b neighbours leave out the correlation across
their ends: of the variance, 2 rho / (1 - rho^2) / b for an AR(1) series (Kuensch 1989), which is given
back. And a spread that was estimated from k blocks is itself uncertain: Student's t with k - 1 degrees of
freedom instead of the normal law, over two runs by Welch-Satterthwaite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from kvprobe.compare.resample import Floats, Plan

MOST_LEFT_OUT = 0.75
"""Of the variance: beyond this the series is too short to say how much."""
FEWEST_INDEPENDENT = 4.0
"""A run that is worth fewer independent requests has no spread to be estimated from."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A statistic of one run: its value, what the draws gave, and how they were drawn."""

    value: float
    draws: Floats
    plan: Plan


def interval(a: Drawn, b: Drawn, level: float, *, relative: bool) -> tuple[float, float] | None:
    """Interval of B / A - 1, or of B - A. Null when too many draws gave nothing."""
    short = min(a.draws.size, b.draws.size)
    if not all(np.isfinite(side.draws[:short]).any() for side in (a, b)):
        return None
    sides = [(side, side.draws[:short]) for side in (a, b)]
    logs = relative and all(side.value > 0 and np.all(drawn > 0) for side, drawn in sides)
    values, spreads = [], []
    for side, drawn in sides:
        value = math.log(side.value) if logs else side.value
        shift = (np.log(drawn) if logs else drawn) - value
        values.append(value)
        spreads.append(shift * _widened(side.plan))
    factor = _student(spreads, [side.plan.blocks for side, _ in sides], level)
    if relative and not logs:
        with np.errstate(divide="ignore", invalid="ignore"):
            return _middle((values[1] + factor * spreads[1]) / (values[0] + factor * spreads[0]) - 1.0, level)
    found = _middle(values[1] - values[0] + factor * (spreads[1] - spreads[0]), level)
    return found if found is None or not logs else (math.expm1(found[0]), math.expm1(found[1]))


def _widened(plan: Plan) -> float:
    rho = (plan.time - 1.0) / (plan.time + 1.0)
    if rho <= 0:
        return 1.0
    left_out = 2.0 * rho / (1.0 - rho**2) / plan.block
    return 1.0 / math.sqrt(1.0 - min(left_out, MOST_LEFT_OUT))


def _student(spreads: list[Floats], blocks: list[float], level: float) -> float:
    """Student's t over the normal quantile, with the degrees of freedom of Welch and Satterthwaite."""
    variances = [float(np.nanvar(s)) for s in spreads]
    parts = [v**2 / max(k - 1.0, 1.0) for v, k in zip(variances, blocks, strict=True)]
    if not sum(parts) > 0 or not math.isfinite(sum(parts)):
        return 1.0
    freedom = sum(variances) ** 2 / sum(parts)
    return t_quantile(0.5 + level / 2, freedom) / NormalDist().inv_cdf(0.5 + level / 2)


def t_quantile(p: float, freedom: float) -> float:
    """Quantile of Student's t by the expansion 26.7.5 of Abramowitz & Stegun: good from five degrees on."""
    z = NormalDist().inv_cdf(p)
    f = max(freedom, 1.0)
    return (
        z
        + (z**3 + z) / (4 * f)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * f**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * f**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * f**4)
    )


def _middle(values: Floats, level: float) -> tuple[float, float] | None:
    known = values[np.isfinite(values)]
    if known.size < 0.9 * values.size or known.size == 0:
        return None
    tail = (1.0 - level) / 2
    lo, hi = np.quantile(known, [tail, 1.0 - tail])
    return float(lo), float(hi)
