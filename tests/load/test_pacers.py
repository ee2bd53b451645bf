"""Every kind of schedule, without sleeping: counts are the integral of the rate, shares are a partition."""

from __future__ import annotations

import math
from itertools import islice, pairwise
from statistics import mean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.load.arrivals import (
    Course,
    ListedSchedule,
    OpenSchedule,
    ramp_course,
    stages_course,
    start_instants,
)
from kvprobe.load.job_setup import schedule_of
from kvprobe.load.workload_arrival import Open

rates = st.floats(0.01, 500)
lengths = st.floats(0.1, 100)
pieces = st.lists(
    st.tuples(st.one_of(st.just(0.0), rates), st.one_of(st.just(0.0), rates), lengths), max_size=5
)


def area(course_pieces: list[tuple[float, float, float]], until_s: float) -> float:
    """The integral of the rate by the trapezium rule, which is exact for straight pieces."""
    total, start = 0.0, 0.0
    for rate, end_rate, length in course_pieces:
        part = min(max(until_s - start, 0.0), length)
        reached = rate + (end_rate - rate) * part / length if math.isfinite(length) else rate
        total += (rate + reached) / 2 * part
        start += length
    return total


@given(pieces, rates, st.floats(0, 300))
def test_a_course_is_the_integral_of_its_rate(
    made: list[tuple[float, float, float]], last: float, t_s: float
) -> None:
    whole = [*made, (last, last, math.inf)]
    course = Course(whole)
    assert course.units_at(t_s) == pytest.approx(area(whole, t_s), rel=1e-9, abs=1e-9)


@given(pieces, rates, st.floats(0, 5_000))
def test_when_is_the_inverse_of_the_course(
    made: list[tuple[float, float, float]], last: float, units: float
) -> None:
    course = Course([*made, (last, last, math.inf)])
    assert course.units_at(course.when(units)) == pytest.approx(units, rel=1e-6, abs=1e-6)


@given(pieces, rates, st.floats(0, 100))
def test_constant_ticks_are_as_many_as_the_course_says(
    made: list[tuple[float, float, float]], last: float, t_s: float
) -> None:
    """One more than the whole units that are over (the first tick is at once), but for the last bit."""
    schedule = OpenSchedule("constant", Course([*made, (last, last, math.inf)]))
    units = schedule.course.units_at(t_s)
    offered = schedule.offered(t_s)
    assert abs(offered - (math.floor(units) + 1)) <= (abs(units - round(units)) < 1e-6 or units == 0)
    assert offered == sum(1 for _ in takewhile_at_most(schedule, t_s))


def takewhile_at_most(schedule: OpenSchedule, t_s: float):
    for tick in schedule.ticks():
        if tick > t_s:
            return
        yield tick


@pytest.mark.parametrize("process", ["constant", "poisson", "gamma"])
@given(seed=st.integers(0, 99), workers=st.integers(1, 7))
def test_shares_of_any_process_are_a_partition(process: str, seed: int, workers: int) -> None:
    burstiness = 2.0 if process == "gamma" else None
    schedule = OpenSchedule(process, stages_course([(5, 3), (0, 2), (40, 2)]), seed, burstiness)
    parts = [list(schedule.share(w, workers)) for w in range(workers)]
    assert sorted(tick for part in parts for tick in part) == list(schedule.ticks())
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_share_of_a_ramp_sends_no_bursts() -> None:
    """The gaps of one worker shrink evenly like those of the whole."""
    gaps = [
        b - a for a, b in pairwise(islice(OpenSchedule("constant", ramp_course(1, 20, 30)).share(2, 4), 70))
    ]
    assert all(after < before for before, after in pairwise(gaps[:60]))


def test_stages_end_and_pause() -> None:
    schedule = OpenSchedule("constant", stages_course([(10, 2), (0, 3), (5, 2)]))
    ticks = list(schedule.ticks())
    assert len(ticks) == 30
    assert not [t for t in ticks if 2 <= t < 5]
    assert ticks[20] == 5.0
    assert ticks[-1] < 7
    assert [schedule.offered(t) for t in (1.95, 2, 4.9, 5, 100)] == [20, 20, 20, 21, 30]


def test_a_ramp_goes_on_at_its_last_rate_and_may_fall() -> None:
    up = list(islice(OpenSchedule("constant", ramp_course(0, 10, 10)).ticks(), 200))
    assert up[50] == pytest.approx(10.0)
    assert [b - a for a, b in pairwise(up[60:])] == pytest.approx([0.1] * 139)
    down = OpenSchedule("constant", ramp_course(10, 2, 10))
    assert down.offered(10.0) == 61
    assert down.offered(20.0) == 81


@pytest.mark.parametrize("rate", [3.0, 7.3])
def test_a_million_ticks_do_not_drift(rate: float) -> None:
    tick = next(islice(OpenSchedule("constant", stages_course([(rate, 1e9)])).ticks(), 10**6, None))
    assert tick == pytest.approx(10**6 / rate, rel=1e-12)


@pytest.mark.parametrize("burstiness", [0.3, 1.0, 2.0])
def test_burstiness_is_the_coefficient_of_variation_of_the_gaps(burstiness: float) -> None:
    ticks = list(islice(OpenSchedule("gamma", 8.0, 3, burstiness).ticks(), 40_000))
    gaps = [b - a for a, b in pairwise(ticks)]
    assert mean(gaps) == pytest.approx(1 / 8, rel=0.05)
    assert pstdev(gaps) / mean(gaps) == pytest.approx(burstiness, rel=0.05)


@pytest.mark.parametrize("process", ["poisson", "gamma"])
def test_random_counts_follow_the_course(process: str) -> None:
    """Over many seeds the mean count is the integral; its standard error is below 1 %."""
    course = ramp_course(2, 30, 20)
    burstiness = 1.5 if process == "gamma" else None
    counts = [OpenSchedule(process, course, seed, burstiness).offered(15.0) for seed in range(400)]
    assert mean(counts) == pytest.approx(course.units_at(15.0), rel=0.04)


@given(st.lists(st.floats(0, 1e6), max_size=50), st.floats(0.01, 100), st.integers(1, 4))
def test_listed_instants_are_scaled_kept_in_order_and_shared(
    instants: list[float], scale: float, workers: int
) -> None:
    schedule = ListedSchedule(lambda: iter(sorted(instants)), scale)
    ticks = list(schedule.ticks())
    assert ticks == [t * scale for t in sorted(instants)]
    assert sorted(t for w in range(workers) for t in schedule.share(w, workers)) == ticks
    assert schedule.offered(math.inf) == len(instants)


def test_a_row_that_is_out_of_order_does_not_turn_the_clock_back() -> None:
    assert list(ListedSchedule(lambda: iter([1.0, 0.5, 2.0])).ticks()) == [1.0, 1.0, 2.0]


@given(st.integers(1, 200), st.floats(0, 600))
def test_users_begin_evenly_over_a_ramp(users: int, ramp_s: float) -> None:
    starts = start_instants(users, ramp_s)
    assert (len(starts), starts[0]) == (users, 0.0)
    assert all(0 <= s < max(ramp_s, 1e-9) for s in starts)


@pytest.mark.parametrize("bad", [[(0, 0, 5)], [(-1, 2, 5)], [(1, 1, 0)], [(math.nan, 1, 1)], []])
def test_courses_that_send_nothing_are_refused(bad: list[tuple[float, float, float]]) -> None:
    with pytest.raises(ValueError, match="rate"):
        Course(bad)


def test_gamma_needs_its_burstiness() -> None:
    with pytest.raises(ValueError, match="burstiness"):
        OpenSchedule("gamma", 1.0)


@pytest.mark.parametrize(
    ("form", "peak", "offered"),
    [
        ({"rate": 5.0, "process": "constant"}, 5.0, 51),
        ({"ramp": {"from": 0.0, "to": 10.0, "over": "10s"}, "process": "constant"}, 10.0, 51),
        (
            {"stages": [{"rate": 2.0, "for": "5s"}, {"rate": 8.0, "for": "5s"}], "process": "constant"},
            8.0,
            50,
        ),
        ({"trace": {"scale_time": 2.0}}, None, 6),
    ],
)
def test_each_form_of_a_workload_file_makes_its_schedule(form: dict, peak: float, offered: int) -> None:
    opened = Open.model_validate(form)
    assert opened.peak_rate == peak
    schedule = schedule_of(opened, 1, lambda: iter(range(100)))
    assert schedule.offered(10.0) == offered


@pytest.mark.parametrize(
    "form",
    [
        {},
        {"rate": 1.0, "ramp": {"from": 1.0, "to": 2.0, "over": "1s"}},
        {"rate": 1.0, "burstiness": 2.0},
        {"rate": 1.0, "process": "gamma"},
        {"stages": [{"rate": 0.0, "for": "1s"}]},
        {"stages": []},
    ],
)
def test_forms_that_contradict_themselves_are_refused(form: dict) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Open.model_validate(form)
