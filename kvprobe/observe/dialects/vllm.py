"""vLLM, V0 and V1, with every rename; and which versions have the names that stand on a page."""

from __future__ import annotations

from collections.abc import Collection

from kvprobe.observe.dialects.common import (
    E2E,
    GENERATION_TOKENS,
    PROCESS,
    PROMPT_TOKENS,
    TTFT,
    counters,
    finished,
    histograms,
)
from kvprobe.observe.dialects.model import Dialect, Series

CORE = (
    Series("engine.requests_running", ("num_requests_running",)),
    Series("engine.requests_waiting", ("num_requests_waiting",)),
    Series(
        "engine.requests_waiting_by_reason", ("num_requests_waiting_by_reason",), labels={"reason": "reason"}
    ),
    Series(
        "engine.kv_usage_ratio",
        ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
        over_label_sets="mean",
        renamed=True,
    ),
    Series(
        "engine.prefix_queries_tokens_total",
        ("prefix_cache_queries", "gpu_prefix_cache_queries"),
        "counter",
        renamed=True,
    ),
    Series(
        "engine.prefix_hits_tokens_total",
        ("prefix_cache_hits", "gpu_prefix_cache_hits"),
        "counter",
        renamed=True,
    ),
    *counters(
        external_prefix_queries_tokens="external_prefix_cache_queries",
        external_prefix_hits_tokens="external_prefix_cache_hits",
        preemptions="num_preemptions",
        prompt_tokens_cached="prompt_tokens_cached",
    ),
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    finished("request_success"),
    TTFT,
    Series(
        "engine.itl_seconds",
        ("inter_token_latency_seconds", "time_per_output_token_seconds"),
        "histogram",
        renamed=True,
    ),
    E2E,
    Series(
        "engine.queue_seconds",
        ("request_queue_time_seconds", "time_in_queue_requests"),
        "histogram",
    ),
    *histograms(
        request_tpot_seconds="request_time_per_output_token_seconds",
        prefill_seconds="request_prefill_time_seconds",
        decode_seconds="request_decode_time_seconds",
        inference_seconds="request_inference_time_seconds",
        # Only with --kv-cache-metrics.
        kv_block_lifetime_seconds="kv_block_lifetime_seconds",
        kv_block_idle_before_evict_seconds="kv_block_idle_before_evict_seconds",
        kv_block_reuse_gap_seconds="kv_block_reuse_gap_seconds",
    ),
    *PROCESS,
)
"""V1's series, which the reference server shares."""

_V0 = (
    Series("engine.requests_swapped", ("num_requests_swapped",)),
    Series("engine.kv_usage_cpu_ratio", ("cpu_cache_usage_perc",), over_label_sets="mean"),
    Series("engine.prefix_hit_ratio", ("gpu_prefix_cache_hit_rate",), over_label_sets="mean"),
    Series("engine.prefix_hit_cpu_ratio", ("cpu_prefix_cache_hit_rate",), over_label_sets="mean"),
    *histograms(model_forward_milliseconds="model_forward_time_milliseconds"),
)

_ONLY_V0 = ("num_requests_swapped", "cpu_cache_usage_perc", "gpu_prefix_cache_hit_rate")


def version_range(names: Collection[str]) -> str | None:
    """Versions by the names on the page. Source of the timetable: the table of renames in
    docs/metrics.md. Null where the names that tell are not there (a page without KV usage)."""
    has = {name.removeprefix("vllm:") for name in names}
    if any(name in has for name in _ONLY_V0):
        return "V0 engine"
    old, new = "gpu_cache_usage_perc" in has, "kv_cache_usage_perc" in has
    per_token_old = "time_per_output_token_seconds" in has
    per_token_new = "inter_token_latency_seconds" in has
    if not new:
        return "<= 0.9.1" if old else None
    if old:
        # 0.11 shows the old name when it is started with --show-hidden-metrics-for-version=0.10.
        if per_token_new:
            return "0.10.2-0.11.x"
        return "0.9.2-0.10.1" if per_token_old else "0.9.2-0.11.x"
    if per_token_old and per_token_new:
        return "0.11.x-0.12.x"
    return ">= 0.12" if per_token_new else None


VLLM = Dialect("vllm", "vllm:", (*CORE, *_V0), "cache_config_info", version_range=version_range)
