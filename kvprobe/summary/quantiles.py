"""Percentiles that say how far they can be trusted.

A percentile is shown only when the sample can carry it: with n independent values the largest one
is a one-sided 95 % upper bound of the q-quantile only if q**n <= 0.05, which asks for 59, 299 and
2,995 values for p95, p99 and p99.9. Intervals are pairs of order statistics, whose coverage
follows from the binomial law whatever the distribution of the values is (David & Nagaraja, Order
Statistics, 7.1). Values that come in clusters (the chunks of one stream) count for less than
their number; the design effect of the clusters says how much less (Kish, Survey Sampling, 8.2).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

LEVEL = 0.95
_ALPHA = 1.0 - LEVEL
_BINOMIAL_TAIL_SDS = 12.0
"""Half-width of the window of the binomial law that is summed; the mass outside is below 1e-30."""


class Quantile(msgspec.Struct, frozen=True, kw_only=True):
    """One percentile of a sample, in the unit of the sample.

    `value` is null when `n_effective` cannot carry it, and `reason` then says so. `lo` and `hi`
    are a 95 % interval; `hi` alone (`lo` null) is a one-sided upper bound, for samples that carry
    one but not the two-sided pair.
    """

    q: float
    n: int
    n_effective: int
    value: float | None = None
    lo: float | None = None
    hi: float | None = None
    reason: str | None = None


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """Ratio of two medians with a 95 % bootstrap interval; null when it cannot be formed."""

    value: float | None
    lo: float | None = None
    hi: float | None = None
    n_above: int = 0
    n_below: int = 0
    reason: str | None = None


def needed(q: float, sides: Literal["one", "two"] = "one") -> int:
    """Smallest n whose largest value bounds the q-quantile from above with 95 % confidence.

    `two` asks for an equal-tailed interval (368 for p99); for q below one half the smallest value
    decides, so the worse of the two tails is taken.
    """
    if not 0.0 < q < 1.0:
        raise ValueError(f"a quantile lies between 0 and 1, not {q}")
    tail = max(q, 1.0 - q)
    alpha = _ALPHA if sides == "one" else _ALPHA / 2
    return math.ceil(math.log(alpha) / math.log(tail))


def binomial_cdf(n: int, q: float) -> tuple[int, Floats]:
    """Cumulative law of Binomial(n, q) as (first k, values); entry i is P(X <= first + i).

    Only a window around the mean is summed, so that n of a million costs milliseconds.
    """
    mean, sd = n * q, math.sqrt(n * q * (1.0 - q))
    first = max(0, math.floor(mean - _BINOMIAL_TAIL_SDS * sd - 2))
    last = min(n, math.ceil(mean + _BINOMIAL_TAIL_SDS * sd + 2))
    log_first = (
        math.lgamma(n + 1)
        - math.lgamma(first + 1)
        - math.lgamma(n - first + 1)
        + first * math.log(q)
        + (n - first) * math.log1p(-q)
    )
    k = np.arange(first, last, dtype=np.float64)
    steps = np.log((n - k) / (k + 1.0)) + math.log(q) - math.log1p(-q)
    log_pmf = log_first + np.concatenate(([0.0], np.cumsum(steps)))
    return first, np.minimum(np.cumsum(np.exp(log_pmf)), 1.0)


def interval_ranks(n: int, q: float) -> tuple[int, int] | None:
    """Ranks (from 1) of the two order statistics that enclose the q-quantile; null when n is too small.

    Equal tails: P(X_(lo) > quantile) and P(X_(hi) < quantile) are each at most 2.5 %.
    """
    if n < needed(q, "two"):
        return None
    first, cdf = binomial_cdf(n, q)
    lo = first + int(np.searchsorted(cdf, _ALPHA / 2, side="right"))
    hi = first + int(np.searchsorted(cdf, 1.0 - _ALPHA / 2, side="left")) + 1
    return max(1, lo), min(n, hi)


def quantile(values: Sequence[float] | Floats, q: float, clusters: Sequence[int] | None = None) -> Quantile:
    """The q-quantile of `values`; `clusters` names the group of each value when they are not independent."""
    data = np.asarray(values, dtype=np.float64)
    return _quantile_of(data, q, None if clusters is None else np.asarray(clusters))


def quantiles(
    values: Sequence[float] | Floats, qs: Sequence[float], clusters: Sequence[int] | None = None
) -> list[Quantile]:
    """Several quantiles of one sample."""
    data = np.asarray(values, dtype=np.float64)
    groups = None if clusters is None else np.asarray(clusters)
    return [_quantile_of(data, q, groups) for q in qs]


def _quantile_of(data: Floats, q: float, clusters: NDArray[np.int64] | None) -> Quantile:
    n = int(data.size)
    if n == 0:
        return Quantile(q=q, n=0, n_effective=0, reason="no values")
    value = float(np.quantile(data, q))
    n_eff = n if clusters is None else effective_n(_below(data, value), clusters)
    if n_eff < needed(q):
        return Quantile(q=q, n=n, n_effective=n_eff, reason=_too_small(n, n_eff, q))
    lo, hi = _bounds(np.sort(data), n_eff, q)
    return Quantile(q=q, n=n, n_effective=n_eff, value=value, lo=lo, hi=hi)


def _below(data: Floats, value: float) -> NDArray[np.bool_]:
    """Which values lie on the lower side. Where the percentile is the largest value of all, what lies
    strictly under it is what tells the clusters apart."""
    below = data <= value
    return data < value if below.all() else below


def _bounds(ordered: Floats, n_eff: int, q: float) -> tuple[float | None, float]:
    """Order-statistic bounds; with clusters, the ranks of the effective sample, stretched to the real one."""
    n = int(ordered.size)
    ranks = interval_ranks(n_eff, q)
    if ranks is None:
        return None, float(ordered[-1])
    lo = math.floor(ranks[0] * n / n_eff)
    hi = math.ceil(ranks[1] * n / n_eff)
    return float(ordered[max(lo, 1) - 1]), float(ordered[min(hi, n) - 1])


def _too_small(n: int, n_eff: int, q: float) -> str:
    label = f"p{100 * q:g}"
    if n_eff < n:
        return f"n too small: {n} correlated values count as {n_eff}, {label} needs {needed(q)}"
    return f"n too small: {n}, {label} needs {needed(q)}"


def effective_n(below: NDArray[np.bool_], clusters: NDArray[np.int64]) -> int:
    """How many independent values the sample is worth for the share of `below` that is true.

    Variance of a ratio estimate over clusters against that of independent values; never more than
    the number of values.
    """
    _, member = np.unique(clusters, return_inverse=True)
    sizes = np.bincount(member).astype(np.float64)
    hits = np.bincount(member, weights=below.astype(np.float64))
    n, groups = float(sizes.sum()), int(sizes.size)
    share = float(hits.sum()) / n
    independent = share * (1.0 - share) / n
    if groups < 2:
        return 1
    if independent == 0.0:
        return int(n)
    spread = float(np.sum((hits - share * sizes) ** 2)) * groups / (groups - 1)
    design_effect = max(1.0, spread / n**2 / independent)
    return max(1, int(n / design_effect))


def median_ratio(
    above: Sequence[float] | Floats,
    below: Sequence[float] | Floats,
    *,
    seed: int = 0,
    block: int = 1,
    resamples: int = 2_000,
) -> Ratio:
    """median(above) / median(below) with a percentile bootstrap interval (Efron & Tibshirani, ch. 13).

    `block` > 1 resamples runs of that many neighbours (circular blocks), for values whose order
    matters. Deterministic for a given seed.
    """
    a, b = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    if a.size == 0 or b.size == 0:
        return Ratio(value=None, n_above=a.size, n_below=b.size, reason="no values on one side")
    bottom = float(np.median(b))
    if bottom <= 0.0:
        return Ratio(value=None, n_above=a.size, n_below=b.size, reason="the lower median is not above 0")
    value = float(np.median(a)) / bottom
    if min(a.size, b.size) < needed(0.5):
        return Ratio(value=value, n_above=a.size, n_below=b.size, reason="n too small for an interval")
    rng = np.random.default_rng(seed)
    tops = _resampled_medians(a, rng, block, resamples)
    bottoms = _resampled_medians(b, rng, block, resamples)
    ratios = tops[bottoms > 0.0] / bottoms[bottoms > 0.0]
    lo, hi = np.quantile(ratios, [_ALPHA / 2, 1.0 - _ALPHA / 2])
    return Ratio(value=value, lo=float(lo), hi=float(hi), n_above=a.size, n_below=b.size)


def _resampled_medians(data: Floats, rng: np.random.Generator, block: int, resamples: int) -> Floats:
    n = int(data.size)
    block = max(1, min(block, n))
    if block == 1 and n >= _MANY:
        return _drawn_medians(np.sort(data), rng, resamples)
    blocks = math.ceil(n / block)
    offsets = np.arange(block)
    medians = np.empty(resamples)
    for i in range(resamples):
        starts = rng.integers(0, n, blocks)
        picked = (starts[:, None] + offsets[None, :]).ravel()[:n] % n
        medians[i] = np.median(data[picked])
    return medians


_MANY = 1_000
"""Values from which on a resample's median is drawn as such, not from a resample."""


def _drawn_medians(ordered: Floats, rng: np.random.Generator, resamples: int) -> Floats:
    """Medians of resamples without the resamples: the ranks picked are order statistics of n uniform
    draws, of which the k-th is Beta(k, n - k + 1) and the next one the least of those left (David &
    Nagaraja, Order Statistics, ch. 2). The distribution is the same one, the work no longer grows with n."""
    n = int(ordered.size)
    k = (n + 1) // 2
    at = rng.beta(k, n - k + 1, resamples)
    low = ordered[np.minimum((at * n).astype(np.int64), n - 1)]
    if n % 2:
        return low
    after = at + (1.0 - at) * rng.beta(1.0, n - k, resamples)
    return (low + ordered[np.minimum((after * n).astype(np.int64), n - 1)]) / 2.0


def censored_quantile(events: Floats, censored: Floats, q: float) -> float | None:
    """Quantile when some values are only known to be larger than `censored` (Kaplan & Meier, 1958).

    Smallest time at which the estimated share that is still unfinished has fallen to 1 - q; null
    when it never does.
    """
    times = np.concatenate((events, censored))
    if times.size == 0:
        return None
    happened = np.concatenate((np.ones(events.size, bool), np.zeros(censored.size, bool)))
    # At equal times the events come first: a timeout at t was still waiting when t's event came.
    order = np.lexsort((~happened, times))
    at_risk = np.arange(times.size, 0, -1, dtype=np.float64)
    factors = np.where(happened[order], 1.0 - 1.0 / at_risk, 1.0)
    surviving = np.cumprod(factors)
    reached = np.nonzero(happened[order] & (surviving <= 1.0 - q + 1e-12))[0]
    return float(times[order][reached[0]]) if reached.size else None
