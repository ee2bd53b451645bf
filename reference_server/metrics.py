"""`/metrics`: vLLM V1's names under the prefix `kvprobe:`, and what V1 lacks.

Counters and histograms are fed by the engine thread; gauges are read from the engine when the page
is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from reference_server import __version__
from reference_server.kv.allocator import Usage
from reference_server.sequence import FinishReason

PREFIX = "kvprobe:"
VLLM_PREFIX = "vllm:"
LABELS = ("model_name", "engine")
TTFT_BUCKETS = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
ITL_BUCKETS = (0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5)
REQUEST_BUCKETS = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240)

OUR_OWN = (
    "build_info",
    "engine_steps",
    "kv_blocks_",
    "kv_tail_",
    "kv_cache_usage_max",
    "num_requests_running_max",
)
"""Series that vLLM V1 has no name for: they stay out of a page under its prefix."""


class EngineState:
    """What the gauges show; the engine thread replaces the fields after each step."""

    steps = 0
    running = 0
    waiting = 0
    running_max = 0
    usage_ratio_max = 0.0

    def __init__(self, usage: Usage, bytes_per_token: int) -> None:
        self.usage = usage
        self.bytes_per_token = bytes_per_token


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
        self.registry.register(_StateCollector(state, self._labels))

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


class _StateCollector(Collector):
    """Gauges from the engine's state at the moment of the scrape."""

    def __init__(self, state: EngineState, labels: dict[str, str]) -> None:
        self._state = state
        self._names = list(labels)
        self._values = list(labels.values())

    def collect(self) -> Iterable[Metric]:
        state, usage = self._state, self._state.usage
        yield self._gauge("num_requests_running", "Requests holding KV memory.", state.running)
        yield self._gauge("num_requests_waiting", "Requests waiting for memory or budget.", state.waiting)
        yield self._gauge(
            "num_requests_running_max", "Most requests ever running in one step.", state.running_max
        )
        yield self._gauge("kv_cache_usage_perc", "KV blocks held by requests, 0 to 1.", usage.ratio)
        yield self._gauge("kv_cache_usage_max", "Highest usage of any step, 0 to 1.", state.usage_ratio_max)
        yield self._gauge("kv_blocks_total", "KV blocks that can be handed out.", usage.blocks_total)
        yield self._gauge("kv_blocks_used", "KV blocks held by requests.", usage.blocks_used)
        yield self._gauge(
            "kv_blocks_cached", "Unheld KV blocks that a prefix can reuse.", usage.blocks_cached
        )
        yield self._gauge("kv_blocks_free", "KV blocks that hold nothing.", usage.blocks_free)
        yield self._gauge(
            "kv_tail_empty_bytes",
            "Bytes of empty slots at the ends of held blocks.",
            usage.tail_slots * state.bytes_per_token,
        )
        yield self._counter("engine_steps", "Steps of the engine.", state.steps)
        yield self._counter(
            "kv_blocks_evicted",
            "Cached blocks overwritten for lack of free ones.",
            usage.blocks_evicted_total,
        )

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        counter = CounterMetricFamily(PREFIX + name, text, labels=self._names)
        counter.add_metric(self._values, value)
        return counter

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(PREFIX + name, text, labels=self._names)
        gauge.add_metric(self._values, value)
        return gauge
