"""SGLang while it serves: pages that run out before tokens, slots, a pool that was sized wrongly."""

from __future__ import annotations

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Evidence
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.words import cites, percent, size, told, whole
from kvprobe.evidence.events import Event

_LOW_FRACTION = 0.7
"""A user who sets less than this asks for a small pool."""


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
            f"The KV pool has too few free tokens for the next {str(event.get('stage')).lower()} "
            f"step{numbers}" + (f", with {running[-1]} running." if running else "."),
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
            f"{whole(n)} tokens were refused with {whole(m)} available and a page size of 1: the check is "
            f"wrong.",
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
        "likely" if page else "suspected",
        f"{whole(n)} tokens were refused although {whole(m)} are available: {pages}; whole pages run out "
        f"before tokens do.",
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
    if (told(view, "mem_fraction_static") or 1.0) < _LOW_FRACTION:
        return []
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
            f"The pool holds {whole(tokens)} tokens, {share}, for a context of {whole(context)}, while "
            f"{size(free)} stay idle: it was sized while memory of the loader was still counted as used. Do "
            f"not tune, upgrade.",
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
    by_pool = limit is not None and pool is not None and limit <= pool < (context or 0)
    return [
        candidate(
            "max_model_len_exceeds_pool" if by_pool else "context_limit_truncation",
            "likely",
            f"A prompt of {whole(longest.get('asked') or 0)} tokens was refused at a limit of "
            f"{whole(limit or 0)}"
            + (
                f", which is the pool ({whole(pool or 0)}), not the context ({whole(context or 0)})."
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


def watchdog(view: LogView) -> list[LogCandidate]:
    """A scheduler that made no step for minutes: a hang. Why it hangs is not in these lines."""
    event = view.first("watchdog_timeout")
    others = ("torch_oom", "cuda_oom", "gpu_fault", "xid", "kv_leak", "pool_alloc_failed", "nccl_no_memory")
    if event is None or view.all(*others):
        return []
    return [
        candidate(
            "not_memory",
            "suspected",
            f"The scheduler made no step for {event.get('limit'):g} s and nothing reports a lack of memory: "
            f"it "
            "hangs (a kernel, a collective, a lock), and the kill after it is its own clean-up.",
            cites(view.all("watchdog_timeout"), 2),
            fatal=True,
            at=event,
            phase="serve",
            check_first=["py-spy dump of each rank while it hangs", "`dmesg` for Xid; which rank is behind"],
            remedy=["--disable-overlap-schedule or another attention backend, to find the part that hangs"],
            would_change_my_mind=["a rank whose log ends in an out-of-memory"],
        )
    ]


RULES: tuple[LogRule, ...] = (watchdog, pool_allocation, slots, tiny_pool, refused_by_length)
