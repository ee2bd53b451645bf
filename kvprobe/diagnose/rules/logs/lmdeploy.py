"""LMDeploy: `cache_max_entry_count` is a share of total memory (old) or of free memory (new)."""

from __future__ import annotations

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites, told
from kvprobe.evidence.events import Event


def turbomind(view: LogView) -> list[LogCandidate]:
    """TurboMind's out-of-memory names a file: the loader's or the run-time allocator's."""
    event = view.first("turbomind_oom")
    if event is None:
        return []
    started = bool(view.all("serving", "pool_size", "engine_stats"))
    count = told(view, "cache_max_entry_count")
    if event.get("file") == "memory_utils.cu" and not started:
        return [_weights(event, "likely" if view.phase_at(event) == "load" else "suspected")]
    shown = f" (cache_max_entry_count {count})" if count else ""
    return [
        candidate(
            "gpu_memory_utilization_too_high",
            "likely" if started else "suspected",  # before it, the weights may be what fills the card
            f"The run-time allocator found no memory beside the KV cache{shown}: the cache's share leaves "
            f"too little.",
            [cite(event), *cites([e for e in view.all("config") if e.get("cache_max_entry_count")], 1)],
            fatal=True,
            at=event,
            check_first=[
                "free memory after the start, and whether the share is of total (0.2.1 and before) or of "
                "free memory"
            ],
            remedy=[
                "a lower --cache-max-entry-count (0.2 to 0.5 on a small card)",
                "a lower max_prefill_token_num or session_len",
            ],
            would_change_my_mind=["the same failure with a share of 0.1: then the weights"],
        )
    ]


def _weights(event: Event, sure: Confidence) -> LogCandidate:
    return candidate(
        "weights_plus_fixed_too_large",
        sure,
        "Memory for the weights and fixed buffers could not be had while loading (memory_utils.cu), before "
        "any KV cache: the share for the cache does not matter here.",
        [cite(event)],
        fatal=True,
        at=event,
        phase="load",
        check_first=["bytes of the weights divided by tp, against free memory of each card"],
        remedy=["more cards (--tp)", "AWQ or int8 weights", "free the card of other processes"],
        would_change_my_mind=["the failure comes after the BlockManager lines"],
    )


def no_room(view: LogView) -> list[LogCandidate]:
    """The PyTorch engine's check of its cache size."""
    event = view.first("lmdeploy_no_room")
    if event is None:
        return []
    return [
        candidate(
            "weights_plus_fixed_too_large",
            "suspected",  # no number: another process, or a large prefill, leaves as little
            f"No GPU memory is left for the {event.get('what')} after the weights.",
            [cite(event)],
            fatal=True,
            at=event,
            phase="profile",
            check_first=["free memory after loading"],
            remedy=["more cards (--tp), or quantised weights", "a lower max_prefill_token_num"],
            would_change_my_mind=["much free memory and a very small cache_max_entry_count"],
        )
    ]


RULES: tuple[LogRule, ...] = (turbomind, no_room)
