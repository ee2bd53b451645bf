"""Latencies from instants: what counts, what is left out, what is censored."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.evidence.records import RequestRecord
from kvprobe.summary import latency
from tests.summary.synthetic import MS, T0, failed, record


def test_instants_become_the_latencies_of_the_definitions() -> None:
    r = record(0, sent_ms=100, ttft_ms=80, gap_ms=[10, 20, 30], tokens=7, late_ms=40)
    assert latency.ttft_s(r) == pytest.approx(0.080)
    assert latency.e2e_s(r) == pytest.approx(0.140)
    assert latency.response_latency_s(r) == pytest.approx(0.180)
    assert latency.response_ttft_s(r) == pytest.approx(0.120)
    assert latency.dispatch_delay_s(r) == pytest.approx(0.040)
    # TPOT goes by the tokens of usage, not by chunks: 60 ms for 6 tokens after the first.
    assert latency.tpot_s(r) == pytest.approx(0.010)


@pytest.mark.parametrize(
    "fields",
    [
        {"completion_tokens": None},
        {"completion_tokens": 1},
        {"completion_tokens": 0},
        {"last_token_ns": None},
    ],
)
def test_tpot_is_null_where_it_means_nothing(fields: dict[str, Any]) -> None:
    assert latency.tpot_s(record(0, **fields)) is None


def test_instants_out_of_order_are_no_latency() -> None:
    assert latency.between(5, 7) is None
    assert latency.between(None, 7) is None
    assert latency.between(7, 7) == 0.0


def test_reasoning_only_stream_has_ttft_and_no_ttfo() -> None:
    rows = [record(i, first_visible_ns=None) for i in range(10)]
    assert latency.latency("ttft_s", rows).n == 10
    ttfo = latency.latency("ttfo_s", rows)
    assert (ttfo.n, ttfo.missing, ttfo.p50) == (0, 10, None)
    assert ttfo.reasons["p50"] == "no values"


def test_gaps_are_pooled_without_ttft() -> None:
    rows = [record(i, ttft_ms=500, gap_ms=[10, 30], tokens=3) for i in range(20)]
    found = latency.gaps(rows)
    assert found.n == 40
    assert found.requests == 20
    assert found.max == pytest.approx(0.030)
    assert found.mean == pytest.approx(0.020)


def test_a_timeout_is_censored_and_not_dropped() -> None:
    rows: list[RequestRecord] = [record(i, ttft_ms=100) for i in range(90)]
    rows += [failed(i, "timeout_first", after_ms=30_000) for i in range(10)]
    found = latency.latency("ttft_s", rows)
    assert found.n == 90
    assert found.p95 == pytest.approx(0.1)
    let_in = found.with_failures
    assert let_in is not None
    assert (let_in.n, let_in.censored) == (100, 10)
    assert let_in.p50 == pytest.approx(0.1)
    assert let_in.p95 is None
    assert "longer than 30 s" in let_in.reasons["p95"]


def test_a_reset_before_headers_is_in_no_percentile() -> None:
    rows: list[RequestRecord] = [record(i) for i in range(60)]
    rows += [failed(i, "reset_before_headers") for i in range(5)]
    found = latency.latency("ttft_s", rows)
    assert found.with_failures is not None
    assert (found.n, found.with_failures.n) == (60, 60)


def test_a_stream_that_broke_has_a_ttft_and_no_end_to_end_time() -> None:
    rows = [record(i) for i in range(10)]
    rows.append(record(10, ttft_ms=900, failure="reset_mid_stream"))
    ttft, e2e = latency.latency("ttft_s", rows), latency.latency("e2e_s", rows)
    assert ttft.with_failures is not None
    assert e2e.with_failures is not None
    assert ttft.n == 10
    assert ttft.with_failures.n == 11
    assert e2e.with_failures.n == 10


def test_a_gap_timeout_counts_its_last_wait_as_longer() -> None:
    rows = [record(i, gap_ms=[10] * 9, tokens=10) for i in range(10)]
    rows.append(record(10, gap_ms=[10], tokens=2, failure="timeout_gap", end_ns=T0 + 5_000 * MS))
    found = latency.gaps(rows)
    assert found.with_failures is not None
    assert found.n == 90
    assert (found.with_failures.n, found.with_failures.censored) == (92, 1)


def test_chunk_instants_begin_with_the_first_token() -> None:
    r = record(0, ttft_ms=100, gap_ms=[5, 5], tokens=3)
    assert latency.chunk_instants_ns(r) == [T0 + 100 * MS, T0 + 105 * MS, T0 + 110 * MS]
    assert latency.chunk_instants_ns(failed(1, "connect")) == []
