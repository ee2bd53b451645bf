"""Thresholds against made-up runs whose truth is known."""

from __future__ import annotations

import math

import pytest

from kvprobe.evidence.samples import Sample
from kvprobe.gates.expressions import parse
from kvprobe.gates.intervals import mean_interval, wilson
from kvprobe.gates.judge import GateResult, judge, judged, merged
from kvprobe.summary.build import summarise
from tests.summary.synthetic import MS, T0, Made, failed, healthy, record


def result(made: Made, text: str) -> GateResult:
    run = made.build()
    (found,) = judge([parse(text)], summarise(run), run)
    return found


def ends(found: GateResult) -> tuple[float, float]:
    assert found.ci is not None
    assert found.ci.lo is not None
    assert found.ci.hi is not None
    return found.ci.lo, found.ci.hi


def steady(n: int = 400, ttft_ms: float = 100.0, **fields: object) -> Made:
    """`n` requests whose TTFT is ttft_ms plus 0, 1, 2 ... hundredths of a millisecond."""
    rows = [record(i, sent_ms=i * 50, ttft_ms=ttft_ms + i / 100, tokens=8) for i in range(n)]
    return Made(records=rows)


def test_a_percentile_is_that_of_the_raw_rows_with_its_interval() -> None:
    found = result(steady(), "ttft.p95 < 800ms")
    assert found.verdict == "pass"
    assert found.value == pytest.approx(0.1 + 0.95 * 399 / 1e5)
    assert found.unit == "s"
    assert found.n == 400
    low, high = ends(found)
    assert low < found.value < high
    assert result(steady(), "ttft.p95 < 100ms").verdict == "fail"


@pytest.mark.parametrize(("statistic", "needs"), [("p95", 59), ("p99", 299), ("p99.9", 2995), ("p5", 59)])
def test_a_percentile_that_n_cannot_carry_fails_as_n_too_small(statistic: str, needs: int) -> None:
    below = result(steady(needs - 1), f"ttft.{statistic} < 800ms")
    assert below.verdict == "n_too_small"
    assert not below.passed
    assert below.value is None
    assert "n too small" in (below.why or "")
    assert result(steady(needs), f"ttft.{statistic} < 800ms").verdict == "pass"


def test_a_metric_that_was_not_exported_fails_as_not_measured() -> None:
    for text in ("kv_usage.p50 < 0.9", "waiting.max < 5", "preemptions == 0", "prefix_hit_rate > 0.5"):
        made = Made(records=[record(i, sent_ms=i, cached=None) for i in range(100)])
        made.gauge("scrape.ok", [1.0, 1.0])
        found = result(made, text)
        assert found.verdict == "not_measured", text
        assert found.value is None
        assert found.why == "not exported", text


def test_no_metrics_page_is_told_from_a_metric_that_is_not_exported() -> None:
    assert result(steady(), "kv_usage.max < 0.9").why == "no server metrics"


def test_waits_that_were_cut_short_are_not_left_out() -> None:
    """A server that hangs must not pass because what hung has no latency."""
    made = steady(300)
    for i in range(30):
        made.records.append(failed(1000 + i, "timeout_first", sent_ms=i * 100, after_ms=2_000))
    found = result(made, "ttft.p95 < 800ms")
    assert found.verdict == "fail"
    assert "longer than 2 s" in (found.why or "")
    assert result(made, "ttft.p50 < 800ms").verdict == "pass"
    assert result(made, "ttft.max < 800ms").verdict == "fail"
    unknown = result(made, "ttft.p95 < 5s")
    assert unknown.verdict == "not_measured", "nobody knows how long the p95 would have been"


def test_failures_that_say_nothing_of_time_do_not_move_a_latency() -> None:
    made = steady(300)
    made.records += [failed(1000 + i, "status", sent_ms=i * 100) for i in range(100)]
    found = result(made, "ttft.p95 < 800ms")
    assert (found.verdict, found.n) == ("pass", 300)
    rate = result(made, "error_rate < 10%")
    assert rate.verdict == "fail"
    assert rate.value == pytest.approx(0.25)
    low, high = ends(rate)
    assert low < 0.25 < high
    assert rate.why == "100 status"


def test_a_share_of_few_requests_passes_and_says_how_little_it_is_worth() -> None:
    found = result(steady(20), "error_rate < 1%")
    assert found.verdict == "pass"
    assert ends(found)[1] > 0.1
    assert "reaches past the limit" in (found.why or "")


def test_nothing_passes_without_a_request() -> None:
    for text in (
        "ttft.p50 < 1s",
        "ttft.mean < 1s",
        "error_rate < 1%",
        "goodput > 0/s",
        "requests_per_s >= 0",
        "requests_failed == 0",
        "requests_unsent == 0",
        "preemptions == 0",
        "max_active < 5",
        "kv_usage.max < 0.9",
        "waiting.p50 < 5",
    ):
        # A server that was only looked at, or only warmed up, has shown nothing.
        warm = Made(records=[record(i, sent_ms=i * 10, warmup=True) for i in range(400)])
        for made in (Made(), warm):
            made.marks()
            for metric in ("engine.kv_usage_ratio", "engine.requests_waiting", "engine.preemptions_total"):
                made.gauge(metric, [0.0] * 200, every_ms=5.0)
            found = result(made, text)
            assert (found.verdict, found.why) == ("not_measured", "no request was measured"), text


def test_a_server_that_hangs_on_every_request_passes_no_latency() -> None:
    """Every kind of statistic, and however the wait came to its end."""
    for kind in ("timeout_first", "timeout_total", "cancelled_at_end"):
        made = Made(records=[failed(i, kind, sent_ms=i * 10, after_ms=500) for i in range(400)])  # type: ignore[arg-type]
        for statistic in ("p50", "p95", "p0", "mean", "min", "max"):
            for metric in ("ttft", "e2e", "response_latency"):
                assert not result(made, f"{metric}.{statistic} < 1s").passed, (kind, metric, statistic)
                assert result(made, f"{metric}.{statistic} < 100ms").verdict == "fail"


def test_contradicting_and_repeated_thresholds_are_each_judged() -> None:
    made = steady()
    made.workload = {"thresholds": ["ttft.p50 < 1s", "ttft.p50 > 1s", "ttft.p50 < 1s", "ttft.median < 1ms"]}
    run = made.build()
    assert [r.verdict for r in judged(run, summarise(run))] == ["pass", "fail", "pass", "fail"]


def test_chunk_gaps_of_one_stream_count_for_less_than_their_number() -> None:
    """Two streams of 400 gaps, one fast and one slow, are two values."""
    gaps = [[base + i / 100 for i in range(400)] for base in (1.0, 90.0)]
    rows = [record(k, sent_ms=5 * k, gap_ms=gaps[k], tokens=401) for k in (0, 1)]
    assert result(Made(records=rows), "gap.p95 < 1s").verdict == "n_too_small"


def test_tpot_counts_tokens_not_chunks_and_says_what_is_missing() -> None:
    made = Made(records=[record(i, sent_ms=i * 50, gap_ms=10.0, tokens=11) for i in range(99)])
    made.records.append(record(99, sent_ms=9_000, tokens=1, gap_ms=[]))
    found = result(made, "tpot.p50 < 50ms")
    assert found.value == pytest.approx(0.010)
    assert (found.n, found.why) == (99, "1 requests that ended well do not have it")


def test_a_gauge_is_judged_over_the_load_and_replicas_are_put_together() -> None:
    made = steady(100)
    made.marks()
    for i in range(100):
        for replica, waiting, usage in (("0", 3.0, 0.2), ("1", 4.0, 0.6)):
            labels = {"replica": replica}
            t_ns = T0 + i * 40 * MS
            made.samples.append(
                Sample(t_ns=t_ns, metric="engine.requests_waiting", labels=labels, value=waiting)
            )
            made.samples.append(Sample(t_ns=t_ns, metric="engine.kv_usage_ratio", labels=labels, value=usage))
    late = T0 + 3600 * 1000 * MS
    made.samples.append(Sample(t_ns=late, metric="engine.requests_waiting", value=1e6))
    assert result(made, "waiting.p95 < 10").value == 7.0
    assert result(made, "waiting.max < 10").value == 7.0
    assert result(made, "kv_usage.mean < 0.9").value == pytest.approx(0.4)
    assert result(made, "kv_usage.max < 0.5").verdict == "fail", "the fullest replica decides"
    assert result(made, "waiting.p99 < 10").verdict == "n_too_small"


def test_goodput_counts_requests_that_meet_all_limits() -> None:
    rows = [record(i, sent_ms=i * 100, ttft_ms=100, gap_ms=10, tokens=11) for i in range(50)]
    rows += [record(50 + i, sent_ms=5000 + i * 100, ttft_ms=3_000, gap_ms=10, tokens=11) for i in range(25)]
    rows += [record(75 + i, sent_ms=7500 + i * 100, ttft_ms=100, gap_ms=300, tokens=11) for i in range(20)]
    made = Made(records=[*rows, *(failed(95 + i, "status", sent_ms=9500 + i * 100) for i in range(5))])
    made.workload = {"name": "x", "slo": {"ttft": "2s", "tpot": "200ms"}}
    share = result(made, "slo_attainment > 40%")
    assert (share.value, share.n, share.verdict) == (0.5, 100, "pass")
    run = made.build()
    seconds = summarise(run).window.seconds
    assert seconds is not None
    rate = result(made, "goodput > 1/s")
    assert rate.value == pytest.approx(50 / seconds)
    assert rate.unit == "requests/s"
    assert "50 of 100" in (rate.why or "")


def test_goodput_without_usage_or_without_limits_is_not_measured() -> None:
    made = Made(records=[record(i, sent_ms=i * 100, completion_tokens=None) for i in range(20)])
    made.workload = {"slo": {"ttft": "2s", "tpot": "200ms"}}
    assert result(made, "goodput > 1/s").verdict == "not_measured"
    made.workload = {"slo": {"ttft": "2s"}}
    assert result(made, "goodput > 1/s").verdict == "pass", "the tokens do not matter to this limit"
    made.workload = {}
    assert result(made, "goodput > 1/s").verdict == "not_measured"


def test_the_metrics_of_a_healthy_server() -> None:
    made = healthy()
    for text in (
        "prefix_hit_rate > 60%",
        "preemptions == 0",
        "output_tokens_per_s > 10",
        "max_active <= 4",
        "requests_failed == 0",
        "requests_unsent == 0",
        "requests_ok >= 100",
        "kv_usage.max < 0.5",
        "dispatch_delay.p95 < 1ms",
    ):
        assert result(made, text).verdict == "pass", text


def test_a_run_is_judged_by_the_thresholds_of_its_own_workload() -> None:
    made = steady()
    made.workload = {"thresholds": ["ttft.p95 < 800ms", "e2e.p99 < 1ms", "no threshold", 3]}
    run = made.build()
    results = judged(run, summarise(run))
    assert [r.verdict for r in results] == ["pass", "fail", "not_measured", "not_measured"]
    assert [r.metric for r in results] == ["ttft.p95", "e2e.p99", "no threshold", "3"]
    assert "no threshold that can be read: there is no metric `no`" in (results[2].why or "")
    assert not results[2].passed, "what was demanded does not vanish"


def test_an_option_replaces_the_same_question_and_joins_the_rest() -> None:
    file = ["ttft.p95 < 800ms", "ttft.p95 > 1ms", "error_rate < 1%"]
    assert merged(file, ["ttft.p95 <= 2s", "kv_usage.max < 0.9"]) == [
        "ttft.p95 > 1ms",
        "error_rate < 1%",
        "ttft.p95 <= 2s",
        "kv_usage.max < 0.9",
    ]


def test_intervals_hold_what_they_should() -> None:
    assert wilson(0, 0) is None
    low, high = wilson(0, 299) or (1, 1)
    assert low == 0.0
    assert 0.01 < high < 0.02
    low, high = wilson(50, 100) or (0, 0)
    assert (round(low, 3), round(high, 3)) == (0.404, 0.596)
    assert mean_interval([1.0] * 39) is None
    # Values that drift: batch means see it, the plain error of the mean would not.
    drifting = [i / 1000 for i in range(1000)]
    low, high = mean_interval(drifting) or (0, 0)
    plain = 1.96 * (1000**2 / 12) ** 0.5 / 1000 / math.sqrt(1000)
    assert (high - low) / 2 > 4 * plain
