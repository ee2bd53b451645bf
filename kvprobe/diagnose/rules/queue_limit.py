"""Requests wait for a configured limit while blocks are free.

Where the engine states its limit the rule compares with it. Most do not say it on their metrics page (vLLM
does not): then a number that stands still while others wait tells, if most of the engine's steps had no
prompt to compute. Where each step computes one, the queue is for computing, and a limit changes nothing.
"""

from __future__ import annotations

from collections import Counter

from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.rules.pool_next import no_room_for_next
from kvprobe.diagnose.rules.queue_words import (
    PINNED,
    WAITING,
    configured,
    over_the_limit,
    overload,
    queue_evidence,
    waiting_share,
)
from kvprobe.diagnose.rules.slot_limit import slot_limit
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.units import percent, plural, whole

ROOMY = 0.7
"""Above this use of the pool the next prompt may not fit, and memory may be what they wait for."""
MIN_READINGS = 4
NEAR = 0.95
"""Share of the readings with a queue in which the highest number ran, or one less. vLLM counts a request out
with its last token, and the next one in only when its first step is done."""
MIN_UNTOLD = 8
STEP_TOKENS = 2048
"""Of prompts in one step, the usual bound of engines that serve; a step takes up one request at least."""
PROMPT_STEPS = 0.5
"""Of the steps: where more of them compute prompts, the queue is for that, and not for a limit."""
WAIT_SHARE = 0.25


def queue_limit(view: View) -> Outcome:
    """Needs: a queue, a pool with room, and the number that runs pinned to one value, the configured one
    where it is known. Refuted by a number that varies: then the queue is for compute, not for a limit."""
    of_slots = slot_limit(view)
    if of_slots is not None:
        return Outcome(candidates=[of_slots])
    usage = dict(view.load_series(activity.KV_USAGE))
    running = dict(view.load_series(activity.RUNNING))
    queued = [t for t, v in view.load_series(WAITING) if v > 0 and t in running and t in usage]
    if len(queued) < MIN_READINGS or max(usage[t] for t in queued) > ROOMY:
        return Outcome()
    cap, times = Counter(running[t] for t in queued).most_common(1)[0]
    limit = configured(view)
    if cap < 1 or cap < max(running.values()) or (limit is not None and limit != cap):
        return Outcome()
    known, ran = limit is not None, [running[t] for t in queued]
    at_limit = times >= PINNED * len(ran) or _near(ran, cap) if known else _stands_still(view, ran, cap)
    if not at_limit:
        return Outcome()
    waited = waiting_share(view)
    if (waited is not None and waited < WAIT_SHARE) or no_room_for_next(view) is not None:
        return Outcome()
    return Outcome(candidates=[_said(view, cap, queued, usage, known=known, waited=waited)])


def _near(ran: list[float], cap: float) -> bool:
    """The most frequent number is the highest one, and hardly ever did less than one below it run."""
    return sum(1 for n in ran if n >= cap - 1) >= NEAR * len(ran)


def _stands_still(view: View, ran: list[float], cap: float) -> bool:
    """As if by a limit: in most steps there was no prompt to compute, and still nobody was let in."""
    if len(ran) < MIN_UNTOLD:
        return False
    prompts = prompt_steps(view, cap)
    return (
        ran.count(cap) >= NEAR * len(ran) if prompts is None else prompts <= PROMPT_STEPS and _near(ran, cap)
    )


def prompt_steps(view: View, running: float) -> float | None:
    """Share of the engine's steps that computed a part of a prompt, with so many requests running, each of
    which gets a token a step; null without requests of ours that ended well."""
    rows = [(r.prompt_tokens, r.completion_tokens) for r in view.ok]
    prompts, answers = sum(p or 0 for p, _ in rows), sum(a or 0 for _, a in rows)
    if not rows or answers <= 0:
        return None
    return running * max(float(len(rows)), prompts / STEP_TOKENS) / answers


def _said(
    view: View, cap: float, queued: list[int], usage: dict[int, float], *, known: bool, waited: float | None
) -> Candidate:
    most = max(usage[t] for t in queued)
    longest = max(v for _, v in view.load_series(WAITING))
    stated = "the configured limit" if known else "as if by a limit"
    took = f"; {percent(waited)} of all TTFT was that wait" if waited is not None else ""
    more = overload(view)
    took += over_the_limit(more)
    found = finding(
        "queue_limit",
        "suspected" if more is not None else "certain" if known else "likely",
        f"{plural(round(cap), 'request')} ran at a time, {stated}, and up to {whole(longest)} waited in "
        f"{plural(len(queued), 'reading')}, with at most {percent(most)} of the KV pool in use{took}.",
        [
            *queue_evidence(cap, longest, len(queued), known=known),
            evidence(activity.KV_USAGE, f"{percent(most)} at most", kv_usage_max=(most, "ratio")),
        ],
        check_first=["the limit on concurrent sequences (vLLM, bundled server: --max-num-seqs)"],
        remedy=[
            "raise that limit to what the pool holds at the real lengths",
            "where throughput no longer grows with the number that runs: fewer requests, or another server",
        ],
        would_change_my_mind=[
            "the same queue with twice the limit: then more is offered than the server can compute"
        ],
    )
    excludes = {"kv_pool_pressure": f"at most {percent(most)} of the pool was in use while requests waited"}
    return Candidate(finding=found, timing_free=True, excludes=excludes)
