"""Room is held and not used, while requests wait for room."""

from __future__ import annotations

from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.units import percent, plural, size

RESERVED, USED = "engine.kv_reserved_empty_bytes", "engine.kv_used_bytes"
WAITING = "engine.requests_waiting"
MUCH = 0.4
MIN_READINGS = 3
TIGHT = 0.7
"""Below this use of the pool nobody is kept out by what others hold."""


def reserved_unused(view: View) -> Outcome:
    """Needs: the engine's own count of slots held for tokens to come, most of what is held, in a pool that
    is nearly taken. Refuted by requests that grow into what they hold, or by a pool with room left."""
    held = dict(view.load_series(USED))
    empty = dict(view.load_series(RESERVED))
    usage = dict(view.load_series(activity.KV_USAGE))
    waiting = dict(view.load_series(WAITING))
    tight = [t for t in held if held[t] > 0 and t in empty and usage.get(t, 0.0) >= TIGHT]
    if len(tight) < MIN_READINGS:
        return Outcome()
    share = sum(empty[t] for t in tight) / sum(held[t] for t in tight)
    if share < MUCH:
        return Outcome()
    queued = sum(1 for t in tight if waiting.get(t, 0.0) > 0)
    most = max(empty[t] for t in tight)
    while_waiting = f", while requests waited in {plural(queued, 'reading')}" if queued else ""
    found = finding(
        "reservation_policy_waste",
        "certain" if queued >= 2 else "likely",
        f"{percent(share)} of the KV memory that requests held was reserved and empty (up to {size(most)}) "
        f"in {plural(len(tight), 'reading')} with {percent(TIGHT)} or more of the pool taken{while_waiting}.",
        [
            evidence(
                f"{RESERVED} / {USED}",
                f"{percent(share)} of what is held holds no token",
                reserved_share=(share, "ratio"),
                reserved_max=(most, "B"),
                readings=(len(tight), "count"),
            ),
            evidence(
                activity.KV_USAGE,
                f"{percent(max(usage[t] for t in tight))} of the pool taken at most",
                kv_usage_max=(max(usage[t] for t in tight), "ratio"),
                readings_with_queue=(queued, "count"),
            ),
        ],
        check_first=["the allocator's policy, and the context limit and max_tokens against real lengths"],
        remedy=[
            "an allocator that hands out blocks as tokens come (bundled server: --allocator paged)",
            "a lower context limit or max_tokens: what is reserved follows it",
        ],
        would_change_my_mind=["requests that do grow to the length that is reserved for them"],
    )
    excludes = {"kv_pool_pressure": f"{percent(share)} of what is held holds no token"} if queued >= 2 else {}
    return Outcome(candidates=[Candidate(finding=found, timing_free=True, excludes=excludes)])
