"""What our series are called outside."""

from __future__ import annotations

import pytest

from kvprobe.export.names import exported, page_name, type_of
from kvprobe.export.totals import BUCKETS_S, Histogram, Totals
from tests.summary.synthetic import failed, record


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ("engine.kv_usage_ratio", "kvprobe_engine_kv_usage_ratio"),
        ("sampler.late_s", "kvprobe_sampler_late_seconds"),
        ("server.cpu_s_total", "kvprobe_server_cpu_seconds_total"),
        ("gpu.memory-used{x}", "kvprobe_gpu_memory_used_x_"),
    ],
)
def test_units_are_written_out_and_nothing_foreign_gets_into_a_name(metric: str, name: str) -> None:
    assert page_name(metric) == name


def test_marks_and_half_histograms_stay_inside() -> None:
    assert not exported("mark.load_start")
    assert not exported("engine.ttft_seconds_bucket")
    assert exported("engine.kv_usage_ratio")
    assert (type_of("engine.preemptions_total"), type_of("engine.kv_usage_ratio")) == ("counter", "gauge")


def test_a_histogram_counts_a_bound_as_inside() -> None:
    histogram = Histogram()
    for value in (0.005, 0.0051, 1_000.0):
        histogram.add(value)
    cumulative = dict(histogram.cumulative())
    assert cumulative["0.005"] == 1
    assert cumulative["0.01"] == 2
    assert cumulative[str(BUCKETS_S[-1])] == 2
    assert cumulative["+Inf"] == 3


def test_warm_up_and_failures_are_in_no_latency() -> None:
    totals = Totals()
    for row in (record(0), record(1, warmup=True), failed(2, "status"), record(3, cached=5)):
        totals.take(row)
    assert (totals.sent, totals.ok, totals.warmup, dict(totals.failed)) == (3, 2, 1, {"status": 1})
    assert sum(totals.histograms["ttft_seconds"].counts) == 2
    assert totals.cached_tokens == 5
