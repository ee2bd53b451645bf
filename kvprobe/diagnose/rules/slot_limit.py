"""llama.cpp: requests wait for a slot.

Its server takes a request up as soon as a slot is idle and defers it otherwise, whatever the cache holds:
a deferred request is one for which there was no slot. How much of the cache is in use is not exported, so
the rule of other engines (a queue beside a pool with room) has nothing to go by here.
"""

from __future__ import annotations

from collections import Counter

from kvprobe.diagnose.model import Evidence
from kvprobe.diagnose.rules.base import Candidate, evidence, finding
from kvprobe.diagnose.rules.pool_words import pool_refusals
from kvprobe.diagnose.rules.queue_words import (
    PINNED,
    WAITING,
    configured,
    over_the_limit,
    overload,
    queue_evidence,
)
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.units import percent, plural, whole

ENGINE = "llama.cpp"
SLOTS, FULLEST = "engine.slots", "engine.slot_usage_ratio_max"
MIN_READINGS = 4
QUEUED_SHARE = 0.25
"""Of the readings under load: a slot that is given back a moment after the answer's end is no queue."""
ROOMY = 0.7


def slot_limit(view: View) -> Candidate | None:
    """Needs: requests that wait while every slot runs one. Refuted by an idle slot beside the queue; where
    the cache had no cell left for what ran, the cache is the cause."""
    running, waiting = dict(view.load_series(activity.RUNNING)), view.load_series(WAITING)
    queued = [t for t, v in waiting if v > 0 and t in running]
    if view.summary.engine != ENGINE or len(queued) < max(MIN_READINGS, QUEUED_SHARE * len(waiting)):
        return None
    slots = activity.largest(view.run.samples, SLOTS) or configured(view)
    cap, times = Counter(running[t] for t in queued).most_common(1)[0]
    if cap < 1 or cap < max(running.values()) or (slots is not None and slots != cap):
        return None
    if times < PINNED * len(queued) or pool_refusals(view) or _cache_was_full(view):
        return None
    return _said(view, cap, queued, known=slots is not None)


def _cache_was_full(view: View) -> bool:
    return view.log is not None and bool(view.log.all("kv_full", "kv_full_fatal"))


def _said(view: View, cap: float, queued: list[int], *, known: bool) -> Candidate:
    longest = max(v for _, v in view.load_series(WAITING))
    more = overload(view)
    fullest = max((v for _, v in view.load_series(FULLEST)), default=None)
    room = f"; the fullest slot held {percent(fullest)} of its context" if fullest is not None else ""
    in_slots = f"one in each of its {plural(round(cap), 'slot')}" if known else "as if in so many slots"
    found = finding(
        "queue_limit",
        "suspected" if more is not None else "certain" if known else "likely",
        f"{plural(round(cap), 'request')} ran at a time, {in_slots}, and up to {whole(longest)} waited in "
        f"{plural(len(queued), 'reading')}: llama.cpp defers a request only where no slot is idle"
        f"{room}{over_the_limit(more)}.",
        _evidence(cap, longest, len(queued), fullest, known=known),
        check_first=[
            "the number of slots (llama.cpp: -np / --parallel) against the requests that come at once"
        ],
        remedy=[
            "more slots (-np), and -c raised with them: the context is divided by the slots unless "
            "--kv-unified is set",
            "where throughput no longer grows with the number that runs: fewer requests, or another server",
        ],
        would_change_my_mind=[
            "the same queue with twice the slots: then more is offered than the server can compute"
        ],
    )
    excludes = {}
    if fullest is not None and fullest <= ROOMY:
        excludes["kv_pool_pressure"] = f"the fullest slot held {percent(fullest)} of its context at most"
    return Candidate(finding=found, timing_free=True, excludes=excludes)


def _evidence(
    cap: float, longest: float, readings: int, fullest: float | None, *, known: bool
) -> list[Evidence]:
    told = [
        *queue_evidence(cap, longest, readings, known=known),
    ]
    if fullest is not None:
        text = f"the fullest slot held {percent(fullest)} of its context"
        told.append(evidence(FULLEST, text, slot_usage_max=(fullest, "ratio")))
    return told
