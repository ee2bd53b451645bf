"""`/metrics`: vLLM V1's names under the prefix `kvprobe:`, and what V1 lacks.

Counters and histograms are fed by the engine thread; gauges are read from the engine when the page
is asked for.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from reference_server import __version__
from reference_server.sequence import FinishReason
from reference_server.state import EngineState
from reference_server.state_metrics import PREFIX, StateCollector

VLLM_PREFIX = "vllm:"
LABELS = ("model_name", "engine")
TTFT_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
ITL_BUCKETS = (0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
REQUEST_BUCKETS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240)

OUR_OWN = (
    "achieved_",
    "build_info",
    "device_memory_",
    "engine_scheduling_",
    "engine_steps",
    "forward_tokens",
    "kv_allocation_",
    "kv_block_table_",
    "kv_blocks_",
    "kv_bytes_",
    "kv_cache_usage_max",
    "kv_cached_",
    "kv_free_",
    "kv_largest_",
    "kv_metadata_",
    "kv_moved_",
    "kv_null_",
    "kv_pool_",
    "kv_reserved_",
    "kv_shared_",
    "kv_stored_",
    "kv_swap",
    "kv_tail_",
    "kv_used_",
    "num_requests_running_max",
    "num_requests_swapped",
)
"""Series that vLLM V1 has no name for: they stay out of a page under its prefix."""


class Metrics:
    """All series of one server."""

    def __init__(self, model_name: str, *, vllm_names: bool) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": "0"}
        self._vllm_names = vllm_names
        # Once a request, when it first gets memory: its own blocks found again after a preemption are no
        # merit of the cache. vLLM V1, too, keeps preempted requests out of these two.
        self.prefix_queries = self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache, once a request."
        )
        self.prefix_hits = self._counter(
            "prefix_cache_hits", "Of these, tokens that were found and not computed again."
        )
        self.preemptions = self._counter("num_preemptions", "Preemptions, counted when they happen.")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests past their prefill.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self.ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token.", TTFT_BUCKETS)
        self.inter_token = self._histogram("inter_token_latency_seconds", "Between two tokens.", ITL_BUCKETS)
        self.e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last token.", REQUEST_BUCKETS)
        self.queue_time = self._histogram(
            "request_queue_time_seconds", "Arrival to first being scheduled.", REQUEST_BUCKETS
        )
        self.prefill_time = self._histogram(
            "request_prefill_time_seconds", "First scheduled to first token.", REQUEST_BUCKETS
        )
        self.decode_time = self._histogram(
            "request_decode_time_seconds", "First token to last token.", REQUEST_BUCKETS
        )
        success = Counter(
            PREFIX + "request_success",
            "Finished requests by reason.",
            (*LABELS, "finished_reason"),
            registry=self.registry,
        )
        self.finished = {
            reason: success.labels(**self._labels, finished_reason=reason.value) for reason in FinishReason
        }

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(PREFIX + name, text, LABELS, registry=self.registry).labels(**self._labels)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        made = Histogram(PREFIX + name, text, LABELS, registry=self.registry, buckets=buckets)
        return made.labels(**self._labels)

    def attach(self, state: EngineState, cache_config: dict[str, Any]) -> None:
        """Add the gauges of a running engine, its cache configuration and the server's version."""
        build = Gauge(
            PREFIX + "build_info", "The server's version.", (*LABELS, "version"), registry=self.registry
        )
        build.labels(**self._labels, version=__version__).set(1)
        labels = {**self._labels, **{key: str(value) for key, value in cache_config.items()}}
        labels.pop("model_name")
        info = Gauge(
            PREFIX + "cache_config_info", "The cache's configuration.", sorted(labels), registry=self.registry
        )
        info.labels(**labels).set(1)
        self.registry.register(StateCollector(state, self._labels))

    def page(self) -> bytes:
        """The exposition text."""
        text = generate_latest(self.registry)
        if not self._vllm_names:
            return text
        lines = [line for line in text.decode().splitlines(keepends=True) if not _is_our_own(line)]
        return text + "".join(lines).replace(PREFIX, VLLM_PREFIX).encode()


def _is_our_own(line: str) -> bool:
    name = line.split(PREFIX, 1)[-1]
    return name.startswith(OUR_OWN)
