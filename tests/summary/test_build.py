"""The whole summary: names of the contract, nulls with reasons, evidence that is cut or strange."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvprobe.evidence.records import OpenedRequest
from kvprobe.summary.build import Summary, summarise
from kvprobe.summary.jsonable import jsonable
from tests.summary.synthetic import MS, T0, Made, failed, healthy, record


def document(summary: Summary) -> dict[str, Any]:
    """As strict JSON: NaN would raise."""
    loaded: dict[str, Any] = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    return loaded


def test_names_of_the_contract() -> None:
    found = document(summarise(healthy().build()))
    assert found["schema"] == "kvprobe.run/1"
    assert {
        "run_dir",
        "workload",
        "workload_hash",
        "target",
        "engine",
        "status",
        "requests",
        "metrics",
    } <= set(found)
    assert {"intended", "sent", "ok", "failed", "by_failure"} <= set(found["requests"])
    metrics = found["metrics"]
    for name in ("ttft_s", "tpot_s", "gap_s", "e2e_s", "response_latency_s"):
        assert {"n", "mean", "p50", "p95", "p99", "ci"} <= set(metrics[name])
    for name in ("output_tokens_per_s", "max_active", "kv_usage_max"):
        assert isinstance(metrics[name], int | float)
    assert {"aimed", "ceiling", "got"} <= set(metrics["prefix_hit_rate"])


def test_values_of_a_healthy_run() -> None:
    found = summarise(healthy().build())
    m = found.metrics
    assert (found.requests.intended, found.requests.ok, found.requests.failed) == (192, 192, 0)
    assert m.max_active == 4
    assert m.prefix_hit_rate.got == pytest.approx(544 * 168 / (640 * 192))
    assert m.prefix_hit_rate.got_source == "counters"
    assert found.window.seconds is not None
    assert m.output_tokens_per_s == pytest.approx(192 * 32 / found.window.seconds)
    assert m.ttft_s.p99 is None
    assert m.ttft_s.reasons["p99"].startswith("n too small")
    assert m.memory.kv_pool_tokens == 4_096 * 16
    assert m.memory.gpu_note == "no NVML device"


def test_nothing_at_all() -> None:
    found = summarise(Made().build())
    assert document(found)["metrics"]["output_tokens_per_s"] is None
    assert found.requests.sent == 0
    assert found.metrics.max_active is None
    assert found.metrics.kv_usage_max is None
    assert found.metrics.reasons["kv_usage_max"] == "no server metrics"
    assert found.metrics.prefix_hit_rate.got is None
    assert found.metrics.prefix_hit_rate.reason == "no server metrics"


def test_all_failed() -> None:
    made = Made(records=[failed(i, "connect", sent_ns=None, failure_detail=f"refused {i}") for i in range(7)])
    found = summarise(made.build())
    assert (found.requests.sent, found.requests.ok, found.requests.failed) == (7, 0, 7)
    assert found.requests.by_failure == {"connect": 7}
    assert len(found.failures[0].details) == 3
    document(found)


def test_one_request() -> None:
    found = summarise(Made(records=[record(0)]).build())
    assert found.metrics.ttft_s.mean == pytest.approx(0.1)
    assert found.metrics.ttft_s.p50 is None
    assert found.metrics.max_active == 1
    document(found)


def test_failures_are_grouped_with_the_most_frequent_first() -> None:
    made = Made(records=[record(i, sent_ms=i) for i in range(4)])
    made.records += [failed(i, "status", status_code=503, failure_detail="overloaded") for i in range(3)]
    made.records += [failed(9, "truncated", content_chunks=5)]
    groups = summarise(made.build()).failures
    assert [(g.kind, g.count) for g in groups] == [("status", 3), ("truncated", 1)]
    assert groups[0].statuses == {"503": 3}
    assert groups[0].details == ["overloaded"]
    assert groups[0].share == pytest.approx(3 / 8)
    assert groups[1].with_tokens == 1


def test_warmup_is_counted_apart_and_in_no_latency() -> None:
    made = healthy()
    made.records += [record(900 + i, ttft_ms=9_000, warmup=True, cached=0) for i in range(6)]
    found = summarise(made.build())
    assert (found.requests.ok, found.requests.warmup) == (192, 6)
    assert found.metrics.ttft_s.max is not None
    assert found.metrics.ttft_s.max < 1.0


def test_warmup_tokens_are_taken_off_the_counters() -> None:
    made = healthy()
    made.records += [record(900 + i, warmup=True, cached=0, prompt=640) for i in range(48)]
    for s in made.samples:
        if s.metric == "engine.prefix_queries_tokens_total" and s.value:
            s.value += 48 * 640
    rate = summarise(made.build()).metrics.prefix_hit_rate
    assert rate.got == pytest.approx(544 * 168 / (640 * 192))
    assert rate.got_with_warmup == pytest.approx(544 * 168 / (640 * 240))


def test_hit_rate_from_usage_where_there_are_no_counters() -> None:
    made = healthy()
    made.samples = [s for s in made.samples if not s.metric.startswith("engine.prefix")]
    rate = summarise(made.build()).metrics.prefix_hit_rate
    assert rate.got_source == "usage"
    assert rate.got == pytest.approx(544 * 168 / (640 * 192))


def test_counters_that_did_not_move_are_no_zero() -> None:
    made = Made(records=[record(0, cached=None)])
    made.counter("engine.prefix_queries_tokens_total", 5.0, 5.0).counter(
        "engine.prefix_hits_tokens_total", 0.0, 0.0
    )
    rate = summarise(made.build()).metrics.prefix_hit_rate
    assert rate.got is None
    assert rate.reason == "the prefix counters did not move"


def test_output_rate_needs_usage_from_everyone() -> None:
    made = Made(records=[record(i, sent_ms=10 * i) for i in range(9)])
    made.records.append(record(9, completion_tokens=None))
    found = summarise(made.build())
    assert found.metrics.output_tokens_per_s is None
    assert "no usage for 1 of 10" in found.metrics.reasons["output_tokens_per_s"]


def test_warmup_that_still_streams_counts_by_the_share_that_came_inside() -> None:
    # 1 + 10 chunks of the warm-up, 100 ms apart; measured requests start as its sixth chunk has come.
    warm = record(0, sent_ms=0, ttft_ms=0, gap_ms=[100] * 10, tokens=11, warmup=True)
    rows = [record(1, sent_ms=550, ttft_ms=50, gap_ms=[100] * 10, tokens=11)]
    found = summarise(Made(records=[warm, *rows]).build())
    assert found.window.seconds == pytest.approx(1.05)
    assert found.metrics.output_tokens_per_s == pytest.approx((11 + 5) / 1.05)


def test_open_loop_ticks_without_a_row_are_unsent() -> None:
    made = Made(records=[record(i, sent_ms=100 * i) for i in range(10)])
    made.fact("load_finished", {"reason": "planned", "intended": 14, "t_drain_ns": T0 + 1_000 * MS})
    found = summarise(made.build())
    assert (found.requests.intended, found.requests.sent, found.requests.unsent) == (14, 10, 4)
    assert found.metrics.rates.offered_per_s == pytest.approx(14.0)
    assert found.metrics.rates.achieved_per_s == pytest.approx(10.0)
    assert found.metrics.rates.unsent_per_s == pytest.approx(4.0)


def test_a_plan_of_so_many_requests_that_falls_behind_keeps_its_offered_rate() -> None:
    """40 wanted at 20/s, sent at 5/s: over the 7.8 s of sending both would be 5/s."""
    rows = [record(i, sent_ms=200 * i, late_ms=150 * i) for i in range(40)]
    found = summarise(Made(records=rows).build()).metrics.rates
    assert found.offered_per_s == pytest.approx(20.0)
    assert found.achieved_per_s == pytest.approx(40 / 7.8)
    kept_up = summarise(Made(records=[record(i, sent_ms=50 * i, late_ms=10) for i in range(40)]).build())
    assert kept_up.metrics.rates.offered_per_s == kept_up.metrics.rates.achieved_per_s


def test_cancelled_before_it_was_sent_is_unsent_and_not_failed() -> None:
    made = Made(
        records=[record(0), failed(1, "cancelled_at_end", sent_ns=None), failed(2, "cancelled_at_end")]
    )
    counted = summarise(made.build()).requests
    assert (counted.intended, counted.sent, counted.unsent, counted.failed) == (3, 2, 1, 1)


def test_killed_run_knows_what_was_in_flight() -> None:
    made = Made(records=[record(0)], status="killed")
    made.opened = [OpenedRequest(request_id="x", plan_index=1, intended_ns=T0, sent_ns=T0)]
    found = summarise(made.build())
    assert (found.status, found.requests.unfinished, found.requests.sent) == ("killed", 1, 2)
    assert found.metrics.max_active == 2


def test_asked_against_got() -> None:
    rows = [
        record(i, asked_prompt_tokens=100, prompt_tokens=110, asked_completion_tokens=32) for i in range(60)
    ]
    m = summarise(Made(records=rows).build()).metrics
    assert m.prompt_tokens.deviation_median == pytest.approx(0.1)
    assert m.prompt_tokens.deviation_abs_p95 == pytest.approx(0.1)
    assert m.completion_tokens.deviation_median == 0.0


def test_no_usage_at_all() -> None:
    made = Made(
        records=[record(i, prompt_tokens=None, completion_tokens=None, cached=None) for i in range(5)]
    )
    m = summarise(made.build()).metrics
    assert m.prompt_tokens.got_median is None
    assert m.prompt_tokens.reason == "no usage from the server"
    assert m.tpot_s.n == 0


def test_huge_values_stay_json() -> None:
    made = Made(records=[record(0, end_ns=2**62, last_token_ns=2**62, gap_ms=[1e9], tokens=2)])
    made.gauge("engine.kv_usage_ratio", [1e308, float("nan")]).gauge("server.rss_bytes", [float("inf")])
    document(summarise(made.build()))


def test_facts_of_the_wrong_shape_are_ignored() -> None:
    made = Made(records=[record(0)])
    made.fact("target", "oops").fact("engine", None).fact("cache_config", [1]).fact("prompt_layout", 3)
    made.fact("load_finished", {"reason": 5, "intended": "many"}).fact("prefix_hit_rate_aimed", "high")
    made.fact("prefix_hit_rate_ceiling", float("nan")).fact("nvml", ["gpu"])
    found = summarise(made.build())
    assert found.target is None
    assert found.layout.known is False
    assert found.metrics.prefix_hit_rate.aimed is None
    document(found)


def test_numbers_that_json_cannot_write_become_null() -> None:
    assert jsonable({"a": [float("inf"), 1.0, (float("nan"),)]}) == {"a": [None, 1.0, [None]]}
