"""Percentiles and intervals against independent oracles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.summary.quantiles import (
    _drawn_medians,
    binomial_cdf,
    censored_quantile,
    effective_n,
    interval_ranks,
    median_ratio,
    needed,
    quantile,
)


def exact_cdf(n: int, q: float, k: int) -> float:
    """Independent of the module: plain binomial sums."""
    return sum(math.comb(n, i) * q**i * (1 - q) ** (n - i) for i in range(k + 1))


@pytest.mark.parametrize(("q", "n"), [(0.95, 59), (0.99, 299), (0.999, 2_995), (0.5, 5)])
def test_smallest_n_for_a_one_sided_bound(q: float, n: int) -> None:
    assert needed(q) == n
    assert q**n <= 0.05 < q ** (n - 1)


def test_two_sided_p99_needs_368() -> None:
    assert needed(0.99, "two") == 368


@pytest.mark.parametrize("q", [0.0, 1.0, -1.0, 2.0])
def test_a_quantile_lies_between_0_and_1(q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        needed(q)


@pytest.mark.parametrize(("n", "q"), [(1, 0.5), (7, 0.5), (60, 0.95), (400, 0.99)])
def test_binomial_law_matches_plain_sums(n: int, q: float) -> None:
    first, cdf = binomial_cdf(n, q)
    for i, value in enumerate(cdf):
        assert value == pytest.approx(exact_cdf(n, q, first + i), abs=1e-12)


def test_binomial_window_holds_all_the_mass_of_a_million() -> None:
    first, cdf = binomial_cdf(1_000_000, 0.99)
    assert first > 980_000
    assert cdf[-1] == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(("n", "q"), [(6, 0.5), (50, 0.5), (73, 0.95), (300, 0.95), (368, 0.99), (900, 0.99)])
def test_interval_ranks_are_the_tightest_that_cover(n: int, q: float) -> None:
    ranks = interval_ranks(n, q)
    assert ranks is not None
    lo, hi = ranks
    # X_(lo) lies above the quantile only if fewer than lo values lie below it.
    assert exact_cdf(n, q, lo - 1) <= 0.025 + 1e-9
    assert exact_cdf(n, q, lo) > 0.025 - 1e-9
    assert 1 - exact_cdf(n, q, hi - 1) <= 0.025 + 1e-9
    assert hi == 1 or 1 - exact_cdf(n, q, hi - 2) > 0.025 - 1e-9


@pytest.mark.parametrize(("q", "n"), [(0.5, 40), (0.95, 120), (0.99, 500)])
def test_interval_covers_the_truth_as_often_as_it_says(q: float, n: int) -> None:
    rng = np.random.default_rng(3)
    truth = -math.log(1 - q)  # of the exponential law
    covered = 0
    rounds = 2_000
    for _ in range(rounds):
        found = quantile(rng.exponential(size=n), q)
        assert found.lo is not None
        assert found.hi is not None
        covered += found.lo <= truth <= found.hi
    assert covered / rounds >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / rounds)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=5, max_size=200))
def test_median_agrees_with_the_statistics_module(values: list[float]) -> None:
    assert quantile(values, 0.5).value == pytest.approx(statistics.median(values))


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=59, max_size=200))
def test_p95_agrees_with_the_statistics_module(values: list[float]) -> None:
    oracle = statistics.quantiles(values, n=20, method="inclusive")[18]
    found = quantile(values, 0.95)
    assert found.value == pytest.approx(oracle)
    assert found.hi is not None
    assert found.value is not None
    assert found.hi >= found.value - 1e-9


@pytest.mark.parametrize(("q", "n"), [(0.95, 58), (0.99, 298), (0.999, 2_994), (0.5, 4)])
def test_n_too_small_is_said_and_no_number_given(q: float, n: int) -> None:
    found = quantile([1.0] * n, q)
    assert found.value is None
    assert found.lo is None
    assert found.reason is not None
    assert found.reason.startswith("n too small")
    assert quantile([1.0] * (n + 1), q).value == 1.0


def test_one_sided_bound_between_299_and_367() -> None:
    values = np.arange(300, dtype=float)
    found = quantile(values, 0.99)
    assert found.lo is None
    assert found.hi == 299.0
    both = quantile(np.arange(368, dtype=float), 0.99)
    assert both.lo is not None


def test_no_values() -> None:
    assert quantile([], 0.5).reason == "no values"


def _clustered(rng: np.random.Generator, groups: int, each: int) -> tuple[Sequence[float], list[int]]:
    """Values whose level is that of their group."""
    levels = rng.normal(size=groups)
    values = [float(levels[g] + 0.1 * rng.normal()) for g in range(groups) for _ in range(each)]
    return values, [g for g in range(groups) for _ in range(each)]


def test_values_of_one_cluster_count_for_little() -> None:
    rng = np.random.default_rng(5)
    values, owners = _clustered(rng, 40, 50)
    found = quantile(values, 0.5, owners)
    assert found.n == 2_000
    assert 20 <= found.n_effective <= 120  # near 40 groups, far from 2,000 values
    independent = quantile(rng.normal(size=2_000), 0.5, owners)
    assert independent.n_effective > 1_000


def test_clustered_interval_covers_where_the_plain_one_does_not() -> None:
    rng = np.random.default_rng(11)
    rounds, covered, plain = 200, 0, 0
    for _ in range(rounds):
        values, owners = _clustered(rng, 60, 20)
        with_clusters, without = quantile(values, 0.5, owners), quantile(values, 0.5)
        assert with_clusters.lo is not None
        assert with_clusters.hi is not None
        assert without.lo is not None
        assert without.hi is not None
        covered += with_clusters.lo <= 0.0 <= with_clusters.hi
        plain += without.lo <= 0.0 <= without.hi
    assert covered / rounds > 0.90
    assert plain / rounds < 0.70


def test_correlated_values_can_be_too_few() -> None:
    values = [1.0] * 300 + [2.0] * 300
    # The percentile is the largest value: half of them lie strictly under it, all in one cluster.
    found = quantile(values, 0.99, [0] * 300 + [1] * 300)
    assert (found.value, found.n_effective) == (None, 1)
    mixed = quantile(values, 0.99, [i % 50 for i in range(600)])
    assert (mixed.value, mixed.n_effective) == (2.0, 600)
    assert effective_n(np.array([True] * 5), np.array([0] * 5)) == 1


def test_ratio_interval_covers_the_truth() -> None:
    rng = np.random.default_rng(13)
    rounds, covered = 100, 0
    for i in range(rounds):
        above, below = 3.0 * rng.lognormal(sigma=0.4, size=30), rng.lognormal(sigma=0.4, size=60)
        found = median_ratio(above, below, seed=i, resamples=300)
        assert found.lo is not None
        assert found.hi is not None
        covered += found.lo <= 3.0 <= found.hi
    assert covered / rounds > 0.90


def test_ratio_is_deterministic_and_blocks_widen_it_for_slow_values() -> None:
    rng = np.random.default_rng(17)
    wander = np.exp(np.cumsum(rng.normal(scale=0.05, size=400)))
    flat = np.ones(50)
    plain = median_ratio(wander, flat, seed=1)
    assert plain == median_ratio(wander, flat, seed=1)
    blocks = median_ratio(wander, flat, seed=1, block=40)
    assert plain.lo is not None
    assert plain.hi is not None
    assert blocks.lo is not None
    assert blocks.hi is not None
    assert blocks.hi - blocks.lo > 1.5 * (plain.hi - plain.lo)


@pytest.mark.parametrize(("above", "below"), [([], [1.0]), ([1.0], []), ([1.0], [0.0] * 9)])
def test_ratio_that_cannot_be_formed(above: list[float], below: list[float]) -> None:
    found = median_ratio(above, below)
    assert found.value is None
    assert found.reason


def test_ratio_of_a_few_has_no_interval() -> None:
    found = median_ratio([2.0, 2.0], [1.0, 1.0])
    assert found.value == 2.0
    assert found.lo is None


def test_censored_quantile_without_censoring_is_an_order_statistic() -> None:
    values = np.arange(1.0, 101.0)
    assert censored_quantile(values, np.array([]), 0.5) == 50.0
    assert censored_quantile(values, np.array([]), 0.95) == 95.0


def test_censored_waits_push_a_percentile_up_or_away() -> None:
    events, timeouts = np.arange(1.0, 91.0), np.full(10, 120.0)
    assert censored_quantile(events, timeouts, 0.5) == 50.0
    assert censored_quantile(events, timeouts, 0.9) == 90.0
    assert censored_quantile(events, timeouts, 0.95) is None
    early = censored_quantile(events, np.full(10, 0.5), 0.5)
    assert early == 45.0  # cut before anything happened: says nothing about the rest
    assert censored_quantile(np.array([]), np.array([]), 0.5) is None


def test_equal_values_and_huge_values() -> None:
    same = quantile([5.0] * 400, 0.99, [i % 20 for i in range(400)])
    assert (same.value, same.lo, same.hi) == (5.0, 5.0, 5.0)
    huge = quantile([1e300] * 60, 0.95)
    assert huge.value == 1e300


@pytest.mark.parametrize("n", [1_001, 1_200])
def test_a_median_that_is_drawn_is_spread_as_one_of_a_resample(n: int) -> None:
    """From many values on the bootstrap draws the median's rank; below, it resamples. Same distribution."""
    data = np.random.default_rng(5).lognormal(0.0, 1.0, n)
    resampled = np.sort(
        [np.median(np.random.default_rng(i).choice(data, n)) for i in range(600)],
    )
    drawn = np.sort(_drawn_medians(np.sort(data), np.random.default_rng(1), 600))
    ks = np.max(np.abs(np.searchsorted(drawn, resampled, "right") / 600 - np.arange(1, 601) / 600))
    assert ks < 0.1, "two-sample Kolmogorov-Smirnov, p about 0.005"
