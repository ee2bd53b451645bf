"""The chance that n requests fit, against counting and against random draws."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.plan.fitting import Fitting
from kvprobe.plan.lengths import parse_lengths


def counted(costs: list[int], weights: list[float], capacity: int, n: int) -> float:
    """By going through every combination."""
    total = 0.0
    for picks in itertools.product(range(len(costs)), repeat=n):
        chance = 1.0
        for pick in picks:
            chance *= weights[pick]
        total += chance if sum(costs[pick] for pick in picks) <= capacity else 0.0
    return total


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=2, max_size=4, unique=True),
    st.integers(1, 5),
    st.integers(1, 160),
    st.randoms(use_true_random=False),
)
def test_it_is_what_counting_gives(costs: list[int], n: int, capacity: int, rng: random.Random) -> None:
    raw = [rng.random() + 0.01 for _ in costs]
    weights = [x / sum(raw) for x in raw]
    found = Fitting(costs, weights, capacity).probability(n)
    assert found == pytest.approx(counted(costs, weights, capacity, n), abs=1e-9)


def test_largest_is_the_last_that_reaches_the_level() -> None:
    lengths = parse_lengths("p50=1000,p95=8000,max=32000")
    blocks = [-(-tokens // 16) for tokens in lengths.tokens]
    for capacity in (3_000, 28_672):
        fitting = Fitting(blocks, lengths.weights, capacity)
        for level in (0.5, 0.99):
            n = fitting.largest(level)
            assert fitting.probability(n) >= level > fitting.probability(n + 1)


def test_cells_agree_with_blocks() -> None:
    lengths = parse_lengths("p50=1000,p95=8000,max=32000")
    blocks = [-(-tokens // 16) for tokens in lengths.tokens]
    exact = Fitting(blocks, lengths.weights, 14_000, 20_000)
    coarse = Fitting(blocks, lengths.weights, 14_000, 2_000)
    assert exact.exact
    assert not coarse.exact
    for n in (20, 50, 60, 80):
        assert coarse.probability(n) == pytest.approx(exact.probability(n), abs=2e-3)
    assert abs(coarse.largest(0.99) - exact.largest(0.99)) <= 1


def test_it_agrees_with_drawing_at_random() -> None:
    lengths = parse_lengths("lognormal:median=1000,p95=6000,max=32000")
    blocks = [-(-tokens // 16) for tokens in lengths.tokens]
    n, capacity = 60, 8_000
    rng = random.Random(7)
    draws = 3_000
    fits = sum(sum(rng.choices(blocks, lengths.weights, k=n)) <= capacity for _ in range(draws)) / draws
    assert Fitting(blocks, lengths.weights, capacity).probability(n) == pytest.approx(fits, abs=0.03)


def test_one_length_is_a_division() -> None:
    fitting = Fitting([512], [1.0], 28_672)
    assert fitting.largest(0.99) == 56
    assert fitting.probability(56) == 1.0
    assert fitting.probability(57) == 0.0


def test_a_request_longer_than_the_pool_never_fits() -> None:
    fitting = Fitting([10, 10_000], [0.5, 0.5], 100)
    assert fitting.probability(1) == pytest.approx(0.5)
    assert fitting.largest(0.99) == 0
    assert fitting.largest(0.4) == 1


def test_a_rare_giant_lets_more_through_than_the_mean_says() -> None:
    fitting = Fitting([1, 90_000], [0.999_99, 0.000_01], 1_000)
    assert fitting.largest(0.99) > 1_000 / fitting.mean
