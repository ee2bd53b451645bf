"""SGLang, TensorRT-LLM (trtllm-serve and Triton), LMDeploy, TGI, llama.cpp and Dynamo.

Where an engine counts in blocks, the canonical name says blocks: the two units never mix.
"""

from __future__ import annotations

from collections.abc import Collection

from kvprobe.observe.dialects.common import (
    E2E,
    GENERATION_TOKENS,
    PROCESS,
    PROMPT_TOKENS,
    QUEUE,
    TTFT,
    counters,
    finished,
    gauges,
    histograms,
    usage,
)
from kvprobe.observe.dialects.model import Dialect, Series


def _block_size(name: str, **where: str) -> Series:
    return Series("engine.kv_block_size_tokens", (name,), over_label_sets="max", where=where)


_SGLANG = (
    # With priority scheduling each priority has a sample of its own beside the total, whose label is empty.
    Series("engine.requests_running", ("num_running_reqs",), where={"priority": ""}),
    Series("engine.requests_waiting", ("num_queue_reqs",), where={"priority": ""}),
    *gauges(
        requests_swapped="num_paused_reqs",
        requests_retracted="num_retracted_reqs",
    ),
    # The first is the largest over the pools of a hybrid model, which is the one that runs out.
    usage("token_usage", "full_token_usage"),
    Series("engine.kv_tokens_used", ("num_used_tokens", "kv_used_tokens")),
    *gauges(
        kv_tokens_available="kv_available_tokens",
        kv_tokens_evictable="kv_evictable_tokens",
        kv_tokens_total="max_total_num_tokens",
        kv_blocks_total="num_pages",
    ),
    _block_size("page_size"),
    Series("engine.context_tokens_max", ("context_len",), over_label_sets="max"),
    Series("engine.prefix_hit_ratio", ("cache_hit_rate",), over_label_sets="mean"),
    *counters(
        prompt_tokens_cached="cached_tokens",
        preemptions="num_retracted_requests",
        kv_tokens_evicted="evicted_tokens",
    ),
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    finished("num_requests"),
    TTFT,
    Series(
        "engine.itl_seconds", ("inter_token_latency_seconds", "time_per_output_token_seconds"), "histogram"
    ),
    E2E,
    *histograms(
        request_tpot_seconds="request_time_per_output_token_seconds",
        queue_seconds="queue_time_seconds",
        kv_eviction_seconds="eviction_duration_seconds",
    ),
    *PROCESS,
)

_TRTLLM = (
    *gauges(
        requests_running="num_requests_running",
        requests_waiting="num_requests_waiting",
        requests_swapped="num_paused_requests",
        kv_blocks_used="kv_cache_used_blocks",
        kv_blocks_free="kv_cache_free_blocks",
        kv_blocks_total="kv_cache_max_blocks",
    ),
    usage("kv_cache_utilization"),
    _block_size("kv_cache_tokens_per_block"),
    Series("engine.prefix_hit_ratio", ("kv_cache_hit_rate",), over_label_sets="mean"),
    *counters(
        prefix_hits_blocks="kv_cache_reused_blocks",
        prefix_misses_blocks="kv_cache_missed_blocks",
        prompt_tokens_cached="prompt_cached_tokens",
    ),
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    finished("request_success"),
    TTFT,
    Series("engine.itl_seconds", ("time_per_output_token_seconds",), "histogram"),
    E2E,
    QUEUE,
    *PROCESS,
)

_REQUESTS, _BLOCKS, _BATCHER = (
    "trt_llm_request_metrics",
    "trt_llm_kv_cache_block_metrics",
    "trt_llm_inflight_batcher_metrics",
)


def _block(canonical: str, which: str) -> Series:
    return Series(canonical, (_BLOCKS,), where={"kv_cache_block_type": which})


_TRITON = (
    # `active` are all requests that the executor holds, `scheduled` those of the current iteration.
    Series("engine.requests_running", (_REQUESTS,), where={"request_type": "scheduled"}),
    Series("engine.requests_active", (_REQUESTS,), where={"request_type": "active"}),
    Series("engine.requests_in_context_phase", (_REQUESTS,), where={"request_type": "context"}),
    Series("engine.requests_max", (_REQUESTS,), where={"request_type": "max"}),
    Series("engine.requests_pending", ("inference_pending_request_count",)),
    _block("engine.kv_blocks_used", "used"),
    _block("engine.kv_blocks_free", "free"),
    _block("engine.kv_blocks_total", "max"),
    _block_size(_BLOCKS, kv_cache_block_type="tokens_per"),
    Series(
        "engine.context_tokens_in_flight",
        (_BATCHER,),
        where={"inflight_batcher_specific_metric": "total_context_tokens"},
    ),
    Series(
        "engine.requests_in_generation_phase",
        (_BATCHER,),
        where={"inflight_batcher_specific_metric": "generation_requests"},
    ),
    *counters(
        requests_finished="inference_request_success",
        triton_queue_us="inference_queue_duration_us",
        triton_compute_input_us="inference_compute_input_duration_us",
        triton_compute_us="inference_compute_infer_duration_us",
        triton_compute_output_us="inference_compute_output_duration_us",
        triton_request_us="inference_request_duration_us",
    ),
)

_LMDEPLOY = (
    *gauges(
        requests_running="num_requests_running",
        requests_waiting="num_requests_waiting",
        api_requests_waiting="num_api_requests_waiting",
    ),
    usage("gpu_cache_usage_perc"),
    Series("engine.prefix_hit_ratio", ("prefix_cache_hit_rate",), over_label_sets="mean"),
    *counters(prompt_tokens_cached="cached_tokens"),
    PROMPT_TOKENS,
    GENERATION_TOKENS,
    finished("request_success"),
    TTFT,
    # Its time_per_output_token_seconds is a mean over a request; the gap between steps has no unit suffix.
    Series("engine.itl_seconds", ("iter_token_latency",), "histogram"),
    E2E,
    QUEUE,
    *histograms(request_tpot_seconds="time_per_output_token_seconds"),
    *PROCESS,
)

_TGI = (
    *gauges(
        requests_running="batch_current_size",
        requests_waiting="queue_size",
        batch_token_budget="batch_current_max_tokens",
    ),
    *histograms(
        request_tpot_seconds="request_mean_time_per_token_duration",
        e2e_seconds="request_duration",
        queue_seconds="request_queue_duration",
    ),
    # Lengths per request: the sums of these histograms are the token counters.
    *counters(
        prompt_tokens="request_input_length_sum",
        generation_tokens="request_generated_tokens_sum",
        requests_received="request_count",
        requests_finished="request_success",
    ),
)

# llama.cpp's prompt_tokens_total leaves cached tokens out, vLLM's counts them: another canonical name.
_LLAMA_CPP = (
    *gauges(requests_running="requests_processing", requests_waiting="requests_deferred"),
    usage("kv_cache_usage_ratio"),
    Series("engine.kv_tokens_used", ("kv_cache_tokens",)),
    Series("engine.sequence_tokens_max", ("n_tokens_max",), over_label_sets="max"),
    # Means since the last scrape, or since the start: builds differ.
    Series("engine.prompt_tokens_per_s", ("prompt_tokens_seconds",)),
    Series("engine.generation_tokens_per_s", ("predicted_tokens_seconds",)),
    Series("engine.busy_slots_per_decode", ("n_busy_slots_per_decode",), over_label_sets="mean"),
    *counters(
        prompt_tokens_cached="prompt_tokens_cached",
        prompt_tokens_computed="prompt_tokens",
        generation_tokens="tokens_predicted",
        prompt_compute_seconds="prompt_seconds",
        generation_compute_seconds="tokens_predicted_seconds",
        decode_calls="n_decode",
    ),
)


def _llama_cpp_range(names: Collection[str]) -> str | None:
    """llama.cpp dropped its KV gauges in pull request 13660 (May 2025)."""
    old = {"llamacpp:kv_cache_usage_ratio", "llamacpp:kv_cache_tokens"}.isdisjoint(names)
    return "since May 2025 (PR 13660)" if old else "before May 2025 (PR 13660)"


_DYNAMO = (
    Series("engine.requests_running", ("frontend_inflight_requests", "frontend_active_requests")),
    *gauges(requests_waiting="frontend_queued_requests"),
    Series(
        "engine.router_requests_waiting",
        ("frontend_router_queue_pending_requests", "router_queue_pending_requests"),
    ),
    # The names say percent, the value is 0-1.
    usage("component_kvstats_gpu_cache_usage_percent", "component_gpu_cache_usage_percent"),
    Series(
        "engine.kv_blocks_total",
        ("component_kvstats_total_blocks", "component_total_blocks", "frontend_model_total_kv_blocks"),
    ),
    _block_size("frontend_model_kv_cache_block_size"),
    # What the router expects, not what a worker found.
    Series("engine.prefix_hit_predicted_ratio", ("frontend_kv_hit_rate",), over_label_sets="mean"),
    # The second, out of the lengths of finished requests, where there is no counter.
    Series(
        "engine.generation_tokens_total",
        ("frontend_output_tokens", "frontend_output_sequence_tokens_sum"),
        "counter",
    ),
    Series("engine.prompt_tokens_total", ("frontend_input_sequence_tokens_sum",), "counter"),
    Series("engine.prompt_tokens_cached_total", ("frontend_cached_tokens_sum",), "counter"),
    *histograms(
        ttft_seconds="frontend_time_to_first_token_seconds",
        itl_seconds="frontend_inter_token_latency_seconds",
        e2e_seconds="frontend_request_duration_seconds",
    ),
    *PROCESS,
)

SGLANG = Dialect("sglang", "sglang:", _SGLANG)
TRTLLM = Dialect("trtllm", "trtllm_", _TRTLLM, "kv_cache_config_info")
TRITON = Dialect("triton", "nv_", _TRITON)
LMDEPLOY = Dialect("lmdeploy", "lmdeploy:", _LMDEPLOY, "backend_config_info")
TGI = Dialect("tgi", "tgi_", _TGI)
# It compares a prompt with what a slot holds token by token, so a block is one token.
LLAMA_CPP = Dialect("llama.cpp", "llamacpp:", _LLAMA_CPP, known_block_size=1, version_range=_llama_cpp_range)
DYNAMO = Dialect("dynamo", "dynamo_", _DYNAMO)
