"""The same long prefix comes again and TTFT stays high: why was prefill not reused?

Read from what the prompts share (analysed token by token), the server's counters and usage, and the
engine's own configuration. What the workload calls itself plays no part. Few hits on prompts that
share nothing are no finding.
"""

from __future__ import annotations

from kvprobe.diagnose.model import Confidence, Evidence
from kvprobe.diagnose.rules import prefix_reach
from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence
from kvprobe.diagnose.rules.prefix_contents import dropped_early, keys_split
from kvprobe.diagnose.rules.prefix_evicted import evicted
from kvprobe.diagnose.rules.prefix_facts import (
    FAR_BELOW,
    MOVING_GAINS,
    NO_HITS,
    any_cached,
    candidate,
    ceiling_of,
    could_share,
    engine_says_off,
    got_of,
    hit_evidence,
)
from kvprobe.diagnose.rules.prefix_layout import layout_unstable
from kvprobe.diagnose.rules.prefix_reordered import reordered
from kvprobe.diagnose.rules.prefix_slots import asked_without_cache, held_and_not_used
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.memory import whole as label_number
from kvprobe.summary.units import percent, whole

NEAR = 0.05
"""Hits and what the blocks leave agree to within this."""
SUBSTANTIAL = 0.10
"""A hit rate that prompts could reach, below which reuse is not worth a finding."""


def prefix_row(view: View) -> Outcome:
    """At most one candidate for each cause, the more specific first."""
    rules = (caching_off, layout_unstable, reordered, block_granularity, coarse_blocks, *_WHAT_ELSE)
    outcome = Outcome()
    for rule in rules:
        # The last rules ask "what else?": they speak only if nothing before them did.
        if rule in _WHAT_ELSE and outcome.candidates:
            break
        found = rule(view)
        if found is not None:
            outcome.candidates.append(found)
    return outcome


# -- the cache is off ------------------------------------------------------------------------


def caching_off(view: View) -> Candidate | None:
    """Needs: prompts that share a lot, no hits. Concludes from the engine's word, from a query counter that
    stood still while prompts were computed, or from slots that held a prompt of which nothing was used.
    Refuted by any hit."""
    could, got = could_share(view), got_of(view)
    if could < SUBSTANTIAL or (got is not None and got >= NO_HITS) or any_cached(view):
        return None
    off = engine_says_off(view)
    if off is False:
        return None
    confidence: Confidence = "certain" if off else "likely"
    because, told = _switched_off() if off else _never_asked(view)
    if not told:
        return None
    shown = "no hit was seen" if got is None else f"{percent(got)} came from the cache"
    why = f"{_possible(view)} and {shown}: {because}."
    if not off and asked_without_cache(view):
        return _off_by_request(why, [*told, hit_evidence(view)])
    return candidate(
        "prefix_caching_off",
        confidence,
        why,
        [*told, hit_evidence(view)],
        check_first=["the server's start-up line or flags for prefix caching"],
        remedy=[
            "switch prefix caching on (vLLM: --enable-prefix-caching; llama.cpp: without --no-cache-prompt; "
            "bundled server: without --no-prefix-caching)"
        ],
        would_change_my_mind=[
            "a single prompt token served from the cache",
            "a configuration that says it is on",
        ],
    )


def _switched_off() -> tuple[str, list[Evidence]]:
    told = evidence(
        "cache_config_info",
        "the engine's configuration says enable_prefix_caching=False",
        enable_prefix_caching=(False, None),
    )
    return "the engine says that prefix caching is off", [told]


def _never_asked(view: View) -> tuple[str, list[Evidence]]:
    """(what shows that the cache was not used, its evidence); no evidence where nothing shows it."""
    still = _queries_stood_still(view)
    if still is not None:
        return "its prefix cache was never asked while it computed these prompts", [still]
    return "slots held the same beginnings, and they were computed again", held_and_not_used(view)


def _off_by_request(why: str, told: list[Evidence]) -> Candidate:
    return candidate(
        "prefix_disabled_by_request",
        "likely",
        f"{why[:-1]}; the requests themselves say cache_prompt: false.",
        told,
        check_first=["`cache_prompt` in the body of the requests"],
        remedy=["leave `cache_prompt` out of the requests, or set it to true"],
        would_change_my_mind=["the same without that option in the requests"],
    )


def _possible(view: View) -> str:
    """What could be reused, as the prompts were sent; what a better layout would add is said apart."""
    as_sent, could = ceiling_of(view), could_share(view)
    moved = f" ({percent(could)} with their changing part behind the shared one)" if could > as_sent else ""
    return f"As sent, {percent(as_sent)} of the prompt tokens could be reused{moved}"


def _queries_stood_still(view: View) -> Evidence | None:
    """The query counter is exported, did not move, and prompts were computed meanwhile."""
    queries = view.increase(activity.PREFIX_QUERIES)
    prompts = view.increase("engine.prompt_tokens_total")
    computed = prompts.value if prompts else sum(r.prompt_tokens or 0 for r in view.ok)
    if queries is None or queries.value > 0 or computed <= 0:
        return None
    return evidence(
        activity.PREFIX_QUERIES,
        f"did not move while {whole(computed)} prompt tokens were computed",
        queries=(queries.value, "tokens"),
        prompt_tokens=(computed, "tokens"),
    )


# -- hits stay far below what the prompts allow -------------------------------------------------


def block_granularity(view: View) -> Candidate | None:
    """Needs: prompts share tokens, and fewer than one block of them. Refuted by any hit."""
    layout = view.summary.layout
    block = label_number(view.config.get("block_size")) or layout.block_size_tokens
    shared, got = layout.shared_prefix_tokens, got_of(view)
    asked = view.summary.metrics.prompt_tokens.got_median
    if not block or not shared or not asked or shared >= block or got is None or got >= NO_HITS:
        return None
    if shared < SUBSTANTIAL * asked or engine_says_off(view):
        return None
    why = (
        f"The shared prefix has {whole(shared)} tokens and the cache reuses whole blocks of {whole(block)}: "
        f"a hit rate of {percent(got)} is what it must be."
    )
    return candidate(
        "prefix_block_granularity",
        "certain" if view.config.get("block_size") else "likely",
        why,
        [
            evidence(
                "prompt_layout", f"prompts share {whole(shared)} tokens", shared_prefix=(shared, "tokens")
            ),
            evidence("cache_config_info", f"block size {whole(block)} tokens", block_size=(block, "tokens")),
            hit_evidence(view),
        ],
        check_first=["the block size that the engine really uses (hybrid models enlarge it)"],
        remedy=[f"share at least {whole(block)} tokens, or use a smaller block"],
        would_change_my_mind=["a hit on a prefix shorter than one block"],
    )


def coarse_blocks(view: View) -> Candidate | None:
    """Needs: a share of the prompts that only whole blocks of this size keep from being reused, and hits
    that come to just what the blocks leave. Refuted by hits beyond that."""
    analysis, got = view.fact("prefix_analysis"), got_of(view)
    steps = analysis.get("steps", []) if isinstance(analysis, dict) else []
    rates = {s.get("name"): float(s.get("hit_rate") or 0.0) for s in steps if isinstance(s, dict)}
    block = label_number(view.config.get("block_size"))
    if got is None or not block or not {"last_token", "block"} <= set(rates) or engine_says_off(view):
        return None
    could, left = rates["last_token"], rates["block"]
    if could - left < MOVING_GAINS or left < NO_HITS or abs(got - left) > NEAR:
        return None
    return candidate(
        "prefix_block_granularity",
        "likely",
        f"{percent(could)} of the prompt tokens could be reused token by token, and {percent(left)} in whole "
        f"blocks of {whole(block)} tokens: {percent(got)} came from the cache.",
        [
            evidence(
                "prefix_analysis",
                f"whole blocks of {whole(block)} take {percent(could - left)} of the prompt tokens",
                by_token=(could, "ratio"),
                by_block=(left, "ratio"),
            ),
            evidence("cache_config_info", f"block size {whole(block)} tokens", block_size=(block, "tokens")),
            hit_evidence(view),
        ],
        check_first=["the block size that the engine really uses (hybrid models enlarge it)"],
        remedy=["a smaller block, or shared starts of whole blocks"],
        would_change_my_mind=["a hit that ends inside a block"],
    )


def unexplained(view: View) -> Candidate | None:
    """Hits far below what was reachable, and nothing that was read says why."""
    reach, got = prefix_reach.reachable(view), got_of(view)
    if got is None or reach < MOVING_GAINS or got >= FAR_BELOW * reach:
        return None
    return candidate(
        "unknown",
        "suspected",
        f"{percent(got)} of the prompt tokens came from the cache where these prompts, in this order, allow "
        f"{percent(reach)}, and nothing that was read says why.",
        [
            hit_evidence(view),
            evidence("prompt_layout", f"reachable: {percent(reach)}", reachable=(reach, "ratio")),
        ],
        check_first=["one prompt sent twice, byte for byte: how many of its tokens come from the cache?"],
        remedy=[_log_that_tells(view)],
        would_change_my_mind=[
            "a per-request salt, several replicas, or a model whose state cannot be cached"
        ],
    )


def _log_that_tells(view: View) -> str:
    if view.summary.engine == "llama.cpp":
        return (
            "collect the log of the load and diagnose it with the run: `selected slot by LCP similarity` "
            "beside no hits says that reuse is off, `forcing full prompt re-processing` that the model "
            "cannot rewind"
        )
    return (
        "collect the engine's start-up log (block size, speculation, model type) and diagnose it with the run"
    )


_WHAT_ELSE = (dropped_early, keys_split, evicted, unexplained)
