"""A queue below the red line: what runs leaves no room for one more prompt.

With long prompts a pool is full long before its use comes near 100 %: one request of 60 % keeps the next
one of the same length out, and the use never rises above 60 %. That is the pool, and no limit on sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import quantiles

from kvprobe.diagnose.rules.base import Candidate, evidence, finding
from kvprobe.diagnose.rules.cancelled import COUNTS_RUNNING_ONLY
from kvprobe.diagnose.rules.held import who_held_it
from kvprobe.diagnose.rules.queue_words import WAITING, waiting_share
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.units import percent, plural, whole

MIN_READINGS = 4
QUEUED_SHARE = 0.25
"""Of the readings under load: a queue that comes and goes is no state of the pool."""
MOSTLY = 0.8
"""Of the readings with a queue and the most running: in so many the next prompt did not fit."""
WAIT_SHARE = 0.25
FEW = 4


@dataclass(frozen=True, slots=True)
class NoRoom:
    """At the most that ran: how much of the pool was taken, and what the next prompt would have needed."""

    running: float
    usage: float
    prompt_tokens: float
    pool_tokens: int
    waiting: float
    readings: int


def no_room_for_next(view: View) -> NoRoom | None:
    """Needs the pool's size and the prompts' lengths, and a gauge that counts what running requests hold
    alone. Refuted by one more that ran, or by room for the next prompt."""
    pool, prompt = view.summary.metrics.memory.kv_pool_tokens, _short_prompt(view)
    if not pool or prompt is None or view.engines != 1 or view.summary.engine not in COUNTS_RUNNING_ONLY:
        return None
    usage, running = dict(view.load_series(activity.KV_USAGE)), dict(view.load_series(activity.RUNNING))
    waiting = view.load_series(WAITING)
    queued = [t for t, v in waiting if v > 0 and t in usage and t in running]
    if len(queued) < max(MIN_READINGS, QUEUED_SHARE * len(waiting)):
        return None
    most = max(running[t] for t in queued)
    at_most = [t for t in queued if running[t] == most]
    full = [t for t in at_most if usage[t] + prompt / pool > 1.0]
    if most < 1 or most < max(running.values()) or len(full) < max(MIN_READINGS, MOSTLY * len(at_most)):
        return None
    longest = max(v for _, v in waiting)
    return NoRoom(most, max(usage[t] for t in full), prompt, pool, longest, len(full))


def _short_prompt(view: View) -> float | None:
    """Three quarters of the prompts have this many tokens or more: who is next in the queue is not told."""
    known = [n for r in view.measured if (n := r.prompt_tokens or r.asked_prompt_tokens)]
    return quantiles(known, n=4)[0] if len(known) >= MIN_READINGS else None


def pool_holds_no_more(view: View) -> Candidate | None:
    """The pool as the cause of a queue that stands beside a pool which never came near 100 %."""
    found, waited = no_room_for_next(view), waiting_share(view)
    if found is None or (waited is not None and waited < WAIT_SHARE):
        return None
    took = f"; {percent(waited)} of all TTFT was that wait" if waited is not None else ""
    needed = found.prompt_tokens / found.pool_tokens
    told = finding(
        "logical_kv_too_large" if found.running <= FEW else "kv_pool_pressure",
        "likely",
        f"{plural(round(found.running), 'request')} held up to {percent(found.usage)} of the KV pool of "
        f"{whole(found.pool_tokens)} tokens, and the next prompt, of {whole(found.prompt_tokens)} tokens or "
        f"more, needs {percent(needed)} of it: up to "
        f"{whole(found.waiting)} waited for room in {plural(found.readings, 'reading')}{took}.",
        [
            evidence(
                f"{activity.KV_USAGE}, requests.prompt_tokens",
                f"{percent(found.usage)} in use, {percent(needed)} more needed",
                kv_usage_max=(found.usage, "ratio"),
                next_prompt=(found.prompt_tokens, "tokens"),
                kv_pool=(found.pool_tokens, "tokens"),
            ),
            evidence(
                f"{activity.RUNNING}, {WAITING}",
                f"never more than {whole(found.running)} running, up to {whole(found.waiting)} waiting",
                running_max=(found.running, "count"),
                waiting_max=(found.waiting, "count"),
                readings=(found.readings, "count"),
            ),
            *who_held_it(view),
        ],
        check_first=["how many requests of this length the pool holds at once, against the users"],
        remedy=[
            "a larger KV pool, or fewer bytes a token (KV precision, a model with fewer KV heads)",
            "shorter prompts, or a context limit at which the pool holds as many as come at once",
        ],
        would_change_my_mind=["the same number running, and the same queue, with a pool twice as large"],
    )
    excludes = {
        "queue_limit": f"with {percent(found.usage)} of the pool in use the next prompt, "
        f"{percent(needed)} of it, does not fit"
    }
    return Candidate(finding=told, timing_free=True, excludes=excludes)
