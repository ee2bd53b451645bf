"""Gauges and counters read from the engine's state at the moment of a scrape.

The memory's series are in bytes, whatever the allocator, so that allocators can be compared:

    pool = used + cached + free + null block,
    used  = stored + tail + reserved - shared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from reference_server.state import EngineState

PREFIX = "kvprobe:"
Read = Callable[[EngineState], float]

GAUGES: tuple[tuple[str, str, Read], ...] = (
    ("num_requests_running", "Requests holding KV memory.", lambda s: s.running),
    ("num_requests_waiting", "Requests waiting for memory or budget.", lambda s: s.waiting),
    ("num_requests_swapped", "Of these, requests with KV data in host memory.", lambda s: s.swap.requests),
    ("num_requests_running_max", "Most requests ever running in one step.", lambda s: s.running_max),
    ("kv_cache_usage_perc", "KV blocks held by requests, 0 to 1.", lambda s: s.usage.ratio),
    ("kv_cache_usage_max", "Highest usage of any step, 0 to 1.", lambda s: s.usage_ratio_max),
    ("kv_blocks_total", "KV blocks that can be handed out.", lambda s: s.usage.blocks_total),
    ("kv_blocks_used", "KV blocks held by requests.", lambda s: s.usage.blocks_used),
    ("kv_blocks_cached", "Unheld KV blocks that a prefix can reuse.", lambda s: s.usage.blocks_cached),
    ("kv_blocks_free", "KV blocks that hold nothing.", lambda s: s.usage.blocks_free),
    ("kv_swapped_blocks", "KV blocks in host memory.", lambda s: s.swap.blocks_used),
    ("kv_swap_blocks_total", "KV blocks that host memory may hold.", lambda s: s.swap.blocks_total),
    ("kv_bytes_per_token", "K, V and scales of a token, all layers.", lambda s: s.bytes_per_token),
    ("kv_pool_bytes", "The K and V tensors, null block included.", lambda s: s.pool_bytes),
    ("kv_backed_bytes", "Of the pool, allocated on the device now.", lambda s: s.backed_bytes),
    ("kv_used_bytes", "Held by requests.", lambda s: s.usage.blocks_used * s.block_bytes),
    ("kv_cached_bytes", "Unheld, reusable by a prefix.", lambda s: s.usage.blocks_cached * s.block_bytes),
    ("kv_free_bytes", "Holding nothing.", lambda s: s.usage.blocks_free * s.block_bytes),
    ("kv_null_block_bytes", "Never handed out: padding lands there.", lambda s: s.block_bytes),
    (
        "kv_stored_bytes",
        "KV data of requests' tokens; a shared token counts for each.",
        lambda s: s.slot_bytes(s.usage.stored_tokens),
    ),
    (
        "kv_shared_bytes",
        "What requests would hold in addition if they did not share.",
        lambda s: s.usage.shared_blocks * s.block_bytes,
    ),
    (
        "kv_tail_empty_bytes",
        "Bytes of empty slots at the ends of held blocks.",
        lambda s: s.slot_bytes(s.usage.tail_slots),
    ),
    (
        "kv_reserved_empty_bytes",
        "Held for tokens to come, empty so far.",
        lambda s: s.slot_bytes(s.usage.reserved_slots),
    ),
    (
        "kv_cached_unreachable_bytes",
        "Cached, but not to be found until a block before it is computed anew.",
        lambda s: s.unreachable_blocks * s.block_bytes,
    ),
    ("kv_largest_free_region_bytes", "Could be handed out in one piece.", lambda s: s.largest_free_bytes),
    ("kv_block_table_bytes", "Of the requests' block tables.", lambda s: s.usage.table_bytes),
    ("kv_metadata_bytes", "Of the records of blocks and regions.", lambda s: s.usage.metadata_bytes),
    (
        "achieved_memory_bandwidth_bytes_per_second",
        "Weights and KV data read, over the time in forward passes.",
        lambda s: s.bandwidth_bytes_per_s,
    ),
)

COUNTERS: tuple[tuple[str, str, Read], ...] = (
    ("engine_steps", "Steps of the engine.", lambda s: s.steps),
    (
        "engine_scheduling_seconds",
        "Time in the scheduler, allocation of blocks included.",
        lambda s: s.scheduling_s,
    ),
    ("forward_tokens", "Tokens that went through the model.", lambda s: s.forward_tokens),
    (
        "kv_blocks_evicted",
        "Cached blocks overwritten for lack of free ones.",
        lambda s: s.usage.blocks_evicted_total,
    ),
    ("kv_blocks_swapped_out", "KV blocks copied to host memory.", lambda s: s.swap.out_total),
    ("kv_blocks_swapped_in", "KV blocks copied back.", lambda s: s.swap.in_total),
    (
        "kv_moved_bytes",
        "Copied within the pool so that regions could grow.",
        lambda s: s.usage.moved_blocks_total * s.block_bytes,
    ),
    ("kv_allocation_failures", "Attempts that found no room.", lambda s: s.usage.failures_total),
    (
        "kv_allocation_failures_fragmented",
        "Of these, with enough free bytes, but in pieces.",
        lambda s: s.usage.fragmented_failures_total,
    ),
)


class StateCollector(Collector):
    """Asked for at each scrape, on the event loop; the engine thread replaces whole fields meanwhile.

    So the fields are copied first, at once: a page of two moments would not add up.
    """

    def __init__(self, state: EngineState, labels: dict[str, str]) -> None:
        self._state = state
        self._names = list(labels)
        self._values = list(labels.values())

    def collect(self) -> Iterable[Metric]:
        state = copy(self._state)
        for name, text, read in GAUGES:
            yield self._gauge(name, text, read(state))
        device = state.device
        if device is not None:
            yield self._gauge("device_memory_total_bytes", "The device's memory.", device.total)
            yield self._gauge("device_memory_free_bytes", "Held by nobody.", device.free)
            yield self._gauge("device_memory_own_bytes", "Held by this process.", device.own)
        for name, text, read in COUNTERS:
            counter = CounterMetricFamily(PREFIX + name, text, labels=self._names)
            counter.add_metric(self._values, read(state))
            yield counter

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(PREFIX + name, text, labels=self._names)
        gauge.add_metric(self._values, value)
        return gauge
