"""The reference server: vLLM V1's names under its own prefix, and what V1 lacks."""

from __future__ import annotations

from kvprobe.observe.dialects.common import counters, gauges
from kvprobe.observe.dialects.model import Dialect, Series
from kvprobe.observe.dialects.vllm import CORE

_POOL = (
    # pool = used + cached + free + null block; used = stored + tail + reserved - shared.
    *("kv_pool_bytes", "kv_used_bytes", "kv_cached_bytes", "kv_free_bytes", "kv_null_block_bytes"),
    *("kv_stored_bytes", "kv_shared_bytes", "kv_tail_empty_bytes", "kv_reserved_empty_bytes"),
    *("kv_cached_unreachable_bytes", "kv_block_table_bytes", "kv_swapped_blocks", "kv_backed_bytes"),
    *("device_memory_total_bytes", "device_memory_free_bytes", "device_memory_own_bytes"),
)

_EXTRAS = (
    Series("engine.requests_running_max", ("num_requests_running_max",), over_label_sets="max"),
    Series("engine.kv_usage_ratio_max", ("kv_cache_usage_max",), over_label_sets="max"),
    *gauges(**{name: name for name in ("kv_blocks_total", "kv_blocks_used", "kv_blocks_cached")}),
    *gauges(kv_blocks_free="kv_blocks_free", requests_swapped="num_requests_swapped"),
    *gauges(**{name: name for name in _POOL}),
    Series("engine.kv_bytes_per_token", ("kv_bytes_per_token",), over_label_sets="mean"),
    # Of several replicas' largest pieces, the largest: no sum of them lies in one piece.
    Series("engine.kv_largest_free_region_bytes", ("kv_largest_free_region_bytes",), over_label_sets="max"),
    *counters(
        kv_blocks_evicted="kv_blocks_evicted",
        kv_allocation_failures="kv_allocation_failures",
        kv_allocation_failures_fragmented="kv_allocation_failures_fragmented",
        kv_moved_bytes="kv_moved_bytes",
        kv_blocks_swapped_out="kv_blocks_swapped_out",
        kv_blocks_swapped_in="kv_blocks_swapped_in",
        forward_tokens="forward_tokens",
        engine_steps="engine_steps",
        engine_scheduling_seconds="engine_scheduling_seconds",
    ),
)

REFERENCE = Dialect("reference", "kvprobe:", (*CORE, *_EXTRAS), "cache_config_info", "build_info")
