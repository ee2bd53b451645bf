"""Overlap, gauges and counters."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.evidence.records import OpenedRequest, RequestRecord
from kvprobe.evidence.samples import Sample
from kvprobe.summary import activity
from tests.summary.synthetic import MS, T0, Made, failed, record


def span(index: int, start: int, end: int) -> RequestRecord:
    return record(index, sent_ns=T0 + start, end_ns=T0 + end)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), min_size=1, max_size=40))
def test_overlap_equals_counting_at_every_nanosecond(spans: list[tuple[int, int]]) -> None:
    rows = [span(i, a, a + length) for i, (a, length) in enumerate(spans)]
    brute = max(sum(1 for a, length in spans if a <= t < a + length) for t in range(100))
    assert activity.overlap_max(rows, [], None) == brute


def test_one_that_ends_as_another_starts_does_not_overlap_it() -> None:
    assert activity.overlap_max([span(0, 0, 10), span(1, 10, 20)], [], None) == 1


def test_a_request_cut_in_flight_counts_to_the_end_of_the_evidence() -> None:
    opened = [OpenedRequest(request_id="x", plan_index=9, intended_ns=T0, sent_ns=T0)]
    assert activity.overlap_max([span(0, 5, 9), span(1, 20, 30)], opened, T0 + 40) == 2
    # A request with a record is not counted twice.
    opened.append(OpenedRequest(request_id="r0", plan_index=0, intended_ns=T0, sent_ns=T0))
    assert activity.overlap_max([span(0, 5, 9), span(1, 20, 30)], opened, T0 + 40) == 2


def test_no_request_is_null_and_an_instant_is_one() -> None:
    assert activity.overlap_max([], [], None) is None
    assert activity.overlap_max([span(0, 5, 5)], [], None) == 1
    assert activity.overlap_max([failed(0, "connect", sent_ns=None)], [], None) is None


def test_a_gauge_of_two_engines_is_averaged_and_its_peak_kept() -> None:
    made = Made()
    made.gauge("engine.kv_usage_ratio", [0.2, 0.4], engine="0").gauge(
        "engine.kv_usage_ratio", [0.6, 1.0], engine="1"
    )
    assert [v for _, v in activity.series(made.samples, "engine.kv_usage_ratio")] == [0.4, 0.7]
    assert activity.largest(made.samples, "engine.kv_usage_ratio") == 1.0


def test_readings_that_are_no_numbers_are_left_out() -> None:
    made = Made().gauge("m", [None, math.nan, math.inf, 3.0])
    assert [v for _, v in activity.series(made.samples, "m")] == [3.0]
    assert activity.largest(made.samples, "other") is None


def test_a_counter_counts_between_the_marks_only() -> None:
    made = Made()
    for t, v in ((0, 100.0), (1_000, 110.0), (2_000, 150.0), (3_000, 400.0)):
        made.samples.append(Sample(t_ns=T0 + t * MS, metric="c", value=v))
    made.samples.append(Sample(t_ns=T0 + 1_001 * MS, metric="mark.load_start", value=1.0))
    made.samples.append(Sample(t_ns=T0 + 2_003 * MS, metric="mark.load_end", value=1.0))
    found = activity.increase(made.samples, "c")
    assert found is not None
    assert (found.value, found.resets) == (40.0, 0)


def test_a_counter_that_starts_again_is_no_negative_rate() -> None:
    found = activity.increase(Made().gauge("c", [100.0, 130.0, 5.0, 25.0]).samples, "c")
    assert found is not None
    assert (found.value, found.resets) == (30.0 + 5.0 + 20.0, 1)


def test_a_counter_sums_its_label_sets_and_needs_two_readings() -> None:
    made = Made().gauge("c", [0.0, 10.0], reason="stop").gauge("c", [0.0, 5.0], reason="length")
    found = activity.increase(made.samples, "c")
    assert found is not None
    assert found.value == 15.0
    assert activity.increase(Made().gauge("c", [7.0]).samples, "c") is None


def test_the_servers_own_mark_is_preferred_to_its_gauge() -> None:
    made = Made().gauge("engine.requests_running", [1.0, 3.0])
    sampled = activity.max_active([record(0)], [], made.samples, None)
    assert (sampled.server, sampled.server_source) == (3.0, "sampled")
    made.gauge("engine.requests_running_max", [4.0, 7.0])
    marked = activity.max_active([record(0)], [], made.samples, None)
    assert (marked.client, marked.server, marked.server_source) == (1, 7.0, "high_water")
    assert activity.max_active([], [], [], None).server is None


@pytest.mark.parametrize(
    ("mark", "running", "server", "source"),
    [
        ([0, 2, 4, 4], [0, 1, 2, 0], 4, "high_water"),
        ([8, 8, 8, 8], [0, 1, 2, 0], 2, "sampled"),  # the mark is of an earlier load
        ([8, 8, 9, 9], [0, 1, 2, 0], 9, "high_water"),
        ([8, 8, 0, 2], [0, 1, 2, 0], 2, "high_water"),  # restarted
        ([8, 8, 8, 8], [], None, None),
    ],
)
def test_the_servers_high_water_mark_counts_only_if_it_rose(
    mark: list[float], running: list[float], server: float | None, source: str | None
) -> None:
    made = Made(records=[record(0), record(1)])
    made.gauge("engine.requests_running_max", mark).gauge("engine.requests_running", running)
    found = activity.max_active(made.build().records, [], made.build().samples, None)
    assert (found.server, found.server_source) == (server, source)
    assert found.client == 2
