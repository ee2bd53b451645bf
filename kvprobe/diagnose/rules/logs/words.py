"""How the log rules say sizes, counts and places, and what they ask of a view more than once."""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Evidence
from kvprobe.diagnose.rules.logs.base import cite
from kvprobe.evidence.events import Event
from kvprobe.summary import units
from kvprobe.summary.units import percent, plural, whole

__all__ = [
    "FATAL_EVENTS",
    "cites",
    "explained_before",
    "flag",
    "lived_on",
    "percent",
    "plural",
    "size",
    "told",
    "whole",
]

FATAL_EVENTS = (
    "torch_oom",
    "cuda_oom",
    "cpu_oom",
    "gpu_fault",
    "library_alloc_failed",
    "workspace_overflow",
    "exception",
    "engine_dead",
    "kv_leak",
    "pool_alloc_failed",
    "slots_exhausted",
    "no_room_for_pool",
    "graph_failed",
    "alloc_failed",
    "buffer_failed",
    "cuda_alloc_failed",
    "trt_alloc_failed",
    "executor_failed",
    "turbomind_oom",
    "warmup_no_memory",
    "xid",
    "device_off_bus",
    "collective_timeout",
    "watchdog_timeout",
    "nccl_no_memory",
    "len_exceeds_pool",
    "free_below_desired",
    "device_no_memory",
)
"""What can itself explain a death: a bare SIGKILL after one of these is clean-up, not a cause."""


def size(value: float | None) -> str:
    """Bytes in binary units; `an unknown size` when the log does not say."""
    return "an unknown size" if value is None else units.size(value)


def cites(events: Iterable[Event], most: int = 3) -> list[Evidence]:
    """The first few of these events as evidence."""
    return [cite(e) for e in list(events)[:most]]


def told(view: LogView, name: str, *events: str) -> float | None:
    """The last value of this name that these events carry (`config` when none is named)."""
    found = [e.get(name) for e in view.all(*(events or ("config",))) if e.get(name) is not None]
    last = found[-1] if found else None
    return float(last) if isinstance(last, int | float) and not isinstance(last, bool) else None


def flag(view: LogView, name: str, *events: str) -> bool | None:
    """The last true or false of this name, None when nothing says."""
    found = [e.get(name) for e in view.all(*(events or ("config",))) if isinstance(e.get(name), bool)]
    return found[-1] if found else None


def explained_before(view: LogView, event: Event) -> Event | None:
    """A failure that stands before this event in the same log and explains a death by itself."""
    for e in view.all(*FATAL_EVENTS):
        if e.source != event.source or e.line < event.line:
            return e
    return None


def lived_on(view: LogView, event: Event) -> bool:
    """The engine got ready or served after this line."""
    after = view.all("serving", "engine_stats")
    return any(e.source == event.source and e.line > event.line for e in after)


_AMPLE_SHARE = 0.05
_AMPLE_BYTES = 2**30


def pool_in_place(view: LogView) -> bool:
    """The start went as far as a KV pool with room: blocks or tokens that hold a request of the full
    length, or a budget that leaves much, or slots that were set up."""
    pools = view.all("pool_size", "pool_ready")
    if any((e.get("concurrency") or 1) < 1 or 0 in (e.get("tokens"), e.get("blocks")) for e in pools):
        return False
    left = [e.get("kv") for e in view.all("budget") if e.get("kv") is not None]
    left += [e.get("bytes") for e in view.all("available_kv") if e.get("bytes") is not None]
    if left:
        total = told(view, "total", "budget") or 0
        return float(min(left)) >= max(_AMPLE_BYTES, _AMPLE_SHARE * total)
    slots = any(e.engine == "llama.cpp" and e.get("max_num_seqs") is not None for e in view.all("config"))
    return bool(pools) or slots
