"""The same long prefix comes again and TTFT stays high: why was prefill not reused?

Read from what the prompts share (analysed token by token), the server's counters and usage, and the
engine's own configuration. What the workload calls itself plays no part. Few hits on prompts that
share nothing are no finding.
"""

from __future__ import annotations

from kvprobe.diagnose.contrast import contrast
from kvprobe.diagnose.model import Confidence, Evidence
from kvprobe.diagnose.rules import prefix_reach
from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.memory import whole as label_number
from kvprobe.summary.units import percent, seconds, whole

SUBSTANTIAL = 0.10
"""A hit rate that prompts could reach, below which reuse is not worth a finding."""
MOVING_GAINS = 0.20
NO_HITS = 0.01
FAR_BELOW = 0.5
POOL_FULL_RATIO = 0.95
QUOTED_CHARS = 48


def prefix_row(view: View) -> Outcome:
    """At most one candidate for each cause, the more specific first."""
    rules = (caching_off, layout_unstable, block_granularity, evicted, unexplained)
    outcome = Outcome()
    for rule in rules:
        # The last rules ask "what else?": they speak only if nothing before them did.
        if rule in (evicted, unexplained) and outcome.candidates:
            break
        candidate = rule(view)
        if candidate is not None:
            outcome.candidates.append(Candidate(finding=candidate.finding, timing_free=True))
    return outcome


def _got(view: View) -> float | None:
    return view.summary.metrics.prefix_hit_rate.got


def _ceiling(view: View) -> float:
    return view.summary.metrics.prefix_hit_rate.ceiling or 0.0


def _could_share(view: View) -> float:
    """The best hit rate that these prompts could have, in whichever order their parts stand."""
    return max(_ceiling(view), view.summary.layout.ceiling_if_moved or 0.0)


def engine_says_off(view: View) -> bool | None:
    """Does the engine's configuration say that prefix caching is off? Null when it does not say."""
    stated = str(view.config.get("enable_prefix_caching", "")).strip().lower()
    return {"false": True, "0": True, "true": False, "1": False}.get(stated)


def _hit_evidence(view: View) -> Evidence:
    rate = view.summary.metrics.prefix_hit_rate
    if rate.got is None:
        return evidence(
            "prefix hit rate", f"the server shows no hit rate: {rate.reason}", ceiling=(rate.ceiling, "ratio")
        )
    source = (
        f"{activity.PREFIX_HITS} / {activity.PREFIX_QUERIES}" if rate.got_source == "counters" else "usage"
    )
    return evidence(
        source,
        f"{percent(rate.got)} of the prompt tokens came from the cache",
        got=(rate.got, "ratio"),
        ceiling=(rate.ceiling, "ratio"),
    )


# -- the cache is off ------------------------------------------------------------------------


def caching_off(view: View) -> Candidate | None:
    """Needs: prompts that share a lot, no hits. Concludes from the engine's word, or from a query
    counter that stood still while prompts were computed. Refuted by any hit."""
    could, got = _could_share(view), _got(view)
    if could < SUBSTANTIAL or (got is not None and got >= NO_HITS) or _any_cached(view):
        return None
    off = engine_says_off(view)
    still = _queries_stood_still(view)
    if off is not True and not (off is None and still):
        return None
    confidence: Confidence = "certain" if off else "likely"
    told = [_hit_evidence(view)]
    if off:
        told.insert(
            0,
            evidence(
                "cache_config_info",
                "the engine's configuration says enable_prefix_caching=False",
                enable_prefix_caching=(False, None),
            ),
        )
        because = "the engine says that prefix caching is off"
    else:
        told.insert(0, still or evidence(activity.PREFIX_QUERIES, "did not move"))
        because = "its prefix cache was never asked while it computed these prompts"
    shown = "no hit was seen" if got is None else f"{percent(got)} came from the cache"
    why = f"{percent(could)} of the prompt tokens could be reused and {shown}: {because}."
    return _candidate(
        "prefix_caching_off",
        confidence,
        why,
        told,
        check_first=["the server's start-up line or flags for prefix caching"],
        remedy=[
            "switch prefix caching on (vLLM: --enable-prefix-caching; bundled server: without "
            "--no-prefix-caching)"
        ],
        would_change_my_mind=[
            "a single prompt token served from the cache",
            "a configuration that says it is on",
        ],
    )


def _any_cached(view: View) -> bool:
    """Did any request get a substantial part of its prompt from the cache?"""
    return any((r.cached_tokens or 0) > NO_HITS * (r.prompt_tokens or 0) for r in view.ok if r.prompt_tokens)


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


# -- the layout of the prompt ----------------------------------------------------------------


def layout_unstable(view: View) -> Candidate | None:
    """Needs: a changing segment in front of a body that prompts share. Refuted by hits on the body."""
    layout, got, ceiling = view.summary.layout, _got(view), _ceiling(view)
    moved = layout.ceiling_if_moved
    if moved is None or layout.diverge_token is None or moved - ceiling < MOVING_GAINS:
        return None
    if got is not None and got > FAR_BELOW * moved:
        return None
    shared = (
        f" in front of {whole(layout.shared_body_tokens)} shared tokens" if layout.shared_body_tokens else ""
    )
    seen = "not exported by the server" if got is None else percent(got)
    why = (
        f"Prompts part at token {layout.diverge_token}{_quoted(layout.diverge_texts)}{shared}: "
        f"{percent(ceiling)} of the prompt tokens can be reused (got: {seen}); with the changing part moved "
        f"behind the shared one it would be {percent(moved)}."
    )
    told = [
        evidence(
            layout.source,
            f"the first token that differs is number {layout.diverge_token}",
            diverge_token=(layout.diverge_token, "tokens"),
            changing_tokens=(layout.changing_tokens, "tokens"),
            shared_body_tokens=(layout.shared_body_tokens, "tokens"),
            ceiling_as_sent=(ceiling, "ratio"),
            ceiling_if_moved=(moved, "ratio"),
        ),
        *(
            evidence(layout.source, f'prompt {"ab"[i]}: "{t}"')
            for i, t in enumerate(layout.diverge_texts[:2])
        ),
        _hit_evidence(view),
        _saving(view),
    ]
    return _candidate(
        "prefix_layout_unstable",
        "likely" if got is None else "certain",
        why,
        told,
        check_first=[
            f"what writes the text at token {layout.diverge_token} of the prompt (a time, an id, a counter?)"
        ],
        remedy=["put what changes from request to request behind what all requests share, or leave it out"],
        would_change_my_mind=["prompts whose token ids are equal up to the end of the shared part"],
    )


def _quoted(texts: list[str]) -> str:
    """The first of the texts, short enough for a sentence."""
    if not texts:
        return ""
    return f' ("{texts[0][:QUOTED_CHARS]}{"..." if len(texts[0]) > QUOTED_CHARS else ""}")'


def _saving(view: View) -> Evidence:
    """What a hit would save in TTFT, if this run shows it."""
    found = contrast(view.ok)
    ratio = found.ttft_ratio if found is not None else None
    cold, warm = (found.ttft_cold, found.ttft_warm) if found is not None else (None, None)
    if ratio is None or cold is None or warm is None or cold.value is None or warm.value is None:
        return evidence(
            "ttft_s", "what it would save in TTFT is not known: too few requests of this run hit the cache"
        )
    return evidence(
        "ttft_s",
        f"requests of this run that hit had a median TTFT of {seconds(warm.value)}, "
        f"others {seconds(cold.value)}",
        ttft_hit_p50=(warm.value, "s"),
        ttft_miss_p50=(cold.value, "s"),
    )


# -- hits stay far below what the prompts allow -------------------------------------------------


def block_granularity(view: View) -> Candidate | None:
    """Needs: prompts share tokens, and fewer than one block of them. Refuted by any hit."""
    layout = view.summary.layout
    block = label_number(view.config.get("block_size")) or layout.block_size_tokens
    shared, got = layout.shared_prefix_tokens, _got(view)
    asked = view.summary.metrics.prompt_tokens.got_median
    if not block or not shared or not asked or shared >= block or got is None or got >= NO_HITS:
        return None
    if shared < SUBSTANTIAL * asked or engine_says_off(view):
        return None
    why = (
        f"The shared prefix has {whole(shared)} tokens and the cache reuses whole blocks of {whole(block)}: "
        f"{percent(got)} is correct."
    )
    return _candidate(
        "prefix_block_granularity",
        "certain" if view.config.get("block_size") else "likely",
        why,
        [
            evidence(
                "prompt_layout", f"prompts share {whole(shared)} tokens", shared_prefix=(shared, "tokens")
            ),
            evidence("cache_config_info", f"block size {whole(block)} tokens", block_size=(block, "tokens")),
            _hit_evidence(view),
        ],
        check_first=["the block size that the engine really uses (hybrid models enlarge it)"],
        remedy=[f"share at least {whole(block)} tokens, or use a smaller block"],
        would_change_my_mind=["a hit on a prefix shorter than one block"],
    )


def evicted(view: View) -> Candidate | None:
    """Needs: hits far below what was reachable, and a pool that was full. Only ever suspected."""
    reach, got = prefix_reach.reachable(view), _got(view)
    used = view.summary.metrics.kv_usage_max
    if (
        got is None
        or reach < SUBSTANTIAL
        or got >= FAR_BELOW * reach
        or used is None
        or used < POOL_FULL_RATIO
    ):
        return None
    if not view.increase(activity.PREFIX_QUERIES) and not _any_cached(view):
        return None
    return _candidate(
        "prefix_evicted",
        "suspected",
        f"{percent(got)} of the prompt tokens came from the cache where {percent(reach)} could, and the KV "
        f"pool was up to {percent(used)} full: prefixes may have been dropped before they came again.",
        [
            _hit_evidence(view),
            evidence(
                activity.KV_USAGE, f"up to {percent(used)} of the pool in use", kv_usage_max=(used, "ratio")
            ),
        ],
        check_first=["the hit rate with fewer users (it rises if prefixes were evicted)"],
        remedy=["a larger KV pool, or fewer distinct prefixes at a time"],
        would_change_my_mind=["the same low hit rate with a pool that is never full"],
    )


def unexplained(view: View) -> Candidate | None:
    """Hits far below what was reachable, and nothing that was read says why."""
    reach, got = prefix_reach.reachable(view), _got(view)
    if got is None or reach < MOVING_GAINS or got >= FAR_BELOW * reach:
        return None
    return _candidate(
        "unknown",
        "suspected",
        f"{percent(got)} of the prompt tokens came from the cache where these prompts, in this order, allow "
        f"{percent(reach)}, and nothing that was read says why.",
        [
            _hit_evidence(view),
            evidence("prompt_layout", f"reachable: {percent(reach)}", reachable=(reach, "ratio")),
        ],
        check_first=["one prompt sent twice, byte for byte: how many of its tokens come from the cache?"],
        remedy=[
            "collect the engine's start-up log (block size, speculation, model type) and diagnose it with "
            "the run"
        ],
        would_change_my_mind=[
            "a per-request salt, several replicas, or a model whose state cannot be cached"
        ],
    )


def _candidate(
    cause: str,
    confidence: Confidence,
    why: str,
    told: list[Evidence],
    *,
    check_first: list[str],
    remedy: list[str],
    would_change_my_mind: list[str],
) -> Candidate:
    return Candidate(
        finding=finding(
            cause,
            confidence,
            why,
            told,
            check_first=check_first,
            remedy=remedy,
            would_change_my_mind=would_change_my_mind,
        ),
        timing_free=True,
    )
