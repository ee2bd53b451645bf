"""Prefix hit rate: aimed at, at best possible with these prompts, and got."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.rundata import RunData
from kvprobe.summary import activity
from kvprobe.summary.layout import read_layout


class PrefixHitRate(msgspec.Struct, kw_only=True):
    """Shares of prompt tokens (0-1)."""

    aimed: float | None = None
    """What the workload's sizes ask for."""
    ceiling: float | None = None
    """What the prompts, as sent, allow at best."""
    got: float | None = None
    got_source: str | None = None
    """`counters` (increase of the server's hit and query counters over the load, warm-up taken off
    where usage allows) or `usage` (cached tokens that the server reported per request)."""
    counter_hit_tokens: float | None = None
    counter_query_tokens: float | None = None
    usage_cached_tokens: int | None = None
    usage_prompt_tokens: int | None = None
    got_with_warmup: float | None = None
    """Everything that the server looked up during the load, warm-up included."""
    others_tokens: float | None = None
    """Prompt tokens that the server's counter saw beyond this run's requests: the work of others. Null
    where it cannot be known; 0 up to `OTHERS_SHARE` of this run's own, which may be counting."""
    own_tokens: int | None = None
    reason: str | None = None


OTHERS_SHARE = 0.05


def prefix_hit_rate(run: RunData, measured: Sequence[RequestRecord]) -> PrefixHitRate:
    """Counters first: they see every token. Usage where the server exports no counters."""
    ceiling = _stated(run, "prefix_hit_rate_ceiling")
    if ceiling is None:
        ceiling = read_layout(run.facts).ceiling_as_sent
    out = PrefixHitRate(aimed=_stated(run, "prefix_hit_rate_aimed"), ceiling=ceiling)
    hits = activity.increase(run.samples, activity.PREFIX_HITS)
    queries = activity.increase(run.samples, activity.PREFIX_QUERIES)
    cached, prompt = _usage(measured)
    out.usage_cached_tokens, out.usage_prompt_tokens = cached, prompt
    out.own_tokens, out.others_tokens = _others(run)
    shared = bool(out.others_tokens)
    if hits is not None and queries is not None and not shared:
        out.counter_hit_tokens, out.counter_query_tokens = _without_warmup(run, hits.value, queries.value)
        out.got_with_warmup = hits.value / queries.value if queries.value else None
    else:
        every_cached, every_prompt = _usage([r for r in run.records if r.failure is None])
        out.got_with_warmup = (
            every_cached / every_prompt if every_cached is not None and every_prompt else None
        )
    if out.counter_hit_tokens is not None and out.counter_query_tokens:
        out.got = min(1.0, max(0.0, out.counter_hit_tokens / out.counter_query_tokens))
        out.got_source = "counters"
    elif cached is not None and prompt:
        out.got, out.got_source = cached / prompt, "usage"
    else:
        still = "the prefix counters hold others' requests" if shared else "the prefix counters did not move"
        out.reason = still if queries is not None else activity.why_absent(run.samples)
    return out


def _usage(records: Sequence[RequestRecord]) -> tuple[int | None, int | None]:
    """(cached, prompt) tokens over the requests whose usage names both; null when none does."""
    both = [
        (r.cached_tokens, r.prompt_tokens)
        for r in records
        if r.cached_tokens is not None and r.prompt_tokens is not None
    ]
    if not both:
        return None, None
    return sum(c for c, _ in both), sum(p for _, p in both)


def _others(run: RunData) -> tuple[int | None, float | None]:
    """(prompt tokens of this run's requests, those that the server counted beyond them).

    A request without usage counts with what was asked, so that a failed one is not taken for
    another's. Null without the counter, or where usage is missing altogether.
    """
    counted = activity.increase(run.samples, "engine.prompt_tokens_total")
    tried = [r for r in run.records if r.sent_ns is not None]
    if counted is None or counted.resets or not any(r.prompt_tokens is not None for r in tried):
        return None, None
    own = sum(r.prompt_tokens if r.prompt_tokens is not None else r.asked_prompt_tokens or 0 for r in tried)
    if run.opened or not own:
        return own or None, None
    excess = counted.value - own
    return own, excess if excess > OTHERS_SHARE * own else 0.0


def _without_warmup(run: RunData, hits: float, queries: float) -> tuple[float, float]:
    """Take the warm-up requests off the counters, if usage says what all of them cost."""
    warmup = [r for r in run.records if r.warmup and r.sent_ns is not None]
    known = all(r.cached_tokens is not None and r.prompt_tokens is not None for r in warmup)
    if not warmup or not known or any(o.warmup for o in run.opened):
        return hits, queries
    cached = sum(r.cached_tokens or 0 for r in warmup)
    prompt = sum(r.prompt_tokens or 0 for r in warmup)
    return (hits - cached, queries - prompt) if queries > prompt and hits >= cached else (hits, queries)


def _stated(run: RunData, name: str) -> float | None:
    """A ratio that the run wrote down about its own prompts."""
    for fact in reversed(run.facts):
        if fact.name == name and isinstance(fact.value, int | float) and 0 <= fact.value <= 1:
            return float(fact.value)
    return None
