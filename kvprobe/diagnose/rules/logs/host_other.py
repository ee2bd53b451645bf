"""The host around a server: a host pool that was refused, Jetson's and Apple's shared memory, probes."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import FATAL_EVENTS, cites, size

_EXPLAINED: Final = (
    *FATAL_EVENTS,
    "killed",
    "signal",
    "oom_words",
    "bus_error",
    "host_too_small",
    "metal_oom",
)


def host_pool(view: LogView) -> list[LogCandidate]:
    """The engine checks that its cache on the host fits before it pins it."""
    event = view.first("host_pool_refused")
    if event is None:
        return []
    asked, free = event.get("asked") or 0, event.get("free") or 0
    kept = " (the engine keeps a reserve of its own, so the free part alone is not the limit)"
    return [
        candidate(
            "host_memory_exhausted",
            "likely",
            f"The KV cache in host memory asks for {size(asked)} and {size(free)} are free on the host"
            f"{kept if asked <= free else ''}.",
            [cite(event)],
            fatal=True,
            at=event,
            phase="load",
            check_first=["`free -h` and the container's limit; each rank asks for a pool of its own"],
            remedy=["a smaller host cache (--hicache-size or --hicache-ratio)", "more host memory"],
            would_change_my_mind=["far more free host memory at that moment"],
            excludes={"capacity_exhausted": "host memory was refused, not device memory"},
        )
    ]


def nvmap(view: LogView) -> list[LogCandidate]:
    """Jetson: the GPU takes its memory from the machine's, through NvMap."""
    events = view.all("nvmap_refused")
    if not events or view.all("alloc_failed", "buffer_failed", "torch_oom"):
        return []
    return [
        candidate(
            "host_memory_exhausted",
            "suspected",
            "NvMap could not give the GPU memory (error 12): on this board GPU and CPU share one "
            "memory, and it "
            "was full, or too much in pieces, or a limit of the driver refused it.",
            cites(events, 2),
            fatal=True,
            at=events[0],
            phase=view.phase_at(events[0]),
            check_first=[
                "`free -h` right before the start, and the L4T release (36.4.7 refuses large blocks)"
            ],
            remedy=["stop other programs, drop the page cache or reboot", "a smaller model or context"],
            would_change_my_mind=["gigabytes free at that moment: then the driver's limit"],
        )
    ]


def probe(view: LogView) -> list[LogCandidate]:
    """The kubelet restarts a container whose probe failed, and nothing else is told."""
    event = view.last("probe_failed")
    if event is None or view.all(*_EXPLAINED):
        return []
    return [
        candidate(
            "not_memory",
            "suspected",
            f"The kubelet restarts the container because its {event.get('probe')} probe failed; nothing "
            f"speaks "
            "of memory.",
            [cite(event)],
            fatal=True,
            at=event,
            check_first=["the container's own log before the restart (`kubectl logs --previous`)"],
            remedy=["a startup probe whose budget is longer than the slowest start"],
            would_change_my_mind=["an error of memory in the container's own log, or `OOMKilled`"],
        )
    ]


def prefill_guard(view: LogView) -> list[LogCandidate]:
    """oMLX refuses a prompt whose peak, by its own estimate, is above the ceiling."""
    event = view.last("prefill_guarded")
    if event is None or view.all("mlx_no_memory", "metal_oom", "mlx_buffer_limit"):
        return []
    asked, limit, before = event.get("asked"), event.get("limit"), event.get("used")
    return [
        candidate(
            "host_memory_exhausted",
            "suspected",
            f"The engine's guard refused a prompt: its estimate is {size(asked)} at the peak, "
            f"{size(before)} are "
            f"in use already, and the ceiling is {size(limit)}. Nothing failed yet.",
            cites(view.all("prefill_guarded"), 2),
            fatal=False,
            at=event,
            phase="serve",
            check_first=["what holds the memory before the prompt: weights, other models, the hot cache"],
            remedy=["unload other models, a smaller hot cache or context", "a higher iogpu.wired_limit_mb"],
            would_change_my_mind=["the prompt runs with the guard off: then the estimate is too high"],
        )
    ]


RULES: tuple[LogRule, ...] = (host_pool, nvmap, probe, prefill_guard)
