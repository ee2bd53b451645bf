"""The closed list of causes: the vocabulary of every diagnosis.

An id is added here, and in the documentation's table, or it does not exist. The symptom is the row
of the symptom table that a cause stands under; causes that stand under none have null.
"""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.model import Symptom

UNKNOWN: Final = "unknown"
HEALTHY: Final = "healthy_baseline"
CLIENT_BOUND: Final = "client_bound"

_STARTUP_FULL = (
    "weights_plus_fixed_too_large",
    "loading_peak",
    "startup_activation_peak",
    "multimodal_profiling",
    "cudagraph_memory",
    "fixed_workspace_missized",
    "max_model_len_exceeds_pool",
    "gpu_memory_utilization_too_low",
)
_LONG_CONVERSATION = ("logical_kv_too_large", "runtime_activation_spike", "context_limit_truncation")
_RESERVED_UNUSED = (
    "reservation_policy_waste",
    "reservation_by_design",
    "allocator_fragmentation",
    "request_slot_limit",
)
_PREFIX_NOT_REUSED = (
    "prefix_block_granularity",
    "prefix_layout_unstable",
    "prefix_disabled_for_model",
    "prefix_disabled_by_request",
    "prefix_engine_bug",
    "prefix_spec_decode_drop",
    "prefix_routing_spread",
    "prefix_caching_off",
    "prefix_evicted",
    "prefix_hit_but_slow",
)
_QUALITY_DROP = ("kv_quant_error", "kv_quant_warning_harmless")
_NO_SYMPTOM = (
    "kv_pool_pressure",
    "driver_limit_not_capacity",
    "other_process_on_gpu",
    "host_oom_kill",
    "engine_accounting_bug",
    "gpu_hw_fault",
    HEALTHY,
    "gpu_software_fault",
    "gpu_memory_utilization_too_high",
    "nccl_or_runtime_buffers",
    "library_handle_alloc_failed",
    "kv_pool_idle",
    "capacity_exhausted",
    "runtime_context_overhead",
    "kv_pool_leak",
    "not_memory",
    "leftover_process",
    "host_memory_exhausted",
    "host_memory_leak",
    "device_memory_leak",
    "prefill_compute_bound",
    "queue_limit",
    "cancellation_ignored",
    "stream_protocol_defect",
    CLIENT_BOUND,
    "host_cpu_bound",
    UNKNOWN,
)

SYMPTOM_OF: Final[dict[str, Symptom | None]] = {
    **dict.fromkeys(_STARTUP_FULL, "startup_full"),
    **dict.fromkeys(_LONG_CONVERSATION, "long_conversation_oom"),
    **dict.fromkeys(_RESERVED_UNUSED, "reserved_unused"),
    **dict.fromkeys(_PREFIX_NOT_REUSED, "prefix_not_reused"),
    **dict.fromkeys(_QUALITY_DROP, "quality_drop"),
    **dict.fromkeys(_NO_SYMPTOM, None),
}

CAUSES: Final[frozenset[str]] = frozenset(SYMPTOM_OF)
