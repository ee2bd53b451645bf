"""Schedules, without sleeping."""

from __future__ import annotations

import math
from itertools import islice, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.load.arrivals import OpenSchedule


def first(schedule: OpenSchedule, count: int) -> list[float]:
    return list(islice(schedule.ticks(), count))


def test_constant_ticks_do_not_drift() -> None:
    schedule = OpenSchedule("constant", 3.0)
    assert next(islice(schedule.ticks(), 3_000_000, None)) == 1_000_000.0
    assert first(schedule, 4) == [0.0, 1 / 3, 2 / 3, 1.0]


def test_poisson_has_the_mean_rate() -> None:
    """10,000 exponential gaps: the mean's standard error is 1 %."""
    ticks = first(OpenSchedule("poisson", 7.0, seed=3), 10_000)
    assert 10_000 / ticks[-1] == pytest.approx(7.0, rel=0.04)


@pytest.mark.parametrize("seed", range(5))
def test_poisson_gaps_are_exponential(seed: int) -> None:
    """Kolmogorov-Smirnov: sup |F_n - F| beyond 1.95 / sqrt(n) has a probability of 0.1 %."""
    rate, n = 20.0, 5_000
    ticks = [0.0, *first(OpenSchedule("poisson", rate, seed), n)]
    gaps = sorted(b - a for a, b in pairwise(ticks))
    distance = 0.0
    for i, gap in enumerate(gaps):
        expected = 1 - math.exp(-rate * gap)
        distance = max(distance, abs((i + 1) / n - expected), abs(i / n - expected))
    assert distance < 1.95 / math.sqrt(n)


def test_the_same_test_tells_constant_gaps_from_exponential_ones() -> None:
    gap = 1 / 20.0
    assert 1 - math.exp(-20.0 * gap) > 1.95 / math.sqrt(5_000)


def test_poisson_gaps_are_not_correlated() -> None:
    ticks = first(OpenSchedule("poisson", 1.0, 11), 20_000)
    gaps = [b - a - 1 for a, b in pairwise(ticks)]
    lag_one = sum(a * b for a, b in pairwise(gaps)) / sum(g * g for g in gaps)
    assert abs(lag_one) < 0.03


@pytest.mark.parametrize("process", ["constant", "poisson"])
def test_schedules_repeat_and_ascend(process: str) -> None:
    schedule = OpenSchedule(process, 50.0, 9)
    ticks = first(schedule, 2_000)
    assert ticks == first(OpenSchedule(process, 50.0, 9), 2_000)
    assert ticks == sorted(ticks)
    assert ticks[0] >= 0


def test_seeds_differ() -> None:
    assert first(OpenSchedule("poisson", 5.0, 1), 3) != first(OpenSchedule("poisson", 5.0, 2), 3)


@given(st.sampled_from(["constant", "poisson"]), st.integers(1, 7))
def test_shares_are_the_schedule(process: str, workers: int) -> None:
    schedule = OpenSchedule(process, 5.0, 4)
    parts = [list(islice(schedule.share(w, workers), 40)) for w in range(workers)]
    woven = [tick for row in zip(*parts, strict=True) for tick in row]
    assert woven == first(schedule, 40 * workers)


def test_a_share_sends_no_bursts() -> None:
    gaps = list(islice(OpenSchedule("constant", 10.0).share(1, 4), 50))
    assert [b - a for a, b in pairwise(gaps)] == pytest.approx([0.4] * 49)


@pytest.mark.parametrize("process", ["constant", "poisson"])
def test_offered_counts_the_ticks_so_far(process: str) -> None:
    schedule = OpenSchedule(process, 3.0, 8)
    ticks = first(schedule, 200)
    for elapsed in (0.0, 0.5, 1.0, 7.3, ticks[50]):
        assert schedule.offered(elapsed) == sum(1 for tick in ticks if tick <= elapsed)
    assert schedule.offered(-1.0) == 0


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_rates_that_make_no_sense(rate: float) -> None:
    with pytest.raises(ValueError, match="rate"):
        OpenSchedule("constant", rate)


def test_unknown_processes_and_workers() -> None:
    with pytest.raises(ValueError, match="process"):
        OpenSchedule("bursty", 1.0)
    with pytest.raises(ValueError, match="worker"):
        OpenSchedule("constant", 1.0).share(2, 2)
