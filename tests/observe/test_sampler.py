"""The sampler beside a real metrics server: its clock, its facts, its marks, and its end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvprobe.evidence.samples import Sample
from kvprobe.evidence.spool import SpoolContent, SpoolWriter, read_spool
from kvprobe.observe.sampler import Sampler


def sample(
    path: Path, url: str | None, during: Callable[[Sampler], None], interval_s: float = 0.05, **options: Any
) -> SpoolContent:
    """Run a sampler while `during` runs, and read back its spool."""
    with SpoolWriter(path / "samples.jsonl") as spool:
        sampler = Sampler(url, interval_s, spool, **options)
        sampler.start()
        try:
            during(sampler)
        finally:
            sampler.stop()
    assert sampler.failure is None
    content = read_spool(path / "samples.jsonl")
    assert content.bad_lines == 0
    return content


def of(content: SpoolContent, metric: str) -> list[Sample]:
    return [item for item in content.samples if item.metric == metric]


def facts(content: SpoolContent, name: str) -> list[Any]:
    return [fact.value for fact in content.facts if fact.name == name]


def test_it_samples_everything_and_says_each_fact_once(tmp_path: Path, server: Any) -> None:
    content = sample(tmp_path, server.url, lambda _: time.sleep(0.4), server_pid=os.getpid())
    ticks = len(of(content, "scrape.ok"))
    assert ticks >= 3
    for metric in (
        "engine.requests_running",
        "engine.kv_usage_ratio",
        "engine.ttft_seconds_sum",
        "scrape.duration_s",
        "server.rss_bytes",
        "server.cpu_s_total",
        "host.cpu_ratio",
        "host.memory_available_bytes",
        "clock.realtime_minus_monotonic_s",
        "clock.boottime_minus_monotonic_s",
        "sampler.late_s",
    ):
        assert len(of(content, metric)) == ticks, metric
    assert not [item for item in content.samples if item.metric.endswith("_bucket")]
    assert facts(content, "engine") == [{"name": "vllm", "version": None, "version_range": ">= 0.12"}]
    assert facts(content, "cache_config")[0]["num_gpu_blocks"] == "20"
    assert len(facts(content, "cache_config")) == len(facts(content, "nvml")) == 1
    assert facts(content, "metric_names")[0]["engine.kv_usage_ratio"] == "vllm:kv_cache_usage_perc"
    missing = facts(content, "metric_not_exported")
    assert "engine.kv_blocks_used" in missing
    assert len(missing) == len(set(missing))
    assert facts(content, "metrics_unavailable") == []


def test_marks_carry_the_buckets_at_one_instant(tmp_path: Path, server: Any) -> None:
    def load(sampler: Sampler) -> None:
        sampler.mark("load_start")
        time.sleep(0.2)
        sampler.mark("load_end")

    content = sample(tmp_path, server.url, load)
    (start,), (end,) = of(content, "mark.load_start"), of(content, "mark.load_end")
    assert start.t_ns < end.t_ns
    instants = {item.t_ns for item in of(content, "engine.ttft_seconds_bucket")}
    assert instants == {start.t_ns, end.t_ns}
    at_end = {
        item.labels["le"]: item.value
        for item in of(content, "engine.ttft_seconds_bucket")
        if item.t_ns == end.t_ns
    }
    assert at_end["+Inf"] == 12


def test_the_period_does_not_drift_and_a_slow_page_is_said(tmp_path: Path, server: Any) -> None:
    """Each scrape takes more than one period: ticks are left out, the others keep to the grid."""
    page = server.page.encode()

    def slow(handler: Any) -> None:
        time.sleep(0.07)
        handler.send_response(200)
        handler.send_header("content-length", str(len(page)))
        handler.end_headers()
        handler.wfile.write(page)

    server.answer = slow
    content = sample(tmp_path, server.url, lambda _: time.sleep(0.7), interval_s=0.05)
    missed = [int(item.value or 0) for item in of(content, "sampler.missed_ticks")]
    planned = [(item.t_ns - (item.value or 0) * 1e9) / 0.05e9 for item in of(content, "sampler.late_s")]
    assert sum(missed) >= 2
    (kept,) = [fact for fact in content.facts if fact.name == "sampler_period"]
    assert kept.value["missed_ticks"] == sum(missed)
    assert kept.value["ticks"] == len(missed)
    assert kept.text is not None
    assert f"{sum(missed)} of {sum(missed) + len(missed)} samples" in kept.text
    # Every tick that was due was either taken, on the grid, or counted as missed.
    grid = [planned[0]]
    for count in missed[:-1]:
        grid.append(grid[-1] + 1 + count)
    assert planned == pytest.approx(grid, abs=0.02)


def test_no_url_is_said_once_and_the_host_is_sampled(tmp_path: Path) -> None:
    content = sample(tmp_path, None, lambda _: time.sleep(0.2))
    assert facts(content, "metrics_unavailable") == ["no metrics URL is known for this target"]
    assert of(content, "host.cpu_ratio")
    assert not of(content, "scrape.ok")


def test_a_page_that_never_comes_is_said_once_with_its_reason(tmp_path: Path, server: Any) -> None:
    server.status = 404
    content = sample(tmp_path, server.url.replace("//", "//user:s3cret@"), lambda _: time.sleep(0.4))
    (why,) = facts(content, "metrics_unavailable")
    assert why.startswith("status: ")
    assert {item.value for item in of(content, "scrape.ok")} == {0.0}
    assert not [item for item in content.samples if item.metric.startswith("engine.")]
    assert "s3cret" not in (tmp_path / "samples.jsonl").read_text()


def test_one_missed_scrape_is_a_hole_not_the_end(tmp_path: Path, server: Any) -> None:
    def outage(_: Sampler) -> None:
        time.sleep(0.15)
        server.status = 503
        time.sleep(0.25)
        server.status = 200
        time.sleep(0.15)

    content = sample(tmp_path, server.url, outage)
    states = [item.value for item in of(content, "scrape.ok")]
    assert states[0] == states[-1] == 1.0
    assert 0.0 in states
    assert facts(content, "metrics_unavailable") == []


def test_stop_does_not_wait_for_a_server_that_hangs(tmp_path: Path, server: Any) -> None:
    server.answer = lambda _handler: time.sleep(3)
    with SpoolWriter(tmp_path / "samples.jsonl") as spool:
        sampler = Sampler(server.url, 0.05, spool)
        sampler.start()
        time.sleep(0.2)
        begin = time.monotonic()
        sampler.stop(timeout_s=0.3)
        assert time.monotonic() - begin < 2
        sampler.stop()


def test_a_disk_that_refuses_ends_the_sampling_and_is_kept(tmp_path: Path, server: Any) -> None:
    spool = SpoolWriter(tmp_path / "samples.jsonl")
    sampler = Sampler(server.url, 0.05, spool)
    sampler.start()
    time.sleep(0.1)
    spool.close()
    time.sleep(0.3)
    sampler.stop()
    assert isinstance(sampler.failure, ValueError)
    with pytest.raises(ValueError, match="closed"):
        sampler.mark("load_end")


def test_a_sampler_that_never_started_stops(tmp_path: Path) -> None:
    with SpoolWriter(tmp_path / "samples.jsonl") as spool:
        Sampler("http://127.0.0.1:1/metrics", 0.5, spool).stop()
    assert (tmp_path / "samples.jsonl").read_bytes() == b""
