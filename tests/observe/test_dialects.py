"""Engines' names to canonical series: recordings, renames, several engines, and what is absent."""

from __future__ import annotations

import math
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvprobe.observe import exposition
from kvprobe.observe.dialects import CANONICAL, DIALECTS, Dialect, Page, read_page
from kvprobe.observe.dialects.places import places
from reference_server.kv.allocator import Usage
from reference_server.metrics import Metrics
from reference_server.state import EngineState


class CpuDevice:
    """A device's sizes, without torch."""

    total, free, own = 10, 7, 3


RECORDINGS = Path(__file__).parent / "recordings"
VLLM = (RECORDINGS / "vllm_0.32_after_preemption.txt").read_text()
LLAMA_CPP = (RECORDINGS / "llama_cpp_b11434_after.txt").read_text()

BUILT_FOR_ALL = {
    "engine.requests_running",
    "engine.requests_waiting",
    "engine.kv_usage_ratio",
    "engine.prefix_queries_tokens_total",
    "engine.prefix_hits_tokens_total",
    "engine.preemptions_total",
    "engine.prompt_tokens_total",
    "engine.generation_tokens_total",
    "engine.requests_finished_total",
    "engine.ttft_seconds",
    "engine.itl_seconds",
    "engine.e2e_seconds",
    "engine.queue_seconds",
    "engine.prefill_seconds",
    "engine.decode_seconds",
}


def values(page: Page) -> dict[str, float]:
    """Readings without labels."""
    return {metric: value for metric, labels, value in page.readings if not labels}


def vllm_page(**gauges: float) -> str:
    return "".join(f'vllm:{name}{{engine="0",model_name="m"}} {value}\n' for name, value in gauges.items())


def test_the_vllm_recording() -> None:
    page = read_page(VLLM)
    got = values(page)
    assert page.engine == "vllm"
    assert got["engine.requests_running"] == 2
    assert got["engine.requests_waiting"] == 7
    assert got["engine.kv_usage_ratio"] == 0.4736842105263158
    assert got["engine.prefix_queries_tokens_total"] == 1454
    assert got["engine.prefix_hits_tokens_total"] == 0
    assert got["engine.preemptions_total"] == 2
    assert got["engine.generation_tokens_total"] == 2554
    assert got["engine.ttft_seconds_count"] == 12
    assert got["engine.ttft_seconds_sum"] == pytest.approx(444.177, abs=1e-3)
    finished = {
        labels["reason"]: value
        for metric, labels, value in page.readings
        if metric == "engine.requests_finished_total"
    }
    assert finished == {"stop": 0, "length": 3, "abort": 0, "error": 0, "repetition": 0}
    assert page.cache_config is not None
    assert page.cache_config["num_gpu_blocks"] == "20"
    assert page.cache_config["enable_prefix_caching"] == "True"
    assert set(page.names) >= BUILT_FOR_ALL
    assert page.names["engine.kv_usage_ratio"] == "vllm:kv_cache_usage_perc"
    assert page.damaged == 0
    # The series that only the reference server has are "not exported", and have no reading.
    assert "engine.kv_blocks_used" in page.not_exported
    assert set(page.not_exported).isdisjoint(page.names)
    assert set(page.not_exported) | set(page.names) == set(CANONICAL)


def test_buckets_only_when_they_are_asked_for() -> None:
    full, short = read_page(VLLM), read_page(VLLM, buckets=False)
    buckets = [row for row in full.readings if row[0].endswith("_bucket")]
    assert {row[0] for row in buckets} == {
        f"engine.{n}_seconds_bucket"
        for n in ("ttft", "itl", "e2e", "queue", "prefill", "decode", "inference", "request_tpot")
    }
    assert ("engine.ttft_seconds_bucket", {"le": "+Inf"}, 12.0) in buckets
    assert [row for row in full.readings if row not in buckets] == short.readings
    assert full.not_exported == short.not_exported


def test_the_llama_cpp_recording_has_no_kv_gauge_and_says_so() -> None:
    page = read_page(LLAMA_CPP)
    assert page.engine == "llama.cpp"
    assert values(page)["engine.requests_running"] == 0
    assert values(page)["engine.generation_tokens_total"] == 1093
    assert {"engine.kv_usage_ratio", "engine.preemptions_total", "engine.ttft_seconds"} <= set(
        page.not_exported
    )
    assert "engine.kv_usage_ratio" not in values(page)


@pytest.mark.parametrize("suffix", ["", "_total"])
def test_counters_with_and_without_total(suffix: str) -> None:
    page = read_page(f'vllm:num_preemptions{suffix}{{engine="0"}} 3\n')
    assert values(page) == {"engine.preemptions_total": 3}


@pytest.mark.parametrize(
    ("old", "new", "canonical"),
    [
        ("gpu_cache_usage_perc", "kv_cache_usage_perc", "engine.kv_usage_ratio"),
        (
            "gpu_prefix_cache_queries_total",
            "prefix_cache_queries_total",
            "engine.prefix_queries_tokens_total",
        ),
        ("gpu_prefix_cache_hits_total", "prefix_cache_hits_total", "engine.prefix_hits_tokens_total"),
        ("time_per_output_token_seconds_sum", "inter_token_latency_seconds_sum", "engine.itl_seconds_sum"),
    ],
)
def test_renames_count_once(old: str, new: str, canonical: str) -> None:
    assert values(read_page(vllm_page(**{old: 0.5}))) == {canonical: 0.5}
    assert values(read_page(vllm_page(**{new: 0.25}))) == {canonical: 0.25}
    both = vllm_page(**{old: 0.5, new: 0.25})
    assert values(read_page(both)) == {canonical: 0.25}
    swapped = "\n".join(reversed(both.split("\n"))).lstrip() + "\n"
    assert values(read_page(swapped)) == {canonical: 0.25}


def test_data_parallel_engines_are_summed_and_ratios_averaged() -> None:
    registry = CollectorRegistry()
    names = ["engine", "model_name"]
    running = Gauge("vllm:num_requests_running", "r", names, registry=registry)
    usage = Gauge("vllm:kv_cache_usage_perc", "u", names, registry=registry)
    tokens = Counter("vllm:generation_tokens", "t", names, registry=registry)
    ttft = Histogram("vllm:time_to_first_token_seconds", "t", names, registry=registry, buckets=(0.5, 1))
    finished = Counter("vllm:request_success", "f", [*names, "finished_reason"], registry=registry)
    for engine, load in (("0", 0.8), ("1", 0.2), ("2", 0.2)):
        running.labels(engine, "m").set(4)
        usage.labels(engine, "m").set(load)
        tokens.labels(engine, "m").inc(100)
        ttft.labels(engine, "m").observe(load)
        finished.labels(engine, "m", "stop").inc(2)
    page = read_page(generate_latest(registry).decode())
    got = values(page)
    assert got["engine.requests_running"] == 12
    assert got["engine.kv_usage_ratio"] == pytest.approx(0.4)
    assert got["engine.generation_tokens_total"] == 300
    assert got["engine.ttft_seconds_count"] == 3
    assert ("engine.ttft_seconds_bucket", {"le": "0.5"}, 2.0) in page.readings
    assert ("engine.ttft_seconds_bucket", {"le": "+Inf"}, 3.0) in page.readings
    assert ("engine.requests_finished_total", {"reason": "stop"}, 6.0) in page.readings


def reference_page(*, vllm_names: bool) -> str:
    text = (
        "# TYPE kvprobe:num_requests_running gauge\n"
        'kvprobe:num_requests_running{engine="0",model_name="tiny"} 3\n'
        'kvprobe:num_requests_running_max{engine="0",model_name="tiny"} 9\n'
        'kvprobe:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5\n'
        'kvprobe:kv_cache_usage_max{engine="0",model_name="tiny"} 0.9\n'
        'kvprobe:kv_blocks_total{engine="0",model_name="tiny"} 100\n'
        'kvprobe:kv_blocks_used{engine="0",model_name="tiny"} 50\n'
        'kvprobe:kv_blocks_cached{engine="0",model_name="tiny"} 20\n'
        'kvprobe:kv_blocks_free{engine="0",model_name="tiny"} 30\n'
        'kvprobe:kv_blocks_evicted_total{engine="0",model_name="tiny"} 4\n'
        'kvprobe:prefix_cache_queries_total{engine="0",model_name="tiny"} 1000\n'
        'kvprobe:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
        'kvprobe:build_info{version="0.1.0"} 1\n'
    )
    return text + text.replace("kvprobe:", "vllm:") if vllm_names else text


@pytest.mark.parametrize("vllm_names", [False, True])
def test_the_reference_server_counts_once_under_either_option(vllm_names: bool) -> None:
    page = read_page(reference_page(vllm_names=vllm_names))
    assert (page.engine, page.version) == ("reference", "0.1.0")
    assert values(page) == {
        "engine.requests_running": 3,
        "engine.requests_running_max": 9,
        "engine.kv_usage_ratio": 0.5,
        "engine.kv_usage_ratio_max": 0.9,
        "engine.kv_blocks_total": 100,
        "engine.kv_blocks_used": 50,
        "engine.kv_blocks_cached": 20,
        "engine.kv_blocks_free": 30,
        "engine.kv_blocks_evicted_total": 4,
        "engine.prefix_queries_tokens_total": 1000,
    }
    assert page.cache_config == {"block_size": "16", "num_gpu_blocks": "100"}


def test_a_family_without_samples_yet_is_exported_and_has_no_reading() -> None:
    page = read_page(
        "# TYPE vllm:request_success counter\n# TYPE vllm:e2e_request_latency_seconds histogram\n"
    )
    assert page.engine == "vllm"
    assert page.readings == []
    assert {"engine.requests_finished_total", "engine.e2e_seconds"}.isdisjoint(page.not_exported)
    assert "engine.requests_running" in page.not_exported


def test_a_series_that_stands_twice_counts_once() -> None:
    line = 'vllm:num_requests_running{engine="0",model_name="m"} '
    swapped = 'vllm:num_requests_running{model_name="m",engine="0"} '
    assert values(read_page(f"{line}3\n{line}4\n{swapped}5\n")) == {"engine.requests_running": 5}


def test_not_a_number_spreads_and_infinity_of_a_count_passes() -> None:
    two = 'vllm:num_requests_running{engine="0"} NaN\nvllm:num_requests_running{engine="1"} 3\n'
    assert math.isnan(values(read_page(two))["engine.requests_running"])
    opposite = 'vllm:kv_cache_usage_perc{engine="0"} +Inf\nvllm:kv_cache_usage_perc{engine="1"} -Inf\n'
    assert math.isnan(values(read_page(opposite))["engine.kv_usage_ratio"])
    assert values(read_page("vllm:num_requests_running +Inf\n")) == {"engine.requests_running": math.inf}
    assert values(read_page("vllm:kv_cache_usage_perc 4.5e-05\n")) == {"engine.kv_usage_ratio": 4.5e-05}


def test_escaped_labels() -> None:
    text = 'vllm:request_success_total{finished_reason="a\\"b\\\\c\\nd,}"} 1\n'
    assert read_page(text).readings == [("engine.requests_finished_total", {"reason": 'a"b\\c\nd,}'}, 1.0)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<!doctype html><html><body>vllm:num_requests_running 3</body></html>",
        "{}",
        "\0" * 1000,
        "up 1\n",
        "xvllm:a 1\n",
    ],
)
def test_what_is_no_page_of_an_engine_has_none(text: str) -> None:
    page = read_page(text)
    assert page.engine is None
    assert page.readings == []


@pytest.mark.parametrize("cut", range(0, len(VLLM), 997))
def test_a_page_that_was_cut_anywhere_only_lacks_its_end(cut: int) -> None:
    whole = {(metric, tuple(labels.items())): value for metric, labels, value in read_page(VLLM).readings}
    for metric, labels, value in read_page(VLLM[:cut]).readings:
        if metric != "engine.requests_finished_total":
            assert whole[(metric, tuple(labels.items()))] == value


def test_every_engine_is_recognised_by_each_of_its_names() -> None:
    for dialect in DIALECTS:
        for series in dialect.series:
            for name in series.names:
                suffix = "_count" if series.kind == "histogram" else ""
                labels = ",".join(f'{key}="{value}"' for key, value in series.where.items())
                line = f"{name if series.absolute else dialect.prefix + name}{suffix}{{{labels}}} 1\n"
                page = read_page(line + (f"{dialect.prefix}x 1\n" if series.absolute else ""))
                assert page.engine == dialect.engine
                assert [metric for metric, _, _ in page.readings] == [series.canonical + suffix], line


def test_every_memory_series_of_the_reference_server_is_read() -> None:
    """Who adds one to the server says here, or in the dialect, what becomes of it."""
    state = EngineState(Usage(blocks_total=9, blocks_used=0, blocks_cached=0, blocks_free=9), 4, 64, 16)
    state.device = CpuDevice()  # type: ignore[assignment]
    metrics = Metrics("m", vllm_names=False)
    metrics.attach(state, {"block_size": 16})
    text = metrics.page().decode()
    page = read_page(text)
    assert page.engine == "reference"
    exported = {line.split()[2].removesuffix("_total") for line in text.splitlines() if "# TYPE" in line}
    unread = exported - {name.removesuffix("_total") for name in page.names.values()}
    assert {name.removeprefix("kvprobe:") for name in unread if not name.endswith("_created")} == {
        "achieved_memory_bandwidth_bytes_per_second",
        "build_info",
        "cache_config_info",
        "kv_metadata_bytes",
        "kv_swap_blocks",
    }
    got = values(page)
    assert got["engine.kv_pool_bytes"] == 0
    assert got["engine.kv_free_bytes"] == 9 * 64
    assert got["engine.device_memory_own_bytes"] == 3
    assert got["engine.kv_allocation_failures_fragmented_total"] == 0


def test_the_largest_free_region_of_replicas_is_no_sum() -> None:
    line = 'kvprobe:kv_largest_free_region_bytes{engine="%d",model_name="m"} %d\n'
    assert values(read_page(line % (0, 64) + line % (1, 96))) == {"engine.kv_largest_free_region_bytes": 96}


@pytest.mark.parametrize(
    ("page", "block_size"),
    [
        (LLAMA_CPP, "1"),  # a slot's tokens are compared one by one, and no metric says so
        ("sglang:num_running_reqs 1.0\nsglang:page_size 64.0\n", "64"),
        ("sglang:num_running_reqs 1.0\n", None),
        ("sglang:num_running_reqs 1.0\nsglang:page_size NaN\n", None),
    ],
    ids=["llama.cpp", "sglang", "sglang without", "sglang NaN"],
)
def test_block_size_of_engines_without_a_cache_config(page: str, block_size: str | None) -> None:
    config = read_page(page).cache_config
    assert (config and config["block_size"]) == block_size


@given(st.sampled_from(DIALECTS), st.text(max_size=120), st.booleans())
@settings(max_examples=200, deadline=None)
def test_no_page_makes_it_raise(dialect: Dialect, junk: str, buckets: bool) -> None:
    names = [name for series in dialect.series for name in series.names if not series.absolute]
    lines = [f"{dialect.prefix}{name}{{{junk}}} 1\n{dialect.prefix}{name} {junk}\n" for name in names]
    page = read_page(f"{dialect.prefix}x 1\n" + "".join(lines), buckets=buckets)
    assert page.engine == dialect.engine
    assert set(page.names).isdisjoint(page.not_exported)


def test_ever_new_labels_do_not_fill_the_memory_and_are_counted_all() -> None:
    seats = places(next(d for d in DIALECTS if d.engine == "vllm"), True)
    for batch in range(4):
        rows = range(batch * 6000, batch * 6000 + 6000)
        page = read_page("".join(f'vllm:num_requests_running{{m="{n}"}} 1\n' for n in rows))
        assert values(page) == {"engine.requests_running": 6000}
        # A page is read to its end with the memory that it began with.
        assert len(seats.begin().known) <= 8192 + 6000
        assert exposition.remembered() <= 8192


def test_pages_of_one_engine_that_are_read_at_once_do_not_mix() -> None:
    """Several targets of `kvprobe watch`: a group that two threads find at once must stay one group."""

    def read(start: int) -> set[float]:
        seen = set()
        for batch in range(start, start + 20):
            rows = range(batch * 500, batch * 500 + 500)
            page = read_page("".join(f'vllm:num_requests_running{{m="{n}"}} 1\n' for n in rows))
            seen.add(values(page)["engine.requests_running"])
        return seen

    switch_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert set.union(*pool.map(read, (10**6, 10**6, 2 * 10**6, 10**6))) == {500}
    finally:
        sys.setswitchinterval(switch_s)
