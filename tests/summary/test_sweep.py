"""Sweeps as pure numbers: published tables as goldens, verdicts, intervals, the way of the search."""

from __future__ import annotations

import pytest

from kvprobe.summary.backlog import Backlog
from kvprobe.summary.knee import find_knee
from kvprobe.summary.student import student_975
from kvprobe.summary.sweep import (
    Bound,
    Interval,
    Limits,
    Step,
    Verdict,
    judge,
    limit_interval,
    next_load,
)
from kvprobe.summary.sweep_result import sweep_result, undecided_because_invalid
from kvprobe.summary.sweep_text import interval_text, knee_text, overload_text

LIMITS = Limits()


def p50(value: float) -> dict[str, Bound]:
    return {"p50": Bound(value=value)}


def slope(growth: float, lo: float, hi: float, seconds: float = 10.0, **rest: object) -> Backlog:
    return Backlog(growth_per_s=growth, lo_per_s=lo, hi_per_s=hi, seconds=seconds, at_end=5.0, **rest)  # type: ignore[arg-type]


def judged(load: float, verdict: Verdict, **rest: object) -> Step:
    return Step(load=load, verdict=verdict, **rest)  # type: ignore[arg-type]


def test_s35_offered_above_served() -> None:
    """github.com/vllm-project/vllm issue 6781: 12 requests/s offered, 5.80 completed, mean TTFT 18.8 s."""
    step = Step(load=12.0, served_per_s=5.80, ttft_s={"mean": Bound(value=18.8)}, queue_p50_s=17.9)
    step.verdict, step.why = judge(step, "rate", LIMITS)
    assert step.verdict == "overloaded"
    assert overload_text(step) == (
        "Offered 12.0 > served 5.80: backlog grows 6.2 req/s. TTFT is queueing (server queue p50 17.9 s), "
        "not prefill. Percentiles at this rate depend on run length: do not quote."
    )
    step.queue_p50_at_least = True
    assert "(server queue p50 above 17.9 s)" in overload_text(step)
    step.queue_p50_s, step.queue_s = None, 17.9
    assert "(server queue 17.9 s on average)" in overload_text(step)


def test_without_a_queue_time_ttft_is_not_called_queueing_as_measured() -> None:
    step = Step(load=12.0, served_per_s=5.80, ttft_s={"mean": Bound(value=18.8)})
    step.verdict, step.why = judge(step, "rate", LIMITS)
    assert "exports no queue time" in overload_text(step)
    step.queue_s = 0.1
    assert "is queueing" not in overload_text(step)


def test_s36_knee() -> None:
    """docs.nvidia.com/nim/benchmarking/llm, 70B on two cards: 50 and 100 users."""
    steps = [
        Step(load=50, output_tokens_per_s=814.0, ttft_s=p50(0.83)),
        Step(load=100, output_tokens_per_s=917.0, ttft_s=p50(8.0)),
    ]
    knee = find_knee(steps)
    assert knee_text(knee, steps, "users") == "Knee between 50 and 100: +13 % throughput for 9.6x TTFT."


def test_s37_interval() -> None:
    """resume-site-4js.pages.dev/experiments/kv-cache: 1.10 ok, 1.15 queues 14.0 s, 1.20 queues 36.9 s."""
    steps = [
        judged(1.10, "sustained", tpot_s=p50(0.03)),
        judged(1.15, "overloaded", tpot_s=p50(0.0301), queue_s=14.0),
        judged(1.20, "overloaded", tpot_s=p50(0.0302), queue_s=36.9),
    ]
    found = limit_interval(steps)
    assert (found.lo, found.hi) == (1.10, 1.15)
    told = interval_text(found, steps, "rate")
    assert told == "Sustainable 1.10 req/s [1.10, 1.15); decode unchanged, queue grows."


def test_no_knee_where_throughput_follows_the_load() -> None:
    steps = [Step(load=n, output_tokens_per_s=10.0 * n, ttft_s=p50(0.1)) for n in (1, 2, 4)]
    assert find_knee(steps) is None
    assert knee_text(None, steps, "users") == "No knee between 1.00 and 4.00 users."


def test_slow_ttft_alone_is_no_knee() -> None:
    steps = [
        Step(load=1, output_tokens_per_s=10.0, ttft_s=p50(0.1)),
        Step(load=2, output_tokens_per_s=19.0, ttft_s=p50(0.3)),
    ]
    assert find_knee(steps) is None


def test_ttft_that_rises_far_more_than_throughput_is_a_knee() -> None:
    steps = [
        Step(load=16, served_per_s=17.0, ttft_s=p50(0.055)),
        Step(load=32, served_per_s=24.4, ttft_s=p50(1.19)),
    ]
    knee = find_knee(steps, "rate")
    assert knee_text(knee, steps, "rate") == "Knee between 16 and 32: +44 % throughput for 21.6x TTFT."


def test_a_dip_of_a_noisy_curve_is_no_knee() -> None:
    rows = [(1, 10.0, 0.10), (2, 10.5, 0.16), (4, 41.0, 0.16), (8, 80.0, 0.18)]
    assert find_knee([Step(load=n, output_tokens_per_s=t, ttft_s=p50(s)) for n, t, s in rows]) is None


def test_a_flat_curve_a_single_point_and_rows_without_numbers_have_no_knee() -> None:
    flat = [Step(load=n, output_tokens_per_s=10.0, ttft_s=p50(0.1 + 0.01 * (n % 3))) for n in range(1, 9)]
    assert find_knee(flat) is None
    assert knee_text(None, flat[:1], "users") == "No knee can be told: fewer than two valid steps."
    assert find_knee([Step(load=1), Step(load=2)]) is None
    repeated = [Step(load=2, output_tokens_per_s=t, ttft_s=p50(s)) for t, s in ((10.0, 0.1), (9.0, 0.9))]
    assert find_knee(repeated) is None, "two runs of one load are no rise of the load"


def test_a_server_that_collapses_has_a_knee() -> None:
    steps = [
        Step(load=8, served_per_s=8.0, ttft_s=p50(0.1)),
        Step(load=16, served_per_s=3.0, ttft_s=p50(9.0)),
    ]
    knee = find_knee(steps, "rate")
    assert knee_text(knee, steps, "rate") == "Knee between 8.00 and 16: -62 % throughput for 90.0x TTFT."


def test_an_invalid_step_makes_no_knee() -> None:
    steps = [
        Step(load=50, output_tokens_per_s=814.0, ttft_s=p50(0.83)),
        Step(load=100, output_tokens_per_s=917.0, ttft_s=p50(8.0), valid=False),
    ]
    assert find_knee(steps) is None


def test_the_knee_of_rates_leaves_out_tokens_that_came_after() -> None:
    steps = [
        Step(load=8, served_per_s=8.0, output_tokens_per_s=128.0, ttft_s=p50(0.07)),
        Step(load=16, served_per_s=7.4, output_tokens_per_s=250.0, ttft_s=p50(0.7)),
    ]
    assert find_knee(steps, "rate") is not None


@pytest.mark.parametrize(
    ("backlog", "verdict"),
    [
        (slope(0.1, -0.2, 0.4), "sustained"),
        (slope(2.0, 1.5, 2.5), "overloaded"),
        (slope(2.0, -0.5, 4.5), "undecided"),
        # Surely above 0, and by less than matters.
        (slope(0.3, 0.1, 0.45), "sustained"),
        # Surely growing, by fewer requests than a step's last arrivals: neither is shown.
        (slope(1.0, 0.9, 1.1, seconds=2.0), "undecided"),
        # Rising, while as much is done as was asked for: a bunch of arrivals.
        (slope(2.0, 1.5, 2.5, done_per_s=9.6, done_hi_per_s=10.4), "undecided"),
        (slope(2.0, 1.5, 2.5, done_per_s=8.1, done_hi_per_s=8.4), "overloaded"),
        # Rising with what is served, for less than a few turns: the load may be settling.
        (slope(2.0, 1.5, 2.5, turns=1.5, served_rises=True), "undecided"),
        (slope(2.0, 1.5, 2.5, turns=9.0, served_rises=True), "overloaded"),
        (slope(2.0, 1.5, 2.5, turns=1.5, served_rises=False), "overloaded"),
        (slope(2.0, 1.5, 2.5, turns=1.5, served_rises=True, waiting_lo_per_s=1.0), "overloaded"),
    ],
)
def test_verdict_of_a_slope(backlog: Backlog, verdict: str) -> None:
    found, why = judge(Step(load=10.0, served_per_s=9.0, backlog=backlog), "rate", LIMITS)
    assert found == verdict, why


def test_too_few_requests_tell_nothing() -> None:
    assert judge(Step(load=2.0), "rate", LIMITS)[0] == "undecided"
    few = Step(load=2.0, requests=10, served_per_s=1.5)
    assert judge(few, "rate", LIMITS)[0] == "undecided", "what was still running is no backlog"


def test_no_more_than_what_came_is_called_sustained() -> None:
    came = slope(0.0, -0.1, 0.1, seconds=20.0, offered_per_s=7.5)
    steps = [judged(8, "sustained", backlog=came), judged(16, "overloaded")]
    found = limit_interval(steps)
    assert (found.lo, found.hi, found.lo_step) == (7.55, 16, 0)
    assert "of 8.00 req/s, 7.55 came" in found.notes[0]
    assert "Sustainable 7.55 req/s [7.55, 16)" in interval_text(found, steps, "rate")


def test_failures_and_invalid_measurements_come_first() -> None:
    fine = {"backlog": slope(0.0, -0.1, 0.1)}
    assert judge(Step(load=10.0, failed_share=0.02, **fine), "rate", LIMITS)[0] == "failed"  # type: ignore[arg-type]
    assert judge(Step(load=10.0, failed_share=0.01, **fine), "rate", LIMITS)[0] == "sustained"  # type: ignore[arg-type]
    late = Step(load=10.0, valid=False, invalid_because="the client was late", backlog=slope(5.0, 4.0, 6.0))
    assert judge(late, "rate", LIMITS) == ("invalid", "the client was late")


def test_one_failure_among_few_is_no_rate_of_failures() -> None:
    fine = slope(0.0, -0.1, 0.1)

    def found(requests: int | None, failed: int, limit: float = 0.01) -> str:
        share = failed / (requests or 100)
        step = Step(load=10.0, failed_share=share, requests=requests, backlog=fine)
        return judge(step, "rate", Limits(failed_share=limit))[0]

    assert found(40, 1) == "undecided"
    assert found(40, 8) == "failed"
    assert found(1000, 11) == "undecided"
    assert found(1000, 20) == "failed"
    assert found(40, 1, limit=0.0) == "failed", "none may fail, and one did"
    assert found(None, 2) == "failed", "a published share is taken as it stands"


@pytest.mark.parametrize(
    ("bound", "verdict"),
    [
        (Bound(value=0.4, lo=0.3, hi=0.45), "sustained"),
        (Bound(value=0.6, lo=0.55, hi=0.7), "slo_missed"),
        (Bound(value=0.45, lo=0.4, hi=0.6), "undecided"),
        (Bound(reason="n too small: 20, p95 needs 59"), "undecided"),
    ],
)
def test_verdict_of_a_limit(bound: Bound, verdict: str) -> None:
    step = Step(load=4, ttft_s={"p95": bound})
    assert judge(step, "users", Limits(ttft_s=0.5))[0] == verdict


def test_users_without_a_limit_are_always_sustained_and_give_no_interval() -> None:
    steps = [Step(load=n, output_tokens_per_s=10.0, ttft_s=p50(0.1)) for n in (1, 2)]
    result = sweep_result("users", LIMITS, steps, constant=False)
    assert result.interval is None
    assert not any("Sustainable" in sentence for sentence in result.sentences)


def test_a_sustained_load_above_a_bad_one_is_told_and_not_used() -> None:
    steps = [judged(2, "sustained"), judged(4, "overloaded"), judged(8, "sustained")]
    found = limit_interval(steps)
    assert (found.lo, found.hi) == (2, 4)
    assert "8.00 was sustained although 4.00 was not" in found.notes[0]


def test_undecided_steps_widen_the_interval() -> None:
    steps = [judged(2, "sustained"), judged(4, "undecided"), judged(8, "overloaded")]
    found = limit_interval(steps)
    assert (found.lo, found.hi) == (2, 8)
    assert found.notes == ["not decided: 4.00"]


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Interval(lo=None, hi=None), "No step could be decided"),
        (Interval(lo=None, hi=2.0), "the limit lies below 2.00 req/s"),
        (Interval(lo=8.0, hi=None), "at least 8.00 req/s [8.00, not reached)"),
    ],
)
def test_an_interval_with_an_open_end(found: Interval, words: str) -> None:
    assert words in interval_text(found, [], "rate")


def walk(truth: float, ladder: list[float], refinements: int) -> list[float]:
    """The loads that the search tries on a server that sustains `truth`."""
    steps: list[Step] = []
    while (load := next_load(steps, ladder, refinements)) is not None:
        steps.append(judged(load, "sustained" if load <= truth else "overloaded"))
        assert len(steps) < 50
    return [step.load for step in steps]


def test_the_search_goes_up_and_then_between() -> None:
    assert walk(10.0, [2, 4, 8, 16, 32], 3) == [2, 4, 8, 16, 11.3, 9.51, 10.4]


def test_the_search_ends_at_the_top_and_below_the_bottom() -> None:
    assert walk(100.0, [2, 4], 3) == [2, 4]
    assert walk(1.0, [2, 4], 3) == [2]


def test_numbers_of_users_stay_whole() -> None:
    assert all(load.is_integer() for load in map(float, walk(70.0, [16, 32, 64, 128], 4)))


def test_an_undecided_step_sends_the_search_below_it() -> None:
    steps = [judged(2, "sustained"), judged(8, "overloaded"), judged(4, "undecided")]
    load = next_load(steps, [2, 8], 3)
    assert load is not None
    assert 2 < load < 4


def test_a_sweep_is_invalid_only_where_its_answer_depends_on_it() -> None:
    good = Step(load=2, backlog=slope(0.0, -0.1, 0.1))
    bad = Step(load=8, backlog=slope(5.0, 4.0, 6.0))
    lost = Step(load=4, valid=False)
    assert not undecided_because_invalid(sweep_result("rate", LIMITS, [good, lost, bad], constant=True))
    assert undecided_because_invalid(sweep_result("rate", LIMITS, [good, lost], constant=True))
    below = Step(load=1, valid=False)
    assert not undecided_because_invalid(sweep_result("rate", LIMITS, [below, good], constant=True))
    assert undecided_because_invalid(sweep_result("rate", LIMITS, [lost], constant=True))
    assert not undecided_because_invalid(sweep_result("rate", LIMITS, [good], constant=True))


def test_constant_arrivals_are_told_to_flatter() -> None:
    good = Step(load=2, backlog=slope(0.0, -0.1, 0.1))
    assert any("bunches" in note for note in sweep_result("rate", LIMITS, [good], constant=True).notes)
    assert not sweep_result("rate", LIMITS, [good], constant=False).notes


@pytest.mark.parametrize(("freedom", "value"), [(5, 2.5706), (8, 2.3060), (10, 2.2281), (30, 2.0423)])
def test_student(freedom: int, value: float) -> None:
    assert student_975(freedom) == pytest.approx(value, rel=0.01)
