"""What the prefix rules share: the hit rate, the engine's word, and the form of a candidate."""

from __future__ import annotations

from kvprobe.diagnose.model import Confidence, Evidence
from kvprobe.diagnose.rules.base import Candidate, evidence, finding
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.units import percent

NO_HITS = 0.01
"""Hits below this share of the prompt tokens are no reuse."""
FAR_BELOW = 0.5
"""Hits below this share of what is possible need a reason."""
MOVING_GAINS = 0.20
"""Hit rate to be gained that makes a finding worth its words."""


def got_of(view: View) -> float | None:
    return view.summary.metrics.prefix_hit_rate.got


def ceiling_of(view: View) -> float:
    return view.summary.metrics.prefix_hit_rate.ceiling or 0.0


def could_share(view: View) -> float:
    """The best hit rate that these prompts could have, in whichever order their parts stand."""
    layout = view.summary.layout
    return max(ceiling_of(view), layout.ceiling_if_moved or 0.0, layout.ceiling_if_ordered or 0.0)


def engine_says_off(view: View) -> bool | None:
    """Does the engine's configuration say that prefix caching is off? Null when it does not say."""
    stated = str(view.config.get("enable_prefix_caching", "")).strip().lower()
    return {"false": True, "0": True, "true": False, "1": False}.get(stated)


def hit_evidence(view: View) -> Evidence:
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


def any_cached(view: View) -> bool:
    """Did any request get a substantial part of its prompt from the cache?"""
    return any((r.cached_tokens or 0) > NO_HITS * (r.prompt_tokens or 0) for r in view.ok if r.prompt_tokens)


def candidate(
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
