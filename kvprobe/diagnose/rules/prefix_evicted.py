"""Prefixes that could have been reused were dropped before they came again."""

from __future__ import annotations

from kvprobe.diagnose.rules import prefix_reach
from kvprobe.diagnose.rules.base import Candidate, evidence
from kvprobe.diagnose.rules.prefix_facts import (
    FAR_BELOW,
    MOVING_GAINS,
    any_cached,
    candidate,
    engine_says_off,
    got_of,
    hit_evidence,
)
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.units import percent, whole

POOL_FULL_RATIO = 0.95
EXPLAINED = 0.5
"""Of the missing hits: so many must be beyond the pool's reach, or something else is missing too."""
ROOM_QUANTILE = 0.9
"""The pool that is named as the remedy would reach so many of the reuses."""
MIN_LOSS = 0.10


def evicted(view: View) -> Candidate | None:
    """Needs: hits far below what was reachable. Likely where the prompts themselves show that prefixes
    come back later than the pool can keep them, else suspected of a pool that was full."""
    reach, got = prefix_reach.reachable(view), got_of(view)
    if got is None or reach - got < MIN_LOSS or engine_says_off(view):
        return None
    return _beyond_the_pool(view, reach, got) or _pool_was_full(view, reach, got)


def _beyond_the_pool(view: View, reach: float, got: float) -> Candidate | None:
    """What is used between two uses of a prefix, against what the pool holds (both in tokens).

    The usage gauge cannot show this: cached blocks that no request holds count as free."""
    distances, pool = view.summary.layout.reuse_distance_tokens, view.summary.metrics.memory.kv_pool_tokens
    if not distances or not pool or reach - got < MOVING_GAINS:
        return None
    beyond = sum(1 for d in distances if d >= pool) / len(distances)
    if beyond * reach < EXPLAINED * (reach - got):
        return None
    middle = distances[(len(distances) - 1) // 2]
    wanted = distances[min(round(ROOM_QUANTILE * len(distances)), len(distances) - 1)]
    return candidate(
        "prefix_evicted",
        # Of several engines each has a pool, and which of them a prefix met is not known.
        "likely" if view.engines == 1 else "suspected",
        f"{percent(got)} of the prompt tokens came from the cache where {percent(reach)} could: between two "
        f"uses of a prefix {whole(middle)} other tokens are used (median), and the KV pool holds "
        f"{whole(pool)}, so prefixes were dropped before they came again.",
        [
            hit_evidence(view),
            evidence(
                "prompt_layout",
                f"{percent(beyond)} of the reusable tokens come back after more tokens than the pool holds",
                reuse_distance_median=(middle, "tokens"),
                reuse_distance_p90=(wanted, "tokens"),
                beyond_the_pool=(beyond, "ratio"),
                reachable=(reach, "ratio"),
            ),
            evidence("cache_config_info", f"a pool of {whole(pool)} tokens", kv_pool=(pool, "tokens")),
        ],
        check_first=["the hit rate with fewer distinct prefixes at a time (it rises if they were evicted)"],
        remedy=[
            f"a KV pool of more than {whole(wanted)} tokens besides what running requests hold, or fewer "
            "distinct prefixes at a time"
        ],
        would_change_my_mind=[f"the same low hit rate with a pool of {whole(2 * wanted)} tokens"],
    )


def _pool_was_full(view: View, reach: float, got: float) -> Candidate | None:
    used = view.summary.metrics.kv_usage_max
    if got >= FAR_BELOW * reach or used is None or used < POOL_FULL_RATIO:
        return None
    if not view.increase(activity.PREFIX_QUERIES) and not any_cached(view):
        return None
    return candidate(
        "prefix_evicted",
        "suspected",
        f"{percent(got)} of the prompt tokens came from the cache where {percent(reach)} could, and the KV "
        f"pool was up to {percent(used)} full: prefixes may have been dropped before they came again.",
        [
            hit_evidence(view),
            evidence(
                activity.KV_USAGE, f"up to {percent(used)} of the pool in use", kv_usage_max=(used, "ratio")
            ),
        ],
        check_first=["the hit rate with fewer users (it rises if prefixes were evicted)"],
        remedy=["a larger KV pool, or fewer distinct prefixes at a time"],
        would_change_my_mind=["the same low hit rate with a pool that is never full"],
    )
