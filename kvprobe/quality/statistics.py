"""Paired statistics: the same question on both sides, so that its difficulty cancels out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True, slots=True)
class Paired:
    """`n` questions, right on both, on A alone, on B alone, on neither."""

    both: int
    only_a: int
    only_b: int
    neither: int

    @property
    def n(self) -> int:
        return self.both + self.only_a + self.only_b + self.neither

    @property
    def difference(self) -> float:
        """Share right on B minus share right on A."""
        return (self.only_b - self.only_a) / self.n if self.n else math.nan


def paired(a: Sequence[bool], b: Sequence[bool]) -> Paired:
    counts = {(x, y): 0 for x in (True, False) for y in (True, False)}
    for x, y in zip(a, b, strict=True):
        counts[x, y] += 1
    return Paired(counts[True, True], counts[True, False], counts[False, True], counts[False, False])


def mcnemar_p(found: Paired) -> float:
    """Exact two-sided p-value of McNemar's test (1947): discordant pairs are tosses of a fair coin."""
    tosses, fewer = found.only_a + found.only_b, min(found.only_a, found.only_b)
    if tosses == 0:
        return 1.0
    tail = sum(math.comb(tosses, k) for k in range(fewer + 1)) / 2**tosses
    return float(min(1.0, 2 * tail))


def difference_interval(found: Paired, level: float = 0.95) -> tuple[float, float]:
    """Interval of the difference of paired shares: Wald with Agresti & Min's half of a pair added to each
    cell (Agresti & Min 2005), which does not shrink to nothing when no pair is discordant."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    only_a, only_b, n = found.only_a + 0.5, found.only_b + 0.5, found.n + 2.0
    middle = (only_b - only_a) / n
    spread = math.sqrt(max(0.0, only_a + only_b - (only_b - only_a) ** 2 / n)) / n
    return max(-1.0, middle - z * spread), min(1.0, middle + z * spread)


def mean_interval(values: Sequence[float], level: float = 0.95, seed: int = 1) -> tuple[float, float] | None:
    """Percentile bootstrap of a mean over questions; null below 8 of them."""
    data = np.asarray(values, dtype=np.float64)
    if data.size < 8:
        return None
    rng = np.random.default_rng(seed)
    means = data[rng.integers(0, data.size, (2_000, data.size))].mean(axis=1)
    lo, hi = np.quantile(means, [(1 - level) / 2, 0.5 + level / 2])
    return float(lo), float(hi)
