"""The block bootstrap against series whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.compare.proportions import newcombe, wilson
from kvprobe.compare.resample import block_length, draws, interval, resampled, weighted_quantile


def ar1(rho: float, n: int, rng: np.random.Generator) -> np.ndarray:
    noise = rng.normal(size=n)
    out = np.empty(n)
    out[0] = noise[0]
    for i in range(1, n):
        out[i] = rho * out[i - 1] + noise[i] * np.sqrt(1 - rho**2)
    return out


def test_alike_neighbours_ask_for_longer_blocks() -> None:
    rng = np.random.default_rng(3)
    lengths = [block_length(ar1(rho, 2_000, rng)) for rho in (0.0, 0.5, 0.9)]
    assert lengths[0] <= 4
    assert lengths[0] < lengths[1] < lengths[2] <= 2_000 // 8


@pytest.mark.parametrize("series", [np.ones(100), np.arange(3.0), np.zeros(0), np.array([1.0])])
def test_a_series_without_correlation_to_estimate_is_drawn_singly(series: np.ndarray) -> None:
    assert block_length(series) == 1


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


def test_blocks_cover_where_single_draws_do_not() -> None:
    """The mean of a series with rho 0.8: single draws cover far less than 95 %, blocks nearly."""
    rng = np.random.default_rng(11)
    covered = {"single": 0, "block": 0}
    rounds = 60
    for _ in range(rounds):
        series = ar1(0.8, 400, rng)
        for name, length in (("single", 1), ("block", block_length(series))):
            counts = draws(series.size, length, rng, resamples=200)
            found = interval(resampled(lambda w, s=series: float(w @ s / w.sum()), counts), 0.95)
            assert found is not None
            covered[name] += found[0] <= 0.0 <= found[1]
    assert covered["single"] <= 0.75 * rounds
    assert covered["block"] >= 0.8 * rounds


def test_an_interval_needs_numbers() -> None:
    assert interval(np.full(100, np.nan), 0.95) is None
    assert interval(np.zeros(0), 0.95) is None


def test_wilson_and_newcombe_give_the_published_examples() -> None:
    # Newcombe 1998, tables of examples: Wilson 81/263; differences 56/70 - 48/80 and 0/10 - 10/10.
    assert wilson(81, 263, 0.95) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(0, 20, 0.95) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert newcombe(48, 80, 56, 70, 0.95) == pytest.approx((0.0524, 0.3339), abs=5e-5)
    assert newcombe(10, 10, 0, 10, 0.95) == pytest.approx((-1.0, -0.6075), abs=5e-3)
