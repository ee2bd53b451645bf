"""What the cache holds, against what the prompts share: is a prefix dropped early, or kept and not found?

Needs an engine that says how many cached blocks it holds. The two are opposite pictures of one
symptom: nothing is kept although the pool has room, or everything is kept and the same tokens stand
there several times.
"""

from __future__ import annotations

from kvprobe.diagnose.rules import prefix_reach
from kvprobe.diagnose.rules.base import Candidate, evidence
from kvprobe.diagnose.rules.prefix_facts import (
    FAR_BELOW,
    MOVING_GAINS,
    NO_HITS,
    ceiling_of,
    engine_says_off,
    got_of,
    hit_evidence,
)
from kvprobe.diagnose.rules.prefix_facts import candidate as prefix_candidate
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.memory import whole as label_number
from kvprobe.summary.units import percent, whole

CACHED, USED, TOTAL = "engine.kv_blocks_cached", "engine.kv_blocks_used", "engine.kv_blocks_total"
EVICTED = "engine.kv_blocks_evicted_total"
NEXT_TO_NOTHING = 0.1
"""Of the tokens that were computed: so few cached at most are dropped, not kept."""
ROOM = 0.4
"""Of the pool: so much was free all the time, so that no need dropped anything."""
COPIES = 0.5
"""Of the tokens that a shared cache would not hold: so many held are copies."""
MIN_BLOCKS = 20


def dropped_early(view: View) -> Candidate | None:
    """Needs: hits far below what was reachable, a pool with room, and hardly a cached block. Refuted by
    cached blocks that stay while there is room."""
    reach, got = prefix_reach.reachable(view), got_of(view)
    held = _held(view)
    if held is None or got is None or reach < MOVING_GAINS or got >= FAR_BELOW * reach:
        return None
    computed, cached, free, block = held
    if engine_says_off(view) or free < ROOM or computed < MIN_BLOCKS * block:
        return None
    if cached > NEXT_TO_NOTHING * computed or (view.summary.layout.shared_prefix_tokens or 0) < block:
        return None
    return prefix_candidate(
        "prefix_evicted",
        "likely",
        f"{percent(got)} of the prompt tokens came from the cache where {percent(reach)} could: of "
        f"{whole(computed)} tokens computed at most {whole(cached)} stayed cached, although at least "
        f"{percent(free)} of the pool was free; prefixes are dropped long before they come again.",
        [
            hit_evidence(view),
            evidence(
                CACHED,
                f"at most {whole(cached)} tokens cached",
                cached_max=(cached, "tokens"),
                computed=(computed, "tokens"),
                free_min=(free, "ratio"),
            ),
        ],
        check_first=["what drops cached blocks while free ones are left (a bound on the cache, a reset)"],
        remedy=["keep cached blocks until the pool needs them: no bound, no reset between requests"],
        would_change_my_mind=["cached blocks that stay while the pool has room"],
    )


def keys_split(view: View) -> Candidate | None:
    """Needs: no hits at all, nothing evicted, and a cache that holds the same tokens several times over.
    Then the key of a block is made of more than its tokens. Refuted by any hit, or by a cache that holds
    no more than the distinct tokens."""
    got, reach = got_of(view), prefix_reach.reachable(view)
    held, evicted = _held(view), view.increase(EVICTED)
    if held is None or got is None or got >= NO_HITS or reach < MOVING_GAINS or engine_says_off(view):
        return None
    if evicted is None or evicted.value > 0 or not view.alone:
        return None
    sent = sum(r.prompt_tokens or 0 for r in view.run.records)
    generated = sum(r.completion_tokens or 0 for r in view.run.records)
    distinct = sent * (1.0 - ceiling_of(view)) + generated
    copies, at_end = sent + generated - distinct, _at_end_tokens(view, held[3])
    if at_end is None or copies < MIN_BLOCKS * held[3] or at_end < distinct + COPIES * copies:
        return None
    return prefix_candidate(
        "prefix_disabled_by_request",
        "likely",
        f"No prompt token came from the cache where {percent(reach)} could, and nothing was evicted: it "
        f"ended up with {whole(at_end)} tokens although only {whole(distinct)} of those sent and generated "
        "are distinct. It keeps equal prefixes apart, as with a salt, a tenant or an adapter that is part of "
        "the key.",
        [
            hit_evidence(view),
            evidence(
                f"{CACHED} + {USED}",
                f"{whole(at_end)} tokens held at the end",
                held=(at_end, "tokens"),
                distinct=(distinct, "tokens"),
                evicted=(0, "blocks"),
            ),
        ],
        check_first=[
            "what is added to a request on its way: cache_salt, a tenant id, a LoRA adapter, prompt_logprobs",
            "one prompt sent twice, byte for byte, straight to the server: how much of it hits?",
        ],
        remedy=["one salt for all who may share (a tenant, not a request), or none"],
        would_change_my_mind=[
            "a hit on a repeat that was sent without that option",
            "a known defect of the cache",
        ],
    )


def _held(view: View) -> tuple[float, float, float, int] | None:
    """(tokens computed, most tokens cached, least share of the pool free, block size); null when not told."""
    block = label_number(view.config.get("block_size"))
    cached, used = dict(view.load_series(CACHED)), dict(view.load_series(USED))
    total = activity.largest(view.run.samples, TOTAL)
    both = [t for t in cached if t in used]
    if not block or not total or not both:
        return None
    hits = view.summary.metrics.prefix_hit_rate.usage_cached_tokens or 0
    computed = sum((r.prompt_tokens or 0) + (r.completion_tokens or 0) for r in view.run.records) - hits
    free = 1.0 - max((cached[t] + used[t]) / total for t in both)
    return float(computed), max(cached.values()) * block, free, block


def _at_end_tokens(view: View, block: int) -> float | None:
    cached, used = view.at_rest(CACHED), view.at_rest(USED)
    return None if cached is None or used is None else (cached[1] + used[1] - cached[0] - used[0]) * block
