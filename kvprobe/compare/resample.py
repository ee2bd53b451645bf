"""The block bootstrap for two runs: how far a difference could be chance within the runs.

Requests of one run follow each other through one queue and one cache, so neighbours are alike. Blocks
of neighbours are drawn instead of single requests (circular block bootstrap: Politis & Romano 1992). How
long a run of neighbours stays alike is its correlation time (initial monotone sequence: Geyer 1992); the
block length follows from it as for an AR(1) series (Carlstein 1986, constants of Politis & White 2004).
Blocks of a finite length cut part of the correlation off, and few blocks tell little about their own
spread: `kvprobe.compare.spread` widens for both. What varies from one run to the next is in no run, and
so in no interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Weights = NDArray[np.int64]

RESAMPLES = 2_000
MANY = 20_000
RESAMPLES_OF_MANY = 1_000
"""Of a run with more items than `MANY`: each draw costs time in proportion to them."""
MIN_BLOCKS = 8
"""Fewer blocks than this in a run and the draws no longer differ enough."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How one series of `n` items is drawn."""

    n: int
    block: int
    time: float
    """Correlation time: so many neighbours are worth one independent item (1: independent)."""

    @property
    def blocks(self) -> float:
        return self.n / self.block

    @property
    def independent(self) -> float:
        """How many independent items the series is worth."""
        return self.n / self.time


def plan(series: Floats, at_least: float = 1.0) -> Plan:
    """From a series in order of time; `at_least` is a correlation time that is known from elsewhere."""
    n = int(series.size)
    if n < 2 * MIN_BLOCKS:
        return Plan(n, 1, min(max(at_least, 1.0), max(n, 1)))
    time = min(max(correlation_time(series), at_least), n / 2)
    rho = (time - 1.0) / (time + 1.0)  # of the AR(1) series with this correlation time
    wanted = (6.0 * rho**2 / (1.0 - rho**2) ** 2) ** (1 / 3) * n ** (1 / 3)
    return Plan(n, int(max(1, min(math.ceil(wanted), n // MIN_BLOCKS))), time)


def correlation_time(series: Floats) -> float:
    """1 + 2 x the sum of the autocorrelations of the ranks, at least 1 and at most a quarter of the series.

    Summed in pairs of lags while the pairs are positive and do not grow (Geyer 1992): two users that take
    turns make lag 1 small and lag 2 large, and their pair holds both.
    """
    n = int(series.size)
    _, place, ties = np.unique(series, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]  # equal values share their mean rank
    ranks -= ranks.mean()
    spread = float(ranks @ ranks)
    if n < 2 or spread <= 0:
        return 1.0
    spectrum = np.abs(np.fft.rfft(ranks, 2 * n)) ** 2
    rho = np.fft.irfft(spectrum)[: n // 2] / spread
    found = 1.0
    for _ in range(2):
        # Taking the mean off lowers each autocorrelation by about time / n: given back once.
        found = _geyer((rho + (found - 1.0) / n) / (1.0 + (found - 1.0) / n))
    return min(max(found, 1.0), n / 4)


def _geyer(rho: Floats) -> float:
    pairs = rho[: rho.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    stop = np.flatnonzero(pairs <= 0)
    kept = np.minimum.accumulate(pairs[: stop[0] if stop.size else pairs.size])
    return float(2.0 * kept.sum() - 1.0) if kept.size else 1.0


def rounds(n: int) -> int:
    """How many draws of a series of `n` items."""
    return RESAMPLES if n <= MANY else RESAMPLES_OF_MANY


def draws(n: int, block: int, rng: np.random.Generator, resamples: int) -> Weights:
    """How often each of `n` items is drawn: shape (resamples, n), each row sums to `n`."""
    blocks = math.ceil(n / block)
    counts = np.zeros((resamples, n), dtype=np.int64)
    for row in counts:
        row += _one(n, block, blocks, rng)
    return counts


def _one(n: int, block: int, blocks: int, rng: np.random.Generator) -> Weights:
    starts = rng.integers(0, n, blocks)
    picked = ((starts[:, None] + np.arange(block)[None, :]) % n).ravel()[:n]
    return np.bincount(picked, minlength=n)


def resampled(
    statistic: Callable[[Weights], Floats | float],
    drawn: Plan,
    rng: np.random.Generator,
    resamples: int | None = None,
) -> Floats:
    """`statistic` of each draw's weights, one draw at a time: a long run's draws are never all in memory."""
    blocks = math.ceil(drawn.n / drawn.block)
    count = rounds(drawn.n) if resamples is None else resamples
    return np.array([statistic(_one(drawn.n, drawn.block, blocks, rng)) for _ in range(count)])


def weighted_quantile(ordered: Floats, weights: Floats | Weights, q: float) -> float:
    """The value at which the running weight reaches the share `q`; `ordered` is sorted."""
    return float(weighted_quantiles(ordered, weights, (q,))[0])


def weighted_quantiles(ordered: Floats, weights: Floats | Weights, qs: tuple[float, ...]) -> Floats:
    """Several at once; NaN without any weight."""
    running = np.cumsum(weights)
    if running.size == 0 or running[-1] <= 0:
        return np.full(len(qs), math.nan)
    places = np.searchsorted(running, np.asarray(qs) * running[-1])
    found: Floats = ordered[np.minimum(places, ordered.size - 1)]
    return found
