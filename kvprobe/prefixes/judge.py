"""From the analysis of a request log to causes: what takes most of what could be reused.

A log of requests shows what was asked and, at best, what came from the cache. It does not show the
engine: where hits are missing for a reason outside the requests, the answer is `unknown` with what to
collect.
"""

from __future__ import annotations

from kvprobe.diagnose.model import Confidence, Diagnosis, Evidence, Finding, Observation, Quantity
from kvprobe.diagnose.rules.base import finding
from kvprobe.prefixes.analyse import PrefixAnalysis
from kvprobe.prefixes.ceilings import Step
from kvprobe.prefixes.intake import RequestLog
from kvprobe.summary.jsonable import jsonable
from kvprobe.summary.units import percent, plural, whole

WORTH = 0.10
"""A step, or a better layout, that gives less than this of the prompt tokens is not worth a finding."""
NEAR = 0.05
"""Got and reachable this close agree: concurrency and warm caches move a few percent either way."""
FEW = 20

_REMEDY = {
    "prefix_block_granularity": "a smaller block, or a shared start of at least one block",
    "prefix_disabled_by_request": "one salt for all who may share (cache_salt per tenant, not per request)",
    "prefix_routing_spread": "route by prefix or by session, so that a prefix meets the replica that has it",
    "prefix_evicted": "a larger pool, fewer different prefixes at once, or offload of the cache",
}
_FIRST = {
    "prefix_block_granularity": "the block size that the engine really uses (hybrid models enlarge it)",
    "prefix_disabled_by_request": "who sets the salt, the adapter or the option, and for which requests",
    "prefix_routing_spread": "the router's policy, and the hit rate of each replica",
    "prefix_evicted": "evictions, and the pool's size against what the reuse needs",
}


def diagnose_requests(log: RequestLog, found: PrefixAnalysis) -> Diagnosis:
    """One finding for each cause that takes `WORTH` or more, the largest first."""
    findings = [*_layouts(log, found), *_steps(log, found)]
    findings.sort(key=lambda pair: -pair[0])
    kept = [f for _, f in findings]
    if (missing := _missing(log, found)) is not None:
        kept.insert(0, missing) if not kept else kept.append(missing)
    for number, item in enumerate(kept):
        item.role = "primary" if number == 0 else "secondary"
    return Diagnosis(
        primary=kept[0].cause if kept else "healthy_baseline",
        findings=kept,
        observations=_observations(found),
        facts={"prefix_analysis": jsonable(found)},
        read={
            "bytes": None,
            "lines": log.lines,
            "engine": None,
            "engine_version": None,
            "skipped": sum(log.skipped.values()),
            "requests": log.requests,
            "skipped_by_reason": dict(log.skipped),
            "in_order_of_time": log.timed,
            "notes": log.notes,
        },
    )


def _explained(found: PrefixAnalysis) -> bool:
    """Does what came from the cache agree with what the steps leave?"""
    return found.got is not None and abs(found.got - found.reachable) <= NEAR


def _steps(log: RequestLog, found: PrefixAnalysis) -> list[tuple[float, Finding]]:
    out = []
    for before, step in zip(found.steps, found.steps[1:], strict=False):
        if step.cause is None or step.lost < WORTH:
            continue
        confidence: Confidence = "certain" if _explained(found) and not found.estimated else "likely"
        out.append((step.lost, _step_finding(log, found, before, step, confidence)))
    return out


def _step_finding(
    log: RequestLog, found: PrefixAnalysis, before: Step, step: Step, confidence: Confidence
) -> Finding:
    seen = f"; got {percent(found.got)}" if found.got is not None else ""
    why = (
        f"Of the prompt tokens, {percent(before.hit_rate)} could be reused, and "
        f"{percent(step.hit_rate)} with {step.text}{seen}."
    )
    cause = step.cause or "unknown"
    return finding(
        cause,
        confidence,
        why,
        [_evidence(log, f"{s.name}: {percent(s.hit_rate)} ({s.text})", s) for s in found.steps],
        check_first=[_FIRST[cause]],
        remedy=[_REMEDY[cause]],
        would_change_my_mind=["hits above what this condition allows"],
    )


def _evidence(log: RequestLog, text: str, step: Step) -> Evidence:
    facts = {"lost": Quantity(step.lost, "ratio")} if step.lost >= WORTH else {}
    return Evidence(source=log.path, text=text, facts=facts)


def _layouts(log: RequestLog, found: PrefixAnalysis) -> list[tuple[float, Finding]]:
    """A changing part in front of shared ones, or the same lines in another order."""
    layout = found.layout
    if layout is None:
        return []
    as_sent = float(layout["ceiling_as_sent"])
    out = []
    moved = float(layout.get("ceiling_if_moved") or as_sent)
    if moved - as_sent >= WORTH and layout.get("diverge_token") is not None:
        out.append((moved - as_sent, _unstable(log, found, layout, as_sent, moved)))
    ordered = float(layout.get("ceiling_if_ordered") or as_sent)
    if ordered - as_sent >= WORTH and ordered >= moved:
        out.append((ordered - as_sent, _reordered(log, found, layout, as_sent, ordered)))
    return out[-1:] if len(out) > 1 and ordered > moved else out[:1]


def _about(found: PrefixAnalysis) -> str:
    return "about " if found.estimated else ""


def _unstable(
    log: RequestLog, found: PrefixAnalysis, layout: dict[str, object], as_sent: float, moved: float
) -> Finding:
    texts = layout.get("diverge_texts")
    shown = [str(t) for t in texts[:2]] if isinstance(texts, list) else []
    quoted = f' ("{shown[0][:24]}" in one, "{shown[1][:24]}" in another)' if len(shown) == 2 else ""
    body = layout.get("shared_body_tokens")
    behind = f" in front of {_about(found)}{whole(float(str(body)))} shared tokens" if body else ""
    why = (
        f"Prompts part at {_about(found)}token {layout['diverge_token']}{quoted}{behind}: {percent(as_sent)} "
        f"of the prompt tokens can be reused, and {percent(moved)} with the changing part behind them."
    )
    told = [
        Evidence(source=log.path, text=f'prompt {"ab"[i]}: "{layout.get("diverge_before") or ""}" then "{t}"')
        for i, t in enumerate(shown)
    ]
    return finding(
        "prefix_layout_unstable",
        "likely" if found.estimated else "certain",
        why,
        told or [Evidence(source=log.path, text=why)],
        check_first=["what writes the text where the prompts part (a time, an id, a counter?)"],
        remedy=["put what changes from request to request behind what all requests share, or leave it out"],
        would_change_my_mind=["prompts whose token ids are equal up to the end of the shared part"],
    )


def _reordered(
    log: RequestLog, found: PrefixAnalysis, layout: dict[str, object], as_sent: float, ordered: float
) -> Finding:
    why = (
        f"{whole(float(str(layout.get('reordered_prompts') or 0)))} prompts hold the same lines in another "
        f"order, from {_about(found)}token {layout.get('reordered_from_token')} on: {percent(as_sent)} of "
        f"the prompt tokens can be reused, and {percent(ordered)} in one fixed order."
    )
    return finding(
        "prefix_layout_unstable",
        "likely",
        why,
        [
            Evidence(
                source=log.path, text=f"ceiling as sent {percent(as_sent)}, in one order {percent(ordered)}"
            )
        ],
        check_first=["what lists the tools, examples or documents: a set or a map without an order?"],
        remedy=["sort tools, JSON keys and examples once, and always send them in that order"],
        would_change_my_mind=["a fixed order that brings no more hits"],
    )


def _missing(log: RequestLog, found: PrefixAnalysis) -> Finding | None:
    """Hits that the requests allow and that did not come."""
    if found.got is None or found.reachable - found.got < WORTH:
        return None
    why = (
        f"{percent(found.got)} of the prompt tokens came from the cache where these requests, in this order, "
        f"allow {percent(found.reachable)}; a log of requests does not show why."
    )
    return finding(
        "unknown",
        "suspected",
        why,
        [_evidence(log, f"{s.name}: {percent(s.hit_rate)} ({s.text})", s) for s in found.steps],
        check_first=["is prefix caching on? One prompt sent twice, byte for byte (kvprobe doctor does it)"],
        remedy=[
            "collect the engine's metrics page or start-up log: block size, pool size, replicas, speculation"
        ],
        would_change_my_mind=[
            "the pool's size (--pool-tokens), the block (--block-size), the replicas (--replicas)",
            "a model whose state cannot be rewound (sliding window, recurrent): then no hit is right",
        ],
    )


def _observations(found: PrefixAnalysis) -> list[Observation]:
    told = (
        "got is not known: " + (found.got_reason or "") if found.got is None else f"got {percent(found.got)}"
    )
    few = f"; {plural(found.analysed, 'prompt')} are few" if found.analysed < FEW else ""
    shared, reach = percent(found.steps[0].hit_rate), percent(found.reachable)
    text = f"{shared} of the prompt tokens are shared; reachable {reach}; {told}{few}"
    out = [Observation(id="prefix_reach", text=text, facts={"reachable": Quantity(found.reachable, "ratio")})]
    if found.models > 1:
        text = f"{whole(found.models)} models: each has a cache of its own, and prompts share within one only"
        out.append(
            Observation(id="models_apart", text=text, facts={"models": Quantity(found.models, "count")})
        )
    if found.pool_needed_tokens is not None:
        half, most = found.pool_needed_tokens[9], found.pool_needed_tokens[18]
        text = (
            f"between two uses of a prefix come {whole(half)} tokens of other blocks for half of the reuse, "
            f"{whole(most)} for 95 % of it: a cache that drops the oldest must hold so many beside the prefix"
        )
        facts = {"half": Quantity(half, "tokens"), "p95": Quantity(most, "tokens")}
        out.append(Observation(id="pool_needed", text=text, facts=facts))
    return [*out, *_working_set(found)]


def _working_set(found: PrefixAnalysis) -> list[Observation]:
    """All distinct tokens against the pool: below it, neither a larger pool nor an offload can add a hit."""
    pool = found.pool_tokens
    if not pool or found.analysed < found.prompts:
        return []
    times = found.distinct_tokens / pool
    means = (
        "a larger pool, or offload to the host, cannot add a hit"
        if times <= 1.0
        else "what is not in the pool any more could be kept by a larger pool, or by offload to the host"
    )
    text = (
        f"the working set of these prompts is {whole(found.distinct_tokens)} tokens, {times:.1f} times the "
        f"pool of {whole(pool)}: {means}"
    )
    facts = {"distinct": Quantity(found.distinct_tokens, "tokens"), "pool": Quantity(pool, "tokens")}
    return [Observation(id="working_set", text=text, facts=facts)]
