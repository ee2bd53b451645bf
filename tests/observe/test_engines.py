"""Each engine's page, written by prometheus-client under the engine's names, in canonical words."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvprobe.observe.dialects import Absent, Page, read_page

RECORDINGS = Path(__file__).parent / "recordings"
GIB = 2**30


class Writer:
    """A page as an engine's own client writes it."""

    def __init__(self, prefix: str, **labels: str) -> None:
        self._prefix, self._labels = prefix, labels
        self._registry = CollectorRegistry()

    def gauge(self, name: str, value: float, **labels: str) -> Writer:
        return self._add(Gauge, name, labels, lambda made: made.set(value))

    def counter(self, name: str, value: float, **labels: str) -> Writer:
        return self._add(Counter, name, labels, lambda made: made.inc(value))

    def histogram(self, name: str, *values: float, **labels: str) -> Writer:
        return self._add(Histogram, name, labels, lambda made: [made.observe(value) for value in values])

    def _add(self, kind: type, name: str, labels: dict[str, str], fill: Callable[[object], object]) -> Writer:
        every = {**self._labels, **labels}
        known = self._registry._names_to_collectors
        family = known.get(self._prefix + name) or kind(
            self._prefix + name, "h", every, registry=self._registry
        )
        fill(family.labels(**every) if every else family)
        return self

    def read(self) -> Page:
        return read_page(generate_latest(self._registry).decode())


def values(page: Page) -> dict[str, float]:
    """Readings without labels; histograms by their count."""
    return {m: v for m, labels, v in page.readings if not labels and not m.endswith(("_sum", "_bucket"))}


def test_sglang() -> None:
    page = (
        Writer("sglang:", model_name="m", engine_type="unified", tp_rank="0", pp_rank="0")
        .gauge("num_running_reqs", 12)
        .gauge("num_queue_reqs", 3)
        .gauge("num_paused_reqs", 1)
        .gauge("num_retracted_reqs", 2)
        .gauge("token_usage", 0.83)
        .gauge("full_token_usage", 0.4)
        .gauge("num_used_tokens", 830)
        .gauge("kv_available_tokens", 100)
        .gauge("kv_evictable_tokens", 70)
        .gauge("max_total_num_tokens", 1024)
        .gauge("num_pages", 16)
        .gauge("page_size", 64)
        .gauge("context_len", 4096)
        .gauge("cache_hit_rate", 0.25)
        .counter("cached_tokens", 500)
        .counter("num_retracted_requests", 4)
        .counter("evicted_tokens", 320)
        .counter("prompt_tokens", 2000)
        .counter("generation_tokens", 900)
        .counter("num_requests", 40)
        .histogram("time_to_first_token_seconds", 0.2, 0.3)
        .histogram("inter_token_latency_seconds", 0.01)
        .histogram("request_time_per_output_token_seconds", 0.02)
        .histogram("e2e_request_latency_seconds", 2)
        .histogram("queue_time_seconds", 0.1)
        .histogram("eviction_duration_seconds", 0.001)
        .read()
    )
    assert (page.engine, page.version, page.version_range) == ("sglang", None, None)
    assert values(page) == {
        "engine.requests_running": 12,
        "engine.requests_waiting": 3,
        "engine.requests_swapped": 1,
        "engine.requests_retracted": 2,
        "engine.kv_usage_ratio": 0.83,
        "engine.kv_tokens_used": 830,
        "engine.kv_tokens_available": 100,
        "engine.kv_tokens_evictable": 70,
        "engine.kv_tokens_total": 1024,
        "engine.kv_blocks_total": 16,
        "engine.kv_block_size_tokens": 64,
        "engine.context_tokens_max": 4096,
        "engine.prefix_hit_ratio": 0.25,
        "engine.prompt_tokens_cached_total": 500,
        "engine.preemptions_total": 4,
        "engine.kv_tokens_evicted_total": 320,
        "engine.prompt_tokens_total": 2000,
        "engine.generation_tokens_total": 900,
        "engine.requests_finished_total": 40,
        "engine.ttft_seconds_count": 2,
        "engine.itl_seconds_count": 1,
        "engine.request_tpot_seconds_count": 1,
        "engine.e2e_seconds_count": 1,
        "engine.queue_seconds_count": 1,
        "engine.kv_eviction_seconds_count": 1,
    }
    assert page.cache_config == {
        "block_size": "64",
        "num_gpu_blocks": "16",
        "kv_cache_size_tokens": "1024",
    }
    assert page.look("engine.prefix_queries_tokens_total") is Absent.NOT_EXPORTED


def test_trtllm_serve() -> None:
    page = (
        Writer("trtllm_", model_name="m", engine_type="trtllm")
        .gauge("num_requests_running", 5)
        .gauge("num_requests_waiting", 2)
        .gauge("num_paused_requests", 1)
        .gauge("kv_cache_utilization", 0.5)
        .gauge("kv_cache_used_blocks", 50)
        .gauge("kv_cache_free_blocks", 50)
        .gauge("kv_cache_max_blocks", 100)
        .gauge("kv_cache_tokens_per_block", 32)
        .gauge("kv_cache_hit_rate", 0.4)
        .counter("kv_cache_reused_blocks", 40)
        .counter("kv_cache_missed_blocks", 60)
        .counter("prompt_cached_tokens", 1280)
        .counter("prompt_tokens", 3200)
        .counter("generation_tokens", 700)
        .counter("request_success", 9, finished_reason="stop")
        .histogram("time_to_first_token_seconds", 0.2)
        .histogram("time_per_output_token_seconds", 0.02)
        .histogram("e2e_request_latency_seconds", 1)
        .histogram("request_queue_time_seconds", 0)
        .gauge("kv_cache_config_info", 1, block_reuse="True", tokens_per_block="32")
        .read()
    )
    assert page.engine == "trtllm"
    got = values(page)
    # Blocks stay blocks: they are no tokens.
    assert got["engine.prefix_hits_blocks_total"] == 40
    assert got["engine.prefix_misses_blocks_total"] == 60
    assert {"engine.prefix_hits_tokens_total", "engine.preemptions_total"} <= set(page.not_exported)
    assert got["engine.kv_usage_ratio"] == 0.5
    assert got["engine.itl_seconds_count"] == 1
    assert page.cache_config is not None
    assert page.cache_config["tokens_per_block"] == "32"


def test_triton_with_the_trtllm_backend() -> None:
    writer = Writer("nv_", model="m", version="1")
    for kind, value in (("active", 9), ("scheduled", 6), ("context", 1), ("max", 64)):
        writer.gauge("trt_llm_request_metrics", value, request_type=kind)
    for kind, value in (("used", 30), ("free", 10), ("max", 40), ("tokens_per", 64), ("fraction", 0.75)):
        writer.gauge("trt_llm_kv_cache_block_metrics", value, kv_cache_block_type=kind)
    writer.gauge("inference_pending_request_count", 4).counter("inference_queue_duration_us", 5e6)
    page = writer.read()
    got = values(page)
    assert page.engine == "triton"
    assert (got["engine.requests_running"], got["engine.requests_active"]) == (6, 9)
    # Active but not scheduled: they wait.
    assert got["engine.requests_waiting"] == 3
    assert got["engine.requests_pending"] == 4
    assert got["engine.kv_usage_ratio"] == 0.75
    assert page.names["engine.kv_usage_ratio"] == (
        "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=used} / "
        "nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}"
    )
    assert page.cache_config == {"block_size": "64", "num_gpu_blocks": "40"}
    assert "engine.ttft_seconds" in page.not_exported


def test_lmdeploy() -> None:
    page = (
        Writer("lmdeploy:", model_name="m", engine="0")
        .gauge("num_requests_running", 2)
        .gauge("num_requests_waiting", 1)
        .gauge("num_api_requests_waiting", 7)
        .gauge("gpu_cache_usage_perc", 0.6)
        .gauge("prefix_cache_hit_rate", 0.3)
        .counter("cached_tokens", 30)
        .counter("prompt_tokens", 100)
        .histogram("iter_token_latency", 0.03)
        .histogram("time_per_output_token_seconds", 0.02)
        .gauge("backend_config_info", 1, cache_block_seq_len="64")
        .read()
    )
    got = values(page)
    assert page.engine == "lmdeploy"
    # A mean over a request is not the time between two tokens.
    assert (got["engine.itl_seconds_count"], got["engine.request_tpot_seconds_count"]) == (1, 1)
    assert page.names["engine.itl_seconds"] == "lmdeploy:iter_token_latency"
    assert got["engine.api_requests_waiting"] == 7
    assert page.cache_config is not None
    assert page.cache_config["cache_block_seq_len"] == "64"


def test_tgi_has_no_kv_and_counts_tokens_in_histograms() -> None:
    page = (
        Writer("tgi_")
        .gauge("batch_current_size", 4)
        .gauge("queue_size", 1)
        .gauge("batch_current_max_tokens", 4096)
        .histogram("request_mean_time_per_token_duration", 0.02)
        .histogram("request_duration", 1)
        .histogram("request_queue_duration", 0.1)
        .histogram("request_input_length", 100, 50)
        .histogram("request_generated_tokens", 20, 30)
        .counter("request_count", 3)
        .counter("request_success", 2)
        .read()
    )
    got = values(page)
    assert page.engine == "tgi"
    assert (got["engine.prompt_tokens_total"], got["engine.generation_tokens_total"]) == (150, 50)
    assert (got["engine.requests_finished_total"], got["engine.requests_received_total"]) == (2, 3)
    assert {"engine.kv_usage_ratio", "engine.ttft_seconds"} <= set(page.not_exported)


def test_dynamo_and_a_dynamo_worker_that_passes_vllm_through() -> None:
    frontend = (
        Writer("dynamo_", model="m")
        .gauge("frontend_inflight_requests", 6)
        .gauge("frontend_queued_requests", 2)
        .gauge("component_kvstats_gpu_cache_usage_percent", 0.7)
        .gauge("component_kvstats_total_blocks", 200)
        .gauge("frontend_model_kv_cache_block_size", 16)
        .gauge("frontend_kv_hit_rate", 0.5)
        .counter("frontend_output_tokens", 40)
        .histogram("frontend_input_sequence_tokens", 100, 200)
        .histogram("frontend_cached_tokens", 90)
        .histogram("frontend_time_to_first_token_seconds", 0.2)
        .histogram("frontend_request_duration_seconds", 2)
        .read()
    )
    got = values(frontend)
    assert frontend.engine == "dynamo"
    assert got["engine.kv_usage_ratio"] == 0.7
    assert got["engine.prompt_tokens_total"] == 300
    assert got["engine.prompt_tokens_cached_total"] == 90
    # The router's guess is no hit rate.
    assert got["engine.prefix_hit_predicted_ratio"] == 0.5
    assert "engine.prefix_hit_ratio" in frontend.not_exported
    assert frontend.cache_config == {"block_size": "16", "num_gpu_blocks": "200"}
    worker = read_page("dynamo_component_kvstats_gpu_cache_usage_percent 0.1\nvllm:kv_cache_usage_perc 0.2\n")
    assert (worker.engine, values(worker)["engine.kv_usage_ratio"]) == ("vllm", 0.2)


def test_an_old_llama_cpp_had_a_kv_gauge() -> None:
    old = read_page("llamacpp:requests_processing 1\nllamacpp:kv_cache_usage_ratio 0.4\n")
    assert values(old)["engine.kv_usage_ratio"] == 0.4
    assert old.version_range == "before May 2025 (PR 13660)"
    new = read_page((RECORDINGS / "llama_cpp_b11434_after.txt").read_text())
    assert new.version_range == "since May 2025 (PR 13660)"
    got = values(new)
    # llama.cpp leaves what it found in the cache out of its prompt tokens, vLLM counts it in.
    assert (got["engine.prompt_tokens_computed_total"], got["engine.prompt_tokens_cached_total"]) == (
        1054,
        36,
    )
    assert "engine.prompt_tokens_total" in new.not_exported
    assert got["engine.sequence_tokens_max"] == 511


def vllm(*names: str) -> Page:
    """A page with these names; histograms are those that end in `seconds`."""
    lines = (f"vllm:{name}{'_count' if name.endswith('seconds') else ''} 1" for name in names)
    return read_page("".join(line + "\n" for line in lines))


OLD_KV, NEW_KV = "gpu_cache_usage_perc", "kv_cache_usage_perc"
OLD_ITL, NEW_ITL = "time_per_output_token_seconds", "inter_token_latency_seconds"


@pytest.mark.parametrize(
    ("names", "versions"),
    [
        (("num_requests_swapped", OLD_KV, "cpu_cache_usage_perc", OLD_ITL), "V0 engine"),
        ((OLD_KV, "gpu_prefix_cache_queries_total", OLD_ITL), "<= 0.9.1"),
        ((OLD_KV, NEW_KV, OLD_ITL), "0.9.2-0.10.1"),
        ((OLD_KV, NEW_KV, OLD_ITL, NEW_ITL), "0.10.2-0.11.x"),
        ((NEW_KV, OLD_ITL, NEW_ITL), "0.11.x-0.12.x"),
        ((NEW_KV, NEW_ITL), ">= 0.12"),
        (("num_requests_running",), None),
    ],
)
def test_vllm_versions_by_the_names_on_the_page(names: Iterable[str], versions: str | None) -> None:
    assert vllm(*names).version_range == versions


def test_a_rename_is_said_with_the_name_that_a_dashboard_may_still_ask_for() -> None:
    assert vllm(NEW_KV, NEW_ITL).renames == [
        "gpu_cache_usage_perc absent, using kv_cache_usage_perc (vllm >= 0.12)",
        "time_per_output_token_seconds absent, using inter_token_latency_seconds (vllm >= 0.12)",
    ]
    assert vllm(OLD_KV, NEW_KV).renames == []
    assert vllm(OLD_KV).renames == ["kv_cache_usage_perc absent, using gpu_cache_usage_perc (vllm <= 0.9.1)"]


def test_the_vllm_0_32_recordings() -> None:
    for name, queries in (("before", 0), ("after", 8304), ("after_preemption", 1454)):
        page = read_page((RECORDINGS / f"vllm_0.32_{name}.txt").read_text())
        assert (page.engine, page.version_range) == ("vllm", ">= 0.12")
        assert values(page)["engine.prefix_queries_tokens_total"] == queries
        assert page.look("engine.requests_swapped") is Absent.NOT_EXPORTED
        assert page.look("engine.process_rss_bytes") == page.look("engine.process_rss_bytes")
        assert page.damaged == 0


def test_v0_has_what_v1_dropped() -> None:
    page = read_page(
        "vllm:num_requests_swapped 2\nvllm:cpu_cache_usage_perc 0.1\nvllm:gpu_prefix_cache_hit_rate 0.5\n"
        "vllm:cpu_prefix_cache_hit_rate -1\n"
    )
    assert values(page)["engine.requests_swapped"] == 2
    assert values(page)["engine.kv_usage_cpu_ratio"] == 0.1
    assert values(page)["engine.prefix_hit_ratio"] == 0.5
    # V0 writes -1 for a cache that is switched off: no rate, and it says why.
    assert page.look("engine.prefix_hit_cpu_ratio") is Absent.NO_READING
    assert "-1" in page.doubts["engine.prefix_hit_cpu_ratio"]


def test_two_engines_on_one_page_stand_apart_as_well() -> None:
    page = read_page(
        'vllm:kv_cache_usage_perc{engine="0"} 0.9\nvllm:kv_cache_usage_perc{engine="1"} 0.1\n'
        'vllm:num_requests_running{engine="0"} 8\nvllm:num_requests_running{engine="1"} NaN\n'
    )
    assert values(page)["engine.kv_usage_ratio"] == pytest.approx(0.5)
    assert math.isnan(values(page)["engine.requests_running"])
    assert ("engine.kv_usage_ratio", {"engine": "0"}, 0.9) in page.parts
    assert ("engine.requests_running", {"engine": "0"}, 8.0) in page.parts
    assert read_page('vllm:kv_cache_usage_perc{engine="0"} 0.9\n').parts == []
