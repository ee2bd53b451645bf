"""The ratio of two means of gauge readings, with an interval."""

from __future__ import annotations

import numpy as np

from kvprobe.summary.quantiles import Floats, Ratio

BLOCK_READINGS = 4
"""Neighbouring readings of a gauge are nearly one: they are drawn in runs of so many."""
RESAMPLES = 2_000


def mean_ratio(above: Floats, below: Floats, seed: int = 32) -> Ratio:
    """mean(above) / mean(below) with a circular block bootstrap interval (Politis & Romano, 1992)."""
    if not above.size or not below.size or float(below.mean()) <= 0.0:
        return Ratio(value=None, n_above=above.size, n_below=below.size, reason="no readings")
    rng = np.random.default_rng(seed)
    tops, bottoms = (_resampled_means(data, rng) for data in (above, below))
    ratios = tops[bottoms > 0.0] / bottoms[bottoms > 0.0]
    lo, hi = np.quantile(ratios, [0.025, 0.975])
    return Ratio(
        value=float(above.mean() / below.mean()),
        lo=float(lo),
        hi=float(hi),
        n_above=above.size,
        n_below=below.size,
    )


def _resampled_means(data: Floats, rng: np.random.Generator) -> Floats:
    n = int(data.size)
    block = min(BLOCK_READINGS, n)
    starts = rng.integers(0, n, (RESAMPLES, -(-n // block)))
    picked = (starts[:, :, None] + np.arange(block)[None, None, :]).reshape(RESAMPLES, -1)[:, :n] % n
    means: Floats = data[picked].mean(axis=1)
    return means
