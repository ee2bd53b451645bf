"""Who held the cache when it ran out, as evidence of the causes that say it did."""

from __future__ import annotations

from kvprobe.diagnose.model import Evidence
from kvprobe.diagnose.rules.base import evidence
from kvprobe.diagnose.view import View
from kvprobe.summary.holders import Moment, who_held
from kvprobe.summary.units import percent, plural, seconds, whole

SHOWN = 3
_WORDS = {
    "preemption": "before a preemption",
    "refusal": "when memory was refused",
    "full": "with the pool full and requests waiting",
}


def who_held_it(view: View) -> list[Evidence]:
    """The worst moment in a sentence; empty where the client's requests do not tell."""
    held = who_held(view.run)
    if not held.moments:
        return []
    worst = held.moments[0]
    return [
        evidence(
            "requests at the moment",
            _sentence(worst),
            moment=(worst.t_s, "s"),
            requests=(worst.requests, "count"),
            held=(worst.held_tokens, "tokens"),
            moments=(held.moments_seen, "count"),
        )
    ]


def _sentence(moment: Moment) -> str:
    largest = "; ".join(
        f"{h.request_id} {whole(h.tokens)} tokens"
        + (f" ({percent(h.pool_share)} of the pool)" if h.pool_share is not None else "")
        + f", {seconds(h.age_s)} old"
        for h in moment.holders[:SHOWN]
    )
    more = f"; {whole(moment.requests - SHOWN)} more" if moment.requests > SHOWN else ""
    return (
        f"who held the cache {seconds(moment.t_s)} into the load, {_WORDS[moment.event]}: "
        f"{plural(moment.requests, 'request')} of up to {whole(moment.held_tokens)} tokens: {largest}{more}"
    )
