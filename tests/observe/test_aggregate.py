"""Counters over restarts, histograms by growth, replicas together."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.observe.aggregate import (
    Growth,
    Quantile,
    bucket_growth,
    buckets_of,
    growth,
    merged,
    over_replicas,
    quantile,
)
from kvprobe.observe.dialects import Absent


def test_growth_over_a_restart() -> None:
    assert growth([5, 9, 2, 3]) == Growth(4 + 2 + 1, resets=1)
    assert growth([5, math.nan, 9]) == Growth(4)
    assert growth([5]) is None
    assert growth([]) is None


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=5), min_size=1, max_size=5))
def test_growth_is_what_was_counted_since_the_first_reading(lives: list[list[int]]) -> None:
    """Lives of a server, each with its increments; it is read after each. A life whose first reading does
    not lie below the last one of the life before cannot be told from growth."""
    readings, truth = [], 0
    for number, increments in enumerate(lives):
        total, start = 0, readings[-1] if readings else None
        for position, step in enumerate(increments):
            total += step
            if position == 0 and start is not None and total >= start:
                return  # not to be told apart
            truth += step if number or position else 0
            readings.append(total)
    found = growth([float(value) for value in readings])
    assert found is None or found.value == truth


def test_shares_are_averaged_and_counts_summed_never_the_other_way() -> None:
    assert over_replicas("engine.kv_usage_ratio", [0.9, 0.5]) == pytest.approx(0.7)
    assert over_replicas("engine.requests_running", [3.0, 4.0]) == 7
    assert over_replicas("engine.kv_usage_ratio_max", [0.2, 0.8]) == 0.8
    # A mean is taken over those that answer; a sum without one of them is not known.
    assert over_replicas("engine.kv_usage_ratio", [0.9, Absent.SCRAPE_FAILED]) == 0.9
    assert over_replicas("engine.requests_running", [3.0, Absent.SCRAPE_FAILED]) is Absent.SCRAPE_FAILED
    assert over_replicas("engine.kv_usage_ratio", [Absent.NOT_EXPORTED] * 2) is Absent.NOT_EXPORTED
    assert over_replicas("engine.kv_usage_ratio", []) is Absent.NO_READING


def test_quantiles_by_linear_interpolation() -> None:
    buckets = {0.1: 0.0, 0.5: 8.0, 1.0: 9.0, math.inf: 10.0}
    assert quantile(buckets, 0.5) == Quantile(pytest.approx(0.35))
    assert quantile(buckets, 0.9) == Quantile(1.0)
    assert quantile(buckets, 0.95) == Quantile(1.0, at_least=True)
    assert quantile({2.0: 4.0, math.inf: 4.0}, 0.5) == Quantile(1.0)
    assert quantile({}, 0.5) is None
    assert quantile({1.0: 0.0, math.inf: 0.0}, 0.5) is None
    assert quantile({math.inf: 3.0}, 0.5) == Quantile(0.0, at_least=True)


@given(
    st.lists(st.floats(0.001, 90), min_size=1, max_size=60),
    st.lists(st.sampled_from([0.01, 0.1, 0.5, 1, 2, 5, 10, 100]), min_size=1, unique=True),
    st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_a_quantile_lies_in_the_bucket_of_the_true_one(
    values: list[float], edges: list[float], q: float
) -> None:
    every = [*sorted(edges), math.inf]
    found = quantile({edge: float(sum(v <= edge for v in values)) for edge in every}, q)
    true = sorted(values)[math.ceil(q * len(values)) - 1]
    assert found is not None
    high = min(edge for edge in every if true <= edge)
    low = max((edge for edge in every if edge < high), default=0.0)
    assert found.at_least == math.isinf(high)
    assert low <= found.value <= high


def test_growth_of_buckets() -> None:
    before, after = {1.0: 3.0, math.inf: 5.0}, {1.0: 4.0, math.inf: 8.0}
    assert bucket_growth(before, after) == {1.0: 1.0, math.inf: 3.0}
    assert bucket_growth(after, before) == before  # it restarted
    assert bucket_growth({2.0: 1.0, math.inf: 1.0}, after) is None
    assert bucket_growth({}, after) is None


def test_replicas_with_different_edges_meet_at_those_they_share() -> None:
    one, two = {0.1: 1.0, 1.0: 4.0, math.inf: 5.0}, {0.5: 2.0, 1.0: 3.0, math.inf: 7.0}
    assert merged([one, two]) == {1.0: 7.0, math.inf: 12.0}
    assert merged([]) == {}


def test_damaged_edges_are_left_out() -> None:
    readings = [
        ("engine.ttft_seconds_bucket", {"le": edge}, value)
        for edge, value in (("1", 2.0), ("+Inf", 3.0), ("x", 9.0), ("nan", 9.0), ("", 9.0), ("5", math.nan))
    ]
    assert buckets_of(readings, "engine.ttft_seconds") == {1.0: 2.0, math.inf: 3.0}
