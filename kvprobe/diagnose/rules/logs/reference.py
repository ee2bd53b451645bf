"""The project's reference server: its log has every number, so its findings can be exact."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites, percent, plural, size, told, whole
from kvprobe.evidence.events import Event

_HOG: Final = 0.25
_READINGS: Final = 3
_OTHERS: Final = 0.02
_BEST: Final = 0.97


def _own(view: LogView, *names: str) -> list[Event]:
    return [e for e in view.all(*names) if e.engine == "reference"]


def budget(view: LogView) -> list[LogCandidate]:
    """The budget line: which term takes what the cache needed."""
    events = _own(view, "budget")
    if not events:
        return []
    event = events[-1]
    total, weights, workspace = event.get("total"), event.get("weights"), event.get("workspace")
    if total is not None and event.get("free") is not None and event.get("free") < total * (1 - _OTHERS):
        return [_others(event)]
    if weights is None or workspace is None or total is None:
        return []
    peak, use = event.get("activation_peak") or 0, event.get("utilisation") or 1.0
    left = total * use - weights - workspace - peak
    sums = (
        f"{size(total)} x {use} = {size(total * use)}; weights {size(weights)}, workspace "
        f"{size(workspace)}, activation peak {size(peak)}; left for KV {size(left)}"
    )
    failed = bool(event.get("failed")) or left <= 0
    if workspace >= _HOG * total * use and (not failed or total * use - weights - peak > 0):
        return [
            _said(event, "fixed_workspace_missized", f"{sums}: the fixed workspace takes the room.", failed)
        ]
    if not failed:
        return []
    if total * use - weights - workspace > 0 and peak > 0:
        return [
            _said(event, "startup_activation_peak", f"{sums}: the profiling pass is what does not fit.", True)
        ]
    if total * _BEST - weights - workspace - peak > 0.05 * total:
        return [
            _said(
                event,
                "gpu_memory_utilization_too_low",
                f"{sums}: the card has room, the fraction is too low.",
                True,
            )
        ]
    return [_said(event, "weights_plus_fixed_too_large", f"{sums}: the weights do not fit.", True)]


def _said(event: Event, cause: str, why: str, fatal: bool) -> LogCandidate:
    return candidate(
        cause,
        "certain" if fatal else "likely",
        why,
        [cite(event)],
        fatal=fatal,
        at=event,
        phase="profile",
        check_first=["the largest term of the budget line"],
        remedy=[
            "make that term smaller (precision, --max-num-batched-tokens, workspace), or take a larger device"
        ],
        would_change_my_mind=["another term that is larger"],
        excludes={"kv_pool_pressure": "the budget was spent before a request came"} if fatal else {},
    )


def _others(event: Event) -> LogCandidate:
    held = event.get("total") - event.get("free")
    return candidate(
        "other_process_on_gpu",
        "certain" if event.get("failed") else "likely",
        f"{size(held)} of {size(event.get('total'))} were taken before the server started: somebody else "
        f"holds the device.",
        [cite(event)],
        fatal=bool(event.get("failed")),
        at=event,
        phase="load",
        check_first=["`nvidia-smi` for other processes on the device"],
        remedy=[f"stop the other process: it frees {size(held)}", "or a lower --gpu-memory-utilization"],
        would_change_my_mind=["nobody else on the device"],
    )


_STAGES: Final[dict[str, str]] = {
    "load": "weights_plus_fixed_too_large",
    "profile": "startup_activation_peak",
    "capture": "cudagraph_memory",
    "serve": "gpu_memory_utilization_too_high",
}


def device(view: LogView) -> list[LogCandidate]:
    """`out of device memory`: the phase names it, unless others hold what was missing."""
    events = _own(view, "device_no_memory")
    if not events:
        return []
    e = events[0]
    missing = (e.get("asked") or 0) - (e.get("free") or 0)
    by_others = (e.get("others") or 0) >= max(missing, 1)
    cause = "other_process_on_gpu" if by_others else _STAGES.get(str(e.get("stage")), "capacity_exhausted")
    return [
        candidate(
            cause,
            "certain",
            f"{size(e.get('asked'))} were asked in phase {e.get('stage')} with {size(e.get('free'))} free "
            f"of {size(e.get('total'))}; this process holds {size(e.get('own'))}, others "
            f"{size(e.get('others'))}.",
            [cite(e)],
            fatal=True,
            at=e,
            check_first=["who holds the device" if by_others else "what is allocated in that phase"],
            remedy=[
                "stop the other process"
                if by_others
                else "less work in one step (--max-num-batched-tokens), or a larger device"
            ],
            would_change_my_mind=["other numbers on the next start"],
        )
    ]


def fragmented(view: LogView) -> list[LogCandidate]:
    """Refusals with enough bytes free, but not in one piece."""
    events = [e for e in _own(view, "kv_no_room") if _in_pieces(e)]
    if not events:
        return []
    e = max(events, key=lambda x: x.get("free") - x.get("asked"))
    return [
        candidate(
            "allocator_fragmentation",
            "certain",
            f"{size(e.get('asked'))} were refused with {size(e.get('free'))} free, the largest piece "
            f"{size(e.get('largest_free'))}: the KV allocator has the bytes, in pieces "
            f"({plural(len(events), 'line')}).",
            cites(events, 3),
            fatal=any(x.get("failed") for x in events),
            at=events[0],
            phase="serve",
            check_first=["the allocator: contiguous regions of unequal length fragment, pages do not"],
            remedy=["--allocator paged: any free block serves", "more room, or lengths that are alike"],
            would_change_my_mind=["a largest piece as large as what was asked"],
            excludes={"kv_pool_pressure": f"{size(e.get('free'))} were free for {size(e.get('asked'))}"},
        )
    ]


def _in_pieces(e: Event) -> bool:
    asked, free, largest = e.get("asked"), e.get("free"), e.get("largest_free")
    return None not in (asked, free, largest) and largest < asked <= free


def reserved(view: LogView) -> list[LogCandidate]:
    """Room that requests hold and do not use."""
    stats = [
        e
        for e in _own(view, "engine_stats")
        if e.get("reserved") is not None and (e.get("kv_usage") or 0) > 0.5
    ]
    blocks = [e for e in _own(view, "pool_size") if e.get("tokens") and e.get("bytes_per_token")]
    if len(stats) < 2 or not blocks:
        return []
    pool = blocks[-1].get("tokens") * blocks[-1].get("bytes_per_token")
    shares = [e.get("reserved") / (pool * e.get("kv_usage")) for e in stats]
    share = sum(shares) / len(shares)
    if share < 0.4:
        return []
    top = max(stats, key=lambda e: e.get("reserved"))
    waiting = max(e.get("waiting") or 0 for e in stats)
    return [
        candidate(
            "reservation_policy_waste",
            "certain" if waiting else "likely",
            f"{percent(share)} of the KV memory in use is reserved and empty ({size(top.get('reserved'))} "
            f"at most), while up to {waiting} requests wait: each holds room for its longest length.",
            [cite(top)],
            fatal=False,
            at=stats[0],
            phase="serve",
            check_first=["the allocator, and max_model_len and max_tokens against the real lengths"],
            remedy=[
                "--allocator paged: a request holds only what it has computed",
                "a lower max_model_len or max_tokens",
            ],
            would_change_my_mind=["requests that do reach their full length"],
            excludes={"kv_pool_pressure": f"{percent(share)} of what is in use holds no token"},
        )
    ]


def below_one(view: LogView) -> list[LogCandidate]:
    """Requests that the whole pool could never hold."""
    refused = [e for e in view.all("refused") if e.get("reason") == "pool"]
    small = [e for e in view.all("pool_below_one_request") if e.engine == "reference"]
    if not refused and not any(e.get("failed") for e in small):
        return []
    events = [*refused, *small]
    limit = refused[0].get("limit") if refused else told(view, "pool", "pool_below_one_request")
    return [
        candidate(
            "max_model_len_exceeds_pool",
            "certain",
            f"The pool{f' of {whole(limit)} tokens' if limit else ''} is smaller than one request may be"
            + (f": {whole(refused[0].get('asked') or 0)} tokens were asked and refused." if refused else "."),
            cites(events, 3),
            fatal=any(e.get("failed") for e in small),
            at=events[0],
            check_first=["--max-model-len against the pool's tokens"],
            remedy=["a larger --kv-memory", "a lower --max-model-len"],
            would_change_my_mind=["a pool larger than max_model_len"],
        )
    ]


def early_eviction(view: LogView) -> list[LogCandidate]:
    """Prompts are computed again and again, the pool is mostly free, and almost nothing stays cached."""
    stats = [
        e
        for e in _own(view, "engine_stats")
        if e.get("free_blocks") is not None and e.get("prefix_hit_rate") is not None
    ]
    block = told(view, "block_size", "pool_size")
    if len(stats) < _READINGS or not block:
        return []
    computed = sum((e.get("prompt_tokens_per_s") or 0) * (e.get("interval") or 10) for e in stats)
    cached = max(e.get("cached_blocks") or 0 for e in stats) * block
    free = min(e.get("free_blocks") / e.get("total_blocks") for e in stats if e.get("total_blocks"))
    hits = max(e.get("prefix_hit_rate") for e in stats)
    if hits > 0.1 or free < 0.4 or computed < 20 * block or cached > 0.1 * computed:
        return []
    return [
        candidate(
            "prefix_evicted",
            "likely",
            f"{whole(computed)} tokens were computed, at most {whole(cached)} stayed cached although "
            f"{percent(free)} of the pool was free, and hits were {percent(hits)} at most: cached blocks "
            f"are dropped long before reuse.",
            [cite(stats[0]), cite(stats[-1])],
            fatal=False,
            at=stats[0],
            phase="serve",
            check_first=["what drops cached blocks while free ones are left"],
            remedy=["keep cached blocks until the pool is full"],
            would_change_my_mind=["prompts that share nothing and are shorter than a block"],
        )
    ]


RULES: tuple[LogRule, ...] = (budget, device, fragmented, reserved, below_one, early_eviction)
