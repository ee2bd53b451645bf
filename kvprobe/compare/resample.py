"""The block bootstrap for two runs: how far a difference could be chance within the runs.

Requests of one run follow each other through one queue and one cache, so neighbours are alike. Blocks
of neighbours are drawn instead of single requests (circular block bootstrap: Politis & Romano 1992);
their length follows from how alike neighbours are (the rule for an AR(1) series: Carlstein 1986, with the
constants of Politis & White 2004). What varies from one run to the next is in no run, and so in no interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Weights = NDArray[np.int64]

RESAMPLES = 2_000
MAX_CORRELATION = 0.97
"""A run whose neighbours are still more alike has no blocks that could be exchanged: this is the most."""
MIN_BLOCKS = 8
"""Fewer blocks than this in a run and the draws no longer differ enough."""


def block_length(series: Floats) -> int:
    """Neighbours to draw together, from the lag-1 rank correlation of the series in order of time."""
    n = int(series.size)
    if n < 2 * MIN_BLOCKS:
        return 1
    _, place, ties = np.unique(series, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(ties) - (ties - 1) / 2)[place]  # equal values share their mean rank
    ranks -= ranks.mean()
    spread = float(ranks @ ranks)
    rho = float(ranks[1:] @ ranks[:-1]) / spread if spread > 0 else 0.0
    rho = min(max(rho, 0.0), MAX_CORRELATION)
    wanted = (6.0 * rho**2 / (1.0 - rho**2) ** 2) ** (1 / 3) * n ** (1 / 3)
    return int(max(1, min(math.ceil(wanted), n // MIN_BLOCKS)))


def draws(n: int, block: int, rng: np.random.Generator, resamples: int = RESAMPLES) -> Weights:
    """How often each of `n` items is drawn: shape (resamples, n), each row sums to about `n`."""
    blocks = math.ceil(n / block)
    counts = np.zeros((resamples, n), dtype=np.int64)
    for row in counts:
        starts = rng.integers(0, n, blocks)
        picked = ((starts[:, None] + np.arange(block)[None, :]) % n).ravel()[:n]
        row += np.bincount(picked, minlength=n)
    return counts


def weighted_quantile(ordered: Floats, weights: Floats, q: float) -> float:
    """The value at which the running weight reaches the share `q`; `ordered` is sorted."""
    running = np.cumsum(weights)
    if running.size == 0 or running[-1] <= 0:
        return math.nan
    return float(ordered[min(int(np.searchsorted(running, q * running[-1])), ordered.size - 1)])


def interval(values: Floats, level: float) -> tuple[float, float] | None:
    """The middle share `level` of what the draws gave; null when too many of them gave nothing."""
    known = values[np.isfinite(values)]
    if known.size < 0.9 * values.size or known.size == 0:
        return None
    tail = (1.0 - level) / 2
    lo, hi = np.quantile(known, [tail, 1.0 - tail])
    return float(lo), float(hi)


def resampled(statistic: Callable[[Floats], float], counts: Weights) -> Floats:
    """`statistic` of the weights of each draw."""
    return np.array([statistic(row.astype(np.float64)) for row in counts])
