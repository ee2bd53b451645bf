"""Each check of the measurement, just below and just above its threshold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvprobe.diagnose import client_checks, validity
from kvprobe.diagnose.issues import Issue
from kvprobe.diagnose.rules.client import client_bound
from kvprobe.diagnose.view import View
from kvprobe.evidence.samples import Sample
from kvprobe.summary.build import summarise
from tests.summary.synthetic import MS, T0, Made, S, failed, healthy, record


def view(made: Made) -> View:
    run = made.build()
    return View(run, summarise(run))


def issues(made: Made) -> list[Issue]:
    return validity.check(view(made))[1]


def invalid(made: Made) -> list[str]:
    return [i.code for i in issues(made) if i.level == "invalid"]


def warnings(made: Made) -> str:
    return "\n".join(i.text for i in issues(made) if i.level == "warning")


def lags(made: Made, ms: float, share: float) -> Made:
    """The last `share` of the lag windows are so late."""
    mine = [s for s in made.samples if s.metric == "client.loop_lag_s"]
    for s in mine[len(mine) - round(share * len(mine)) :]:
        s.value = ms / 1e3
    return made


def test_a_healthy_run_is_valid() -> None:
    assert invalid(healthy()) == []


def test_a_late_loop_is_invalid_and_a_rare_lag_is_not() -> None:
    assert invalid(lags(healthy(), 15, 0.5)) == ["late_client"]
    assert invalid(lags(healthy(), 9, 0.5)) == []
    assert invalid(lags(healthy(), 15, 0.05)) == []


def test_a_late_loop_must_also_matter_against_what_is_reported() -> None:
    slow = Made(records=[record(i, sent_ms=i * 100, ttft_ms=5_000, gap_ms=900) for i in range(30)])
    slow.gauge("client.loop_lag_s", [0.015] * 40, every_ms=250)
    assert invalid(slow) == []


def test_estimated_p99_of_lags_agrees_with_the_lags_themselves() -> None:
    import numpy as np

    lag = np.random.default_rng(1).exponential(0.002, size=(4_000, client_checks.LAGS_PER_WINDOW))
    made = Made(records=[record(0)])
    made.gauge("client.loop_lag_s", [float(x) for x in lag.max(axis=1)], every_ms=0.1)
    found = client_checks.loop_lag_p99_s(view(made))
    assert found == pytest.approx(float(np.quantile(lag, 0.99)), rel=0.1)


def late(n: int, delay_ms: float, *, crowd: int = 0) -> Made:
    """Requests that left late; `crowd` others in flight all the while."""
    made = Made(records=[record(i, sent_ms=1_000 + 50 * i, late_ms=delay_ms) for i in range(n)])
    made.records += [record(900 + i, sent_ms=0, end_ns=T0 + 60 * S) for i in range(crowd)]
    return made


def test_a_late_dispatch_with_room_is_invalid() -> None:
    assert "late_client" in invalid(late(40, 40))
    assert "late_client" not in invalid(late(40, 4))


@pytest.mark.parametrize(("hung_ms", "blamed"), [(60_000, False), (300, True)])
def test_a_server_that_hangs_on_every_request_is_not_the_client_s_lateness(
    hung_ms: float, blamed: bool
) -> None:
    """40 ms before waits of a minute explain nothing; before waits of 0.3 s they might."""
    made = Made()
    for i in range(400):
        row = failed(i, "timeout_first", sent_ms=i * 50, after_ms=hung_ms)
        row.intended_ns = (row.sent_ns or 0) - 40 * MS
        made.records.append(row)
    assert ("late_client" in invalid(made)) is blamed
    assert "no_success" in invalid(made)


def test_obeyed_retry_after_is_told() -> None:
    made = healthy()
    made.gauge("client.retry_after_wait_s", [2.0, 3.0], worker="0")
    assert "Retry-After was obeyed 2 times: users waited 5.00 s in all" in warnings(made)
    assert not invalid(made)


def test_a_late_dispatch_because_all_places_were_taken_is_client_capped() -> None:
    made = late(40, 40, crowd=16)
    made.workload["arrival"] = {"open": {"rate": 20.0, "max_in_flight": 16}}
    assert "late_client" not in invalid(made)
    assert "client-capped" in warnings(made)
    made.workload["arrival"] = {"open": {"rate": 20.0, "max_in_flight": 64}}
    assert "late_client" in invalid(made)


def batched(**fields: Any) -> Made:
    gaps = ([0.05] * 9 + [100.0]) * 3
    return Made(records=[record(i, sent_ms=100 * i, gap_ms=gaps, tokens=31, **fields) for i in range(40)])


def test_batched_reads_need_evidence_of_the_client() -> None:
    assert "batched_reads" in invalid(batched(shared_receive_chunks=25))
    # The same gaps without that evidence may be a server that stalls.
    assert "batched_reads" not in invalid(batched(shared_receive_chunks=0))
    stalled = batched(shared_receive_chunks=0)
    stalled.gauge("client.loop_lag_s", [0.050] * 20, every_ms=250)
    assert "batched_reads" in invalid(stalled)


def test_a_server_that_sends_batches_to_a_punctual_client_is_not_blamed_on_the_client() -> None:
    made = batched(shared_receive_chunks=25)
    made.gauge("client.loop_lag_s", [0.002] * 20, every_ms=250)
    assert invalid(made) == ["batched_stream"]
    assert client_bound(issues(made)) is None


def test_one_late_request_of_many_is_a_hiccup_and_two_are_not() -> None:
    made = late(40, 0)
    made.records[7].intended_ns -= 40 * MS
    assert "late_client" not in invalid(made)
    assert "1 of 40 were late" in warnings(made)
    made.records[9].intended_ns -= 40 * MS
    assert "late_client" in invalid(made)


def test_a_late_loop_matters_even_without_a_median() -> None:
    made = Made(records=[record(i, sent_ms=200 * i) for i in range(3)])
    assert "late_client" in invalid(made.gauge("client.loop_lag_s", [0.05] * 8, every_ms=100))


def test_a_stall_of_the_client_is_told_before_it_is_a_standstill() -> None:
    made = healthy()
    next(s for s in made.samples if s.metric == "client.loop_lag_s").value = 0.9
    assert invalid(made) == []
    assert "stalled for up to 900 ms (1 stall of 100 ms or more)" in warnings(made)
    assert "stalled" not in warnings(healthy())


def test_a_long_time_without_samples_is_told() -> None:
    made = healthy()
    scrapes = [s for s in made.samples if s.metric == "scrape.ok"]
    for s in scrapes[3:10]:
        made.samples.remove(s)
    assert "nothing was sampled for 4.00 s (usually every 500 ms)" in warnings(made)
    assert "nothing was sampled" not in warnings(healthy())


def test_a_schedule_that_outruns_the_server_is_told() -> None:
    made = Made(records=[record(i, sent_ms=33 * i, ttft_ms=100 + 80 * i) for i in range(120)])
    made.workload["arrival"] = {"open": {"process": "poisson", "rate": 30.0}}
    assert "does not keep up: 30.6 requests/s were sent and " in warnings(made)
    made.workload["arrival"] = {"closed": {"users": 120}}
    assert "keep up" not in warnings(made)
    easy = Made(records=[record(i, sent_ms=330 * i) for i in range(120)])
    easy.workload["arrival"] = {"open": {"process": "poisson", "rate": 3.0}}
    assert "keep up" not in warnings(easy)


def test_another_client_on_the_server_is_told_and_its_hits_are_not_ours() -> None:
    """Its counters hold both; the rate then comes from what the server said of each of our requests."""
    made = healthy()
    for s in made.samples:
        if s.t_ns > T0 and s.metric == "engine.prompt_tokens_total":
            s.value = (s.value or 0) + 90_000
        if s.t_ns > T0 and s.metric in (
            "engine.prefix_queries_tokens_total",
            "engine.prefix_hits_tokens_total",
        ):
            s.value = (s.value or 0) + 90_000
    found = view(made)
    assert found.summary.metrics.prefix_hit_rate.got_source == "usage"
    assert found.summary.metrics.prefix_hit_rate.got == pytest.approx(0.74375)
    assert "cache_contaminated" not in invalid(made)
    assert "of 212,880 prompt tokens that it counted, 122,880 are of this run" in warnings(made)
    assert "for others" not in warnings(healthy())


def test_others_on_a_server_that_reports_no_cached_tokens_leave_the_hit_rate_unknown() -> None:
    made = healthy(cached=None)
    for s in made.samples:
        if s.t_ns > T0 and s.metric == "engine.prompt_tokens_total":
            s.value = (s.value or 0) + 90_000
    rate = view(made).summary.metrics.prefix_hit_rate
    assert rate.got is None
    assert rate.reason == "the prefix counters hold others' requests"


def full_machine(server_cores: float) -> Made:
    made = healthy()
    made.environment["cpu_count"] = 2
    made.gauge("host.cpu_ratio", [1.0] * 20)
    seconds = made.span_ms() / 1e3
    made.counter("server.cpu_s_total", 5.0, 5.0 + server_cores * seconds)
    return made.counter("client.cpu_s_total", 1.0, 1.0 + 0.1 * seconds)


def test_others_that_take_the_cores_are_told() -> None:
    assert "other processes took 1.4 of this machine's 2 cores" in warnings(full_machine(0.5))
    assert "other processes" not in warnings(full_machine(1.8))
    assert "other processes" not in warnings(healthy())


def test_client_out_of_cpu() -> None:
    made = healthy()
    for s in made.samples:
        if s.metric == "client.cpu_ratio":
            s.value = 0.99
    assert invalid(made) == ["client_cpu"]


def test_client_out_of_descriptors() -> None:
    made = healthy()
    made.records.append(failed(900, "client_fd", sent_ns=None))
    made.gauge("client.fd_limit", [1024.0])
    assert invalid(made) == ["client_descriptors"]
    assert "1,024" in issues(made)[0].text


def hit_rate(made: Made, got: float) -> Made:
    queries = next(s for s in reversed(made.samples) if s.metric == "engine.prefix_queries_tokens_total")
    for s in made.samples:
        if s.metric == "engine.prefix_hits_tokens_total" and s.t_ns > T0:
            s.value = got * (queries.value or 0.0)
    return made


def ceiling(made: Made, value: float | None) -> Made:
    made.facts = [f for f in made.facts if f.name != "prefix_hit_rate_ceiling"]
    return made if value is None else made.fact("prefix_hit_rate_ceiling", value)


@pytest.mark.parametrize(
    ("bound", "got", "bad"),
    [(0.0, 0.929, True), (0.0, 0.02, True), (0.0, 0.009, False), (0.8, 0.84, True), (0.8, 0.805, False)],
)
def test_more_hits_than_the_prompts_allow_is_a_warm_cache(bound: float, got: float, bad: bool) -> None:
    made = ceiling(hit_rate(healthy(), got), bound)
    assert invalid(made) == (["cache_contaminated"] if bad else [])


def test_a_template_prefix_is_part_of_the_bound() -> None:
    # All prompts share 5 % by the chat template: that much is no contamination.
    assert invalid(ceiling(hit_rate(healthy(), 0.05), 0.05)) == []


def test_sizes_that_are_only_assumed_widen_the_tolerance() -> None:
    made = ceiling(hit_rate(healthy(), 0.84), 0.8)
    made.facts = [f for f in made.facts if f.name != "calibration"]
    made.fact("calibration", {"source": "assumed", "check_relative_error": 0.08})
    assert invalid(made) == []


def test_without_an_analysis_a_warm_cache_cannot_be_told() -> None:
    made = ceiling(healthy(), None)
    assert invalid(made) == []
    assert "a warm cache cannot be told" in warnings(made)


def clocks(made: Made, *, mono: float, utc: float, boot: float | None) -> Made:
    made.environment["clock"] = {"monotonic_ns": 0, "utc_ns": 10**18, "boottime_ns": 5}
    end: dict[str, int | None] = {"monotonic_ns": int(mono * S), "utc_ns": 10**18 + int(utc * S)}
    end["boottime_ns"] = None if boot is None else 5 + int(boot * S)
    return made.fact("clock_at_end", end)


@pytest.mark.parametrize(
    ("mono", "utc", "boot", "found"),
    [
        (60, 60, 60, []),
        (60, 90, 90, ["host_slept"]),
        (60, -3_540, 60, ["clock_jumped"]),
        (60, 3_660, 60, ["clock_jumped"]),
        (60, 60.5, None, []),
    ],
)
def test_clocks(mono: float, utc: float, boot: float | None, found: list[str]) -> None:
    assert invalid(clocks(healthy(), mono=mono, utc=utc, boot=boot)) == found


def test_a_stopped_client_is_told_from_a_slow_target() -> None:
    made = healthy()
    next(s for s in made.samples if s.metric == "client.loop_lag_s").value = 30.0
    assert invalid(made) == ["client_stood_still"]


def test_no_success() -> None:
    assert invalid(Made()) == ["no_success"]
    assert invalid(Made(records=[failed(0, "connect")])) == ["no_success"]


def edit(made: Made, change: Callable[[Made], object]) -> str:
    change(made)
    return warnings(made)


def test_warnings_of_asked_tokens_and_usage() -> None:
    def shorten(made: Made) -> None:
        for r in made.records:
            r.asked_prompt_tokens = 700

    assert "prompt tokens differ" in edit(healthy(), shorten)

    def forget(made: Made) -> None:
        made.records[0].completion_tokens = None

    assert "no usage for 1 of 192" in edit(healthy(), forget)
    assert "differ" not in warnings(healthy())


def test_warnings_of_samples_and_endings() -> None:
    assert "no server metrics were read" in warnings(Made(records=[record(0)]))
    assert "not found" in warnings(
        Made(records=[record(0)]).fact("metrics_unavailable", "status 404, not found")
    )
    assert "1 of 3 metrics readings failed" in warnings(
        Made(records=[record(0)]).gauge("scrape.ok", [1, 0, 1])
    )
    assert "run is killed" in warnings(Made(records=[record(0)], status="killed", bad_lines=2))
    assert "2 damaged lines" in warnings(Made(records=[record(0)], status="killed", bad_lines=2))
    restarted = Made(records=[record(0)]).gauge("engine.generation_tokens_total", [50.0, 3.0])
    assert "restarted" in warnings(restarted)


def replace_target(made: Made, url: str) -> Made:
    made.facts = [f for f in made.facts if f.name != "target"]
    return made.fact("target", {"base_url": url, "model": "tiny", "bundled": False})


def test_client_and_server_on_one_machine() -> None:
    assert "share this machine's 2 cores" in warnings(healthy())
    remote = healthy()
    remote.facts = [f for f in remote.facts if f.name != "target"]
    assert "share" not in warnings(remote)
    local = replace_target(healthy(), "http://127.0.0.1:8000")
    assert "share" in warnings(local)
    assert "share" not in warnings(replace_target(healthy(), "http://10.1.2.3:8000"))
    assert "share" not in warnings(replace_target(healthy(), "http://[oops"))
    remote.samples.append(Sample(t_ns=T0, metric="server.cpu_s_total", value=1.0))
    assert "share" in warnings(remote)


def test_a_window_of_a_few_requests_is_no_steady_state() -> None:
    made = Made(records=[record(i, sent_ms=i, ttft_ms=100) for i in range(40)])
    assert "no steady state" in warnings(made)
    assert "no steady state" not in warnings(healthy())


def test_a_backlog_that_grows_is_no_steady_state() -> None:
    made = Made(records=[record(i, sent_ms=50 * i, ttft_ms=100 + 40 * i) for i in range(120)])
    assert "rose by" in warnings(made)


def test_a_cache_that_warms_up_is_no_drift() -> None:
    rows = [record(i, sent_ms=200 * i, ttft_ms=400 - i % 7, cached=0) for i in range(40)]
    rows += [record(40 + i, sent_ms=8_000 + 200 * i, ttft_ms=60 + i % 7, cached=544) for i in range(80)]
    assert "rose by" not in warnings(Made(records=rows))


def test_late_stamps_in_a_single_request_run() -> None:
    made = Made(records=[record(0, late_ms=500)])
    assert "late_client" in invalid(made)
    assert made.records[0].sent_ns == T0
    assert made.records[0].intended_ns == T0 - 500 * MS


def test_a_late_worker_is_not_hidden_by_punctual_ones() -> None:
    """One of five workers is late, or at a full core, in most of its windows."""
    made = healthy()
    for worker in "1234":
        made.gauge("client.loop_lag_s", [0.002] * 40, every_ms=251.0, worker=worker, window="max")
        made.gauge("client.cpu_ratio", [0.2] * 40, every_ms=251.0, worker=worker)
    assert invalid(made) == []
    made.gauge(
        "client.loop_lag_s", [0.002, 0.030, 0.030, 0.030] * 10, every_ms=253.0, worker="5", window="max"
    )
    made.gauge("client.cpu_ratio", [1.0, 0.2, 1.0, 0.2] * 10, every_ms=253.0, worker="5")
    assert invalid(made) == ["late_client", "client_cpu"]
    assert "of worker 5" in " ".join(i.text for i in issues(made))
