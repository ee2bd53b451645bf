"""The block bootstrap against series whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.compare.proportions import newcombe, wilson
from kvprobe.compare.resample import Plan, correlation_time, draws, plan, resampled, weighted_quantile
from kvprobe.compare.spread import Drawn, interval, t_quantile


def ar1(rho: float, n: int, rng: np.random.Generator) -> np.ndarray:
    noise = rng.normal(size=n)
    out = np.empty(n)
    out[0] = noise[0]
    for i in range(1, n):
        out[i] = rho * out[i - 1] + noise[i] * np.sqrt(1 - rho**2)
    return out


def test_alike_neighbours_ask_for_longer_blocks() -> None:
    rng = np.random.default_rng(3)
    lengths = [plan(ar1(rho, 2_000, rng)).block for rho in (0.0, 0.5, 0.9)]
    assert lengths[0] <= 4
    assert lengths[0] < lengths[1] < lengths[2] <= 2_000 // 8


@pytest.mark.parametrize("series", [np.ones(100), np.arange(3.0), np.zeros(50), np.zeros(0), np.array([1.0])])
def test_a_series_without_correlation_to_estimate_is_drawn_singly(series: np.ndarray) -> None:
    assert plan(series).block == 1
    assert plan(series).time == 1.0


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 9))
def test_a_draw_has_as_many_items_as_the_sample(n: int, block: int, seed: int) -> None:
    counts = draws(n, block, np.random.default_rng(seed), resamples=3)
    assert counts.shape == (3, n)
    assert (counts.sum(axis=1) == n).all()


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.floats(0.01, 1.0))
def test_a_weighted_quantile_is_that_of_the_repeated_values(weights: list[int], q: float) -> None:
    ordered = np.arange(len(weights), dtype=np.float64)
    found = weighted_quantile(ordered, np.array(weights, dtype=np.float64), q)
    repeated = np.repeat(ordered, weights)
    if not repeated.size:
        assert np.isnan(found)
        return
    assert found == np.quantile(repeated, q, method="inverted_cdf")


def test_the_correlation_time_of_known_series() -> None:
    """AR(1): (1 + rho) / (1 - rho), of the ranks a little less; and two users that take turns."""
    rng = np.random.default_rng(5)
    for rho in (0.0, 0.5, 0.8):
        true = (1 + rho) / (1 - rho)
        found = np.mean([correlation_time(ar1(rho, 1_000, rng)) for _ in range(20)])
        assert 0.7 * true <= found <= 1.4 * true
    turns = np.stack([ar1(0.9, 1_000, rng), ar1(0.9, 1_000, rng)], axis=1).ravel()
    assert correlation_time(turns) > 8


def drawn(series: np.ndarray, made: Plan, rng: np.random.Generator) -> Drawn:
    return Drawn(float(series.mean()), resampled(lambda w: float(w @ series / w.sum()), made, rng, 200), made)


def test_blocks_cover_where_single_draws_do_not() -> None:
    """The means of two series with rho 0.85 of 150 each, as two users for a minute make them: single draws
    cover far less than 95 %, blocks nearly."""
    rng = np.random.default_rng(11)
    covered = {"single": 0, "block": 0}
    pairs = 80
    for _ in range(pairs):
        a, b = ar1(0.85, 150, rng), ar1(0.85, 150, rng)
        for name in covered:
            plans = [Plan(s.size, 1, 1.0) if name == "single" else plan(s) for s in (a, b)]
            found = interval(drawn(a, plans[0], rng), drawn(b, plans[1], rng), 0.95, relative=False)
            assert found is not None
            covered[name] += found[0] <= 0.0 <= found[1]
    assert covered["single"] <= 0.65 * pairs
    assert covered["block"] >= 0.86 * pairs


def test_an_interval_needs_numbers() -> None:
    empty = Drawn(1.0, np.full(100, np.nan), Plan(100, 1, 1.0))
    assert interval(empty, empty, 0.95, relative=True) is None


def test_students_quantile_is_the_tabulated_one() -> None:
    for p, freedom, table in ((0.975, 7, 2.365), (0.975, 30, 2.042), (0.995, 10, 3.169), (0.975, 5, 2.571)):
        assert t_quantile(p, freedom) == pytest.approx(table, rel=0.005)


def test_a_long_run_is_drawn_within_bounds() -> None:
    """A million requests: weights of all draws together would take 16 GB."""
    made = plan(np.random.default_rng(1).normal(size=1_000_000))
    found = resampled(lambda w: float(w.sum()), made, np.random.default_rng(1), 3)
    assert found.tolist() == [1_000_000.0] * 3


def test_wilson_and_newcombe_give_the_published_examples() -> None:
    # Newcombe 1998, tables of examples: Wilson 81/263; differences 56/70 - 48/80 and 0/10 - 10/10.
    assert wilson(81, 263, 0.95) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20, 0.95) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert newcombe(48, 80, 56, 70, 0.95) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert newcombe(10, 10, 0, 10, 0.95) == pytest.approx((-1.0, -0.6075), abs=5e-3)
