"""SGLang's own checks. Its two kinds of out-of-memory need opposite changes, so the phase decides.

Pool = free after loading - free before loading x (1 - mem_fraction_static): at start a higher fraction
makes room for the pool, while serving a lower one makes room beside it.
"""

from __future__ import annotations

import re
from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence, Evidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites, percent, size, told, whole
from kvprobe.evidence.events import Event

_LEGAL_FRACTION: Final = 0.95
_ROOM_SHARE: Final = 0.02
"""Of the card: less than this for the pool is no room."""


def no_room(view: LogView) -> list[LogCandidate]:
    """No token fits after the weights: is the fraction too low, or are the weights too large?"""
    event = view.last("no_room_for_pool")
    negative = [e for e in view.all("profiled_tokens") if (e.get("profiled") or 0) <= 0]
    if event is None and not negative:
        return []
    at = event or negative[-1]
    loaded = [e for e in view.all("weights_loaded") if e.get("free_after") is not None]
    fraction = at.get("fraction") or told(view, "mem_fraction_static")
    evidence = [cite(at), *cites(loaded[-1:]), *cites(negative[:1])]
    if loaded and loaded[-1].get("weights") is not None:
        return [_by_numbers(at, loaded[-1], fraction, evidence)]
    sure: Confidence = "suspected" if fraction is None and not negative else "likely"
    if fraction is not None and fraction <= 0.6:
        return [
            _fraction(
                at,
                evidence,
                sure,
                f"Init, not run time: only {percent(fraction)} of the card may hold weights and pool.",
            )
        ]
    why = "Init, not run time: after the weights nothing is left for the KV pool"
    why += (
        f" at mem_fraction_static {fraction}."
        if fraction is not None
        else "; the fraction in use is not in the log."
    )
    return [_weights(at, evidence, sure, why)]


def _by_numbers(at: Event, loaded: Event, fraction: float | None, evidence: list[Evidence]) -> LogCandidate:
    free, weights = float(loaded.get("free_after")), float(loaded.get("weights"))
    before = free + weights
    best = free - before * (1 - _LEGAL_FRACTION)
    sums = f"Init, not run time: {size(weights)} of weights leave {size(free)} of {size(before)} free" + (
        f", and mem_fraction_static {fraction} keeps {size(before * (1 - fraction))} of it back"
        if fraction
        else ""
    )
    if best > _ROOM_SHARE * before and (fraction is None or fraction < _LEGAL_FRACTION):
        needed = weights / before
        return _fraction(
            at,
            evidence,
            "likely",
            f"{sums}; raise it above {needed:.2f}, at {_LEGAL_FRACTION} the pool gets {size(best)}.",
        )
    return _weights(
        at, evidence, "certain" if fraction else "likely", f"{sums}; no legal fraction leaves room for KV."
    )


def _fraction(at: Event, evidence: list[Evidence], sure: Confidence, why: str) -> LogCandidate:
    return candidate(
        "gpu_memory_utilization_too_low",
        sure,
        why,
        evidence,
        fatal=True,
        at=at,
        phase="profile",
        check_first=["`Load weight end … avail mem` against the card: what is free before the pool is made"],
        remedy=[
            "raise --mem-fraction-static (this is the failure at init; while serving it would be lowered)",
            "fewer bytes of weights: quantise, or a larger --tp-size",
        ],
        would_change_my_mind=["the failure comes after `Memory pool end`: then lower the fraction"],
    )


def _weights(at: Event, evidence: list[Evidence], sure: Confidence, why: str) -> LogCandidate:
    return candidate(
        "weights_plus_fixed_too_large",
        sure,
        why,
        evidence,
        fatal=True,
        at=at,
        phase="profile",
        check_first=[
            "`Load weight end`: mem usage and avail mem; whether someone else holds memory on the card"
        ],
        remedy=[
            "fewer bytes of weights on a card: quantise, a larger --tp-size, no draft model",
            "raise --mem-fraction-static only if it is well below 0.9",
        ],
        would_change_my_mind=["free memory after loading above a tenth of the card"],
    )


_OOM = re.compile(r"out of memory|OutOfMemory|OOM", re.IGNORECASE)


def graph_failed(view: LogView) -> list[LogCandidate]:
    """`Capture cuda graph failed: …`: the inner text decides."""
    event = view.first("graph_failed")
    inner = str(event.get("inner") or "").strip() if event is not None else ""
    if event is None or (not inner and not view.all("torch_oom", "cuda_oom")):
        return []
    memory = _OOM.search(inner) is not None or (not inner and bool(view.all("torch_oom", "cuda_oom")))
    left = view.last("pool_end")
    if memory:
        room = f" {size(left.get('free_after'))} were left after the pool." if left is not None else ""
        return [
            candidate(
                "cudagraph_memory",
                "likely",
                f"Capturing CUDA graphs ran out of memory: the pool was sized first and left too little.{room}",
                [cite(event), *cites([left] if left else [])],
                fatal=True,
                at=event,
                phase="capture",
                check_first=["`Memory pool end. avail mem` and the largest batch that is captured"],
                remedy=[
                    "a smaller --cuda-graph-max-bs",
                    "a lower --mem-fraction-static",
                    "--disable-cuda-graph (slower decode)",
                ],
                would_change_my_mind=["the same failure with --disable-cuda-graph"],
            )
        ]
    return [
        candidate(
            "not_memory",
            "likely",
            f"Capturing CUDA graphs failed for another reason than memory: {inner[:160]}",
            [cite(event)],
            fatal=True,
            at=event,
            phase="capture",
            check_first=["the inner error; SGLang's list of remedies is printed for every capture failure"],
            remedy=[
                "mend the inner error (kernel, shape, compiler, communication)",
                "--disable-cuda-graph to go on meanwhile",
            ],
            would_change_my_mind=["an out-of-memory on another rank before it"],
        )
    ]


def pool_allocation(view: LogView) -> list[LogCandidate]:
    """`Decode out of memory. Try to lower your batch size`: tokens asked against tokens available."""
    event = view.first("pool_alloc_failed")
    if event is None:
        return []
    asked, left = view.first("pool_alloc_asked"), view.first("pool_alloc_left")
    n = asked.get("asked") if asked is not None else None
    m = left.get("left") if left is not None else None
    evidence = [cite(event), *cites([e for e in (asked, left) if e is not None])]
    if n is not None and m is not None and n < m:
        return [_pages(view, event, n, m, evidence)]
    running = [e.get("running") for e in view.all("engine_stats") if e.get("running") is not None]
    few = bool(running) and running[-1] <= 2
    numbers = f": {whole(n)} asked, {whole(m)} left" if n is not None and m is not None else ""
    return [
        candidate(
            "logical_kv_too_large" if few else "kv_pool_pressure",
            "likely" if numbers else "suspected",
            f"The KV pool has too few free tokens for the next {str(event.get('stage')).lower()} step{numbers}"
            + (f", with {running[-1]} running." if running else "."),
            evidence,
            fatal=True,
            at=event,
            phase="serve",
            check_first=["token usage just before, and whether retraction had begun"],
            remedy=[
                "fewer running requests (--max-running-requests)",
                "a higher --schedule-conservativeness",
                "a larger pool",
            ],
            would_change_my_mind=["more tokens available than asked for"],
        )
    ]


def _pages(view: LogView, event: Event, n: int, m: int, evidence: list[Evidence]) -> LogCandidate:
    page = told(view, "block_size")
    if page == 1:
        return candidate(
            "engine_accounting_bug",
            "likely",
            f"{whole(n)} tokens were refused with {whole(m)} available and a page size of 1: the check is wrong.",
            evidence,
            fatal=True,
            at=event,
            phase="serve",
            check_first=["known issues of this version about allocation checks"],
            remedy=["upgrade"],
            would_change_my_mind=["a page size above 1"],
        )
    pages = (
        f"{whole(m // page)} pages of {whole(page)} for {whole(n)} requests"
        if page
        else "a page is needed by each request"
    )
    return candidate(
        "reservation_policy_waste",
        "likely",
        f"{whole(n)} tokens were refused although {whole(m)} are available: {pages}; whole pages run out before tokens do.",
        evidence,
        fatal=True,
        at=event,
        phase="serve",
        check_first=["--page-size, and how many requests cross a page boundary in one step"],
        remedy=[
            "a smaller --page-size",
            "fewer running requests",
            "upgrade: later versions check in pages before the step",
        ],
        would_change_my_mind=["page size 1"],
        excludes={"kv_pool_pressure": f"{whole(m)} tokens were available for {whole(n)}"},
    )


def slots(view: LogView) -> list[LogCandidate]:
    """Request slots, not bytes."""
    event = view.first("slots_exhausted")
    if event is None:
        return []
    return [
        candidate(
            "request_slot_limit",
            "certain" if "alloc_req_slots" in event.text else "likely",
            "The table of request slots is full; bytes of KV are not what ran out.",
            [cite(event)],
            fatal=True,
            at=event,
            phase="serve",
            check_first=["max_running_requests (start line) against the requests that run at once"],
            remedy=[
                "a lower --max-running-requests for the scheduler than the table holds, or a larger table"
            ],
            would_change_my_mind=["free slots at the time"],
            excludes={"kv_pool_pressure": "slots ran out, not KV tokens"},
        )
    ]


def tiny_pool(view: LogView) -> list[LogCandidate]:
    """A pool far below one context while much of the card is idle: sized wrongly, not a matter of tuning."""
    event = view.last("pool_ready")
    if event is None or told(view, "max_total_tokens") is not None:
        return []
    tokens, context, free = event.get("tokens"), event.get("max_model_len"), event.get("free_after")
    pool = told(view, "bytes", "pool_size")
    if tokens is None or free is None or context is None or tokens >= context / 4 or free < 8 * 2**30:
        return []
    if pool is not None and pool > 0.05 * free:
        return []
    share = f"{size(pool)} ({percent(pool / free)} of what is free)" if pool is not None else "almost nothing"
    refused = [e for e in view.all("refused") if (e.get("limit") or 0) <= tokens]
    return [
        candidate(
            "engine_accounting_bug",
            "likely",
            f"The pool holds {whole(tokens)} tokens, {share}, for a context of {whole(context)}, while {size(free)} stay "
            "idle: it was sized while memory of the loader was still counted as used. Do not tune, upgrade.",
            [cite(event), *cites(refused, 2)],
            fatal=bool(refused),
            at=event,
            check_first=[
                "the same start with a later version: sglang before the fix of August 2026 sizes the pool so"
            ],
            remedy=["upgrade", "--max-total-tokens sets the pool by hand until then"],
            would_change_my_mind=[
                "a --max-total-tokens or --mem-fraction-static that asks for so small a pool"
            ],
            excludes={"max_model_len_exceeds_pool": f"{size(free)} are free for a larger pool"},
        )
    ]


def refused_by_length(view: LogView) -> list[LogCandidate]:
    """Requests longer than what the server accepts."""
    events = [
        e
        for e in view.all("refused")
        if e.get("reason") == "context" and e.engine in {"sglang", "tgi", "lmdeploy"}
    ]
    if not events:
        return []
    longest = max(events, key=lambda e: e.get("asked") or 0)
    ready = view.last("pool_ready")
    pool, context = (ready.get("tokens"), ready.get("max_model_len")) if ready is not None else (None, None)
    limit = longest.get("limit")
    by_pool = pool is not None and context is not None and limit is not None and limit <= pool < context
    return [
        candidate(
            "max_model_len_exceeds_pool" if by_pool else "context_limit_truncation",
            "likely",
            f"A prompt of {whole(longest.get('asked') or 0)} tokens was refused at a limit of {whole(limit or 0)}"
            + (
                f", which is the pool ({whole(pool)}), not the context ({whole(context)})."
                if by_pool
                else "; no memory ran out."
            ),
            cites([longest, *([ready] if ready else [])]),
            fatal=False,
            at=longest,
            check_first=["the length of the prompts against the limit"],
            remedy=["a larger pool or context limit", "shorter prompts"],
            would_change_my_mind=["refusals of prompts below the limit"],
        )
    ]


RULES: tuple[LogRule, ...] = (no_room, graph_failed, pool_allocation, slots, tiny_pool, refused_by_length)
