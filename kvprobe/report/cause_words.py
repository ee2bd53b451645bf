"""Causes, confidences and quantities in plain words, for every page that shows a diagnosis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from kvprobe.diagnose.causes import HEALTHY, UNKNOWN
from kvprobe.diagnose.model import Evidence, Quantity
from kvprobe.summary.units import figures, percent, seconds, size, whole

CAUSE_WORDS: Final[dict[str, str]] = {
    "weights_plus_fixed_too_large": "weights and fixed buffers leave no room for the KV cache",
    "loading_peak": "the peak while loading does not fit, though the loaded weights would",
    "startup_activation_peak": "the start-up pass (profiling, warm-up) needs too much memory",
    "multimodal_profiling": "profiling for worst-case images or videos needs too much memory",
    "cudagraph_memory": "CUDA-graph capture needs memory that the pool did not leave",
    "fixed_workspace_missized": "a fixed workspace has the wrong size",
    "max_model_len_exceeds_pool": "one request of the full context limit needs more than the pool has",
    "gpu_memory_utilization_too_low": "the memory fraction is too small, though the card has room",
    "gpu_memory_utilization_too_high": "the memory fraction leaves too little beside the engine's pool",
    "logical_kv_too_large": "the active conversations are longer than the pool can hold",
    "runtime_activation_spike": "a passing peak at run time needs too much memory",
    "context_limit_truncation": "prompts are longer than the context window and are cut, without an error",
    "reservation_policy_waste": "memory is reserved and stays unused",
    "reservation_by_design": "the large allocation is intended, and no leak",
    "allocator_fragmentation": "enough memory, but in pieces that cannot be joined",
    "request_slot_limit": "the request slots are used up, the bytes are not",
    "kv_quant_error": "the KV cache's low precision damages the output",
    "kv_quant_warning_harmless": "the KV-scale warning is there, the damage is not",
    "kv_pool_pressure": "the KV pool is full, and requests queue or are preempted",
    "kv_pool_idle": "the KV pool is mostly empty: memory is not the limit",
    "kv_pool_leak": "the engine loses track of KV blocks",
    "driver_limit_not_capacity": "the driver refused although enough memory was free",
    "other_process_on_gpu": "another process holds or took memory of the card",
    "leftover_process": "what is left of an earlier run holds memory of the card",
    "host_oom_kill": "the host killed the process for lack of host memory",
    "host_memory_exhausted": "the host's memory is used up",
    "host_memory_leak": "the host's memory use grows without bound",
    "device_memory_leak": "the card's memory use grows without bound",
    "engine_accounting_bug": "the engine's own numbers are wrong",
    "gpu_hw_fault": "the card or its link has a hardware fault",
    "gpu_software_fault": "a fault of a kernel or a driver, not of memory size",
    "nccl_or_runtime_buffers": "communication buffers cannot be had",
    "library_handle_alloc_failed": "a library (cuBLAS, cuDNN) finds no memory for its handle",
    "capacity_exhausted": "the card is plainly full",
    "runtime_context_overhead": "the driver's and framework's base load grew",
    "not_memory": "it looks like memory, and is something else",
    "prefix_block_granularity": "the shared prefix is shorter than the unit of reuse",
    "prefix_layout_unstable": "the prompts differ near their start, so nothing can be reused",
    "prefix_disabled_for_model": "this kind of model cannot reuse a prefix",
    "prefix_disabled_by_request": "a request option keeps the prefix from being reused",
    "prefix_engine_bug": "a defect in the engine's prefix cache",
    "prefix_spec_decode_drop": "speculative decoding drops a part of every prefix hit",
    "prefix_routing_spread": "equal prefixes are sent to different replicas",
    "prefix_caching_off": "prefix caching is switched off",
    "prefix_evicted": "reusable prefixes are evicted before their reuse",
    "prefix_hit_but_slow": "prefixes are reused, and the wait has another reason",
    "prefill_compute_bound": "the wait is prefill computation",
    "queue_limit": "requests wait for a configured limit while blocks are free",
    "cancellation_ignored": "cancelled requests go on computing",
    "stream_protocol_defect": "the answer stream itself misleads",
    "client_bound": "the load generator is the limit, not the server",
    "host_cpu_bound": "the engine's host process is the limit, the card waits",
    HEALTHY: "nothing wrong was found",
    UNKNOWN: "no known signature: the cause is not known",
}
SYMPTOM_WORDS: Final = {
    "startup_full": "memory nearly full as soon as the service starts",
    "long_conversation_oom": "few requests, but out of memory after long conversations",
    "reserved_unused": "much room stays reserved though lengths are short",
    "prefix_not_reused": "the same long prefix comes again and the first token stays slow",
    "quality_drop": "lower KV precision, and odd output",
}
_MOST_FACTS = 12


def place(evidence: Evidence) -> str:
    """`server.log:123`, or the source alone."""
    return f"{evidence.source}:{evidence.line}" if evidence.line else evidence.source


def facts_line(facts: dict[str, Quantity]) -> str:
    """`requested 2.34 GiB, free 1.03 GiB`; what is not known is left out."""
    shown = [
        _named(name.replace("_", " "), value) for name, value in facts.items() if value.value is not None
    ]
    more = f", and {len(shown) - _MOST_FACTS} more" if len(shown) > _MOST_FACTS else ""
    return ", ".join(shown[:_MOST_FACTS]) + more


def _named(name: str, told: Quantity) -> str:
    """`free 1.03 GiB`; `46,592 tokens` rather than `tokens 46,592 tokens`."""
    shown = quantity(told)
    if name.endswith(" ci") and isinstance(told.value, list | tuple) and len(told.value) == 2:
        lo, hi = _ends(told.value, told.unit)
        return f"{name.removesuffix(' ci')} 95 % [{lo} - {hi}]"
    return shown if told.unit is not None and name == told.unit else f"{name} {shown}"


def _ends(values: Sequence[Any], unit: str | None) -> list[str]:
    """Both ends of an interval in one form: a ratio that passes 1 is `0.99x` as well as `1.03x`."""
    numbers = [v for v in values if isinstance(v, int | float)]
    if unit == "ratio" and len(numbers) == 2 and max(numbers) > 1:
        return [f"{figures(v)}x" for v in numbers]
    return [quantity(Quantity(v, unit)) for v in values]


def quantity(told: Quantity) -> str:
    """A value as a person reads it."""
    value, unit = told.value, told.unit
    if isinstance(value, list | tuple):
        return " + ".join(quantity(Quantity(v, unit)) for v in value[:8])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if unit == "B":
        return size(value)
    if unit == "ratio":
        return percent(value) if 0 <= value <= 1 else f"{figures(value)}x"
    if unit == "s":
        return seconds(value)
    number = whole(value) if math.isfinite(value) and value == int(value) else f"{value:g}"
    return number if unit in (None, "count") else f"{number} {unit}"
