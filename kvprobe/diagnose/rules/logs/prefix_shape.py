"""Prompts that differ early, routers that spread them, and hit rates that cannot be."""

from __future__ import annotations

from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.replicas import replica_rates, server_of, with_affinity
from kvprobe.diagnose.rules.logs.base import LogCandidate, LogRule, candidate, cite
from kvprobe.diagnose.rules.logs.prefix import hit_rate, rates
from kvprobe.diagnose.rules.logs.words import cites, percent, told, whole

_READINGS: Final = 3
_EARLY: Final = 0.15
_LONG_PROMPT: Final = 400
_LARGE_UNIT: Final = 512
_ZERO: Final = 0.005
_NOT_NEEDED: Final = 0.05


def layout(view: LogView) -> list[LogCandidate]:
    """llama.cpp: long prompts that diverge at the same early token again and again."""
    pairs = _kept(view)
    early = [(kept, prompt) for kept, prompt in pairs if prompt >= _LONG_PROMPT and kept < _EARLY * prompt]
    if len(early) < _READINGS or len(early) < 0.6 * len(pairs) or view.all("no_rewind"):
        return []
    points = [kept for kept, _ in early if kept > 0]
    if len(points) < _READINGS or max(points) - min(points) > max(16, 0.2 * max(points)):
        return []
    longest = max(prompt for _, prompt in early)
    events = view.all("prompt_kept")
    return [
        candidate(
            "prefix_layout_unstable",
            # Different users behind one short system prompt look the same where several slots serve them.
            "likely" if told(view, "max_num_seqs") == 1 else "suspected",
            f"Prompts of up to {whole(longest)} tokens diverge at token {min(points)} in {len(points)} "
            f"requests: something early in the prompt (a time, an id, the order of tools) changes each time.",
            cites(events, 3),
            fatal=False,
            at=events[0],
            phase="serve",
            check_first=[f"the text around token {min(points)} of two prompts in a row"],
            remedy=["move what changes to the end of the prompt: everything before it is then reused"],
            would_change_my_mind=["other conversations on the same slot (several slots, or several users)"],
        )
    ]


def _kept(view: LogView) -> list[tuple[int, int]]:
    """(kept tokens, prompt tokens) of each task: its first `kv cache rm [n, end)`."""
    pairs: list[tuple[int, int]] = []
    seen: set[object] = set()
    prompt: int | None = None
    for e in view.all("prompt_started", "prompt_kept"):
        if e.name == "prompt_started":
            prompt = e.get("prompt")
        elif prompt is not None and e.get("task") not in seen:
            seen.add(e.get("task"))
            pairs.append((e.get("kept") or 0, prompt))
    return pairs


def spread(view: LogView) -> list[LogCandidate]:
    """A router that sends the same prefix anywhere."""
    policies = [e for e in view.all("router_policy") if "cache" not in str(e.get("policy")).lower()]
    rate = hit_rate(view)
    if not policies or (rate is not None and rate[0] > 0.5):
        return []
    told = replica_rates(view)
    ranks = len({server_of(e) for e in view.all("engine_stats") if e.line})
    shown = f", hit rate {percent(rate[0])}" if rate is not None else ""
    if (ideal := with_affinity(told)) is not None:
        shown = f", hit rate {percent(ideal / len(told))} on average (affinity: up to {percent(ideal)})"
    return [
        candidate(
            "prefix_routing_spread",
            "suspected",  # a low rate has other reasons; only one replica's rate would prove it
            f"The router's policy is {policies[0].get('policy')}: a repeated prefix meets its cache only on "
            f"one of the replicas{f' ({ranks} seen)' if ranks > 1 else ''}{shown}.",
            [cite(policies[0]), *cites(rates(view)[-1:], 1)],
            fatal=False,
            at=policies[0],
            phase="serve",
            check_first=["hit rate per replica against the rate with one replica"],
            remedy=["a cache-aware or session-sticky policy"],
            would_change_my_mind=["the same hit rate with one replica"],
        )
    ]


def impossible_rate(view: LogView) -> list[LogCandidate]:
    """More hits than queries: the cache's own numbers are wrong."""
    wrong = [e for e in view.all("engine_stats") if (e.get("prefix_hit_rate") or 0) > 1.0]
    if not wrong:
        return []
    return [
        candidate(
            "prefix_engine_bug",
            "likely",
            f"A hit rate of {percent(wrong[0].get('prefix_hit_rate'))} cannot be: more tokens are counted "
            f"as hits than asked.",
            cites(wrong, 2),
            fatal=False,
            at=wrong[0],
            phase="serve",
            check_first=["retractions or preemptions before it: hits of resumed requests are counted twice"],
            remedy=["upgrade", "use deltas of the counters instead"],
            would_change_my_mind=["a rate that is printed in another unit"],
        )
    ]


def alignment(view: LogView) -> list[LogCandidate]:
    """Groups of layers with different blocks: a hit ends on a multiple of all, short prompts never hit."""
    event, rate = view.last("block_alignment"), hit_rate(view)
    if event is None or (event.get("unit") or 0) < _LARGE_UNIT:
        return []
    unit = event.get("unit")
    if rate is not None and rate[0] > _ZERO:
        return []
    sizes = f"LCM({event.get('sizes')}) = " if event.get("sizes") else ""
    shown = f"; 0 % hits in {rate[1]} readings" if rate is not None else ""
    return [
        candidate(
            "prefix_block_granularity",
            "likely" if rate is not None and rate[1] >= _READINGS else "suspected",
            f"Hits end on multiples of {sizes}{whole(unit)} tokens: prompts under {whole(unit)} can never "
            f"hit{shown}.",
            [cite(event), *cites(rates(view)[-1:], 1)],
            fatal=False,
            at=event,
            phase="serve",
            check_first=[f"the tokens that requests really share, against {whole(unit)}"],
            remedy=[
                "a smaller --block-size, where the model's compressors allow it: the unit falls with it",
                f"a shared prefix of at least {whole(unit)} tokens",
            ],
            would_change_my_mind=[f"requests that share more than {whole(unit)} tokens and still miss"],
        )
    ]


def offload(view: LogView) -> list[LogCandidate]:
    """A cache on the host that finds what the GPU still holds: it can bring no gain."""
    found = [e for e in view.all("offload_lookup") if (e.get("hits") or 0) > 0]
    total = sum((e.get("total") or 0) * e.repeats for e in found)
    load = sum(max(0, e.get("load") or 0) * e.repeats for e in found)
    requests = sum(e.repeats for e in found)
    if requests < _READINGS or load > _NOT_NEEDED * total:
        return []
    return [
        candidate(
            "prefix_hit_but_slow",
            "suspected",
            f"The offload cannot help here: of {whole(total)} prompt tokens found on the host in "
            f"{whole(requests)} requests, {whole(load)} were not on the GPU still. Gains start when the "
            "working set exceeds the GPU's KV cache.",
            cites(found, 3),
            fatal=False,
            root=False,
            at=found[0],
            phase="serve",
            check_first=["tokens of all prefixes in use against the GPU KV cache size of the start line"],
            remedy=["measure with more distinct prefixes than the GPU holds", "no offload for this traffic"],
            would_change_my_mind=["requests that load thousands of tokens from the host"],
        )
    ]


RULES: tuple[LogRule, ...] = (layout, spread, impossible_rate, alignment, offload)
