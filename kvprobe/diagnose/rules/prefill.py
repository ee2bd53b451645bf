"""The wait for the first token is prefill, and the server computes more of it than was asked.

That TTFT is mostly prefill is no fault: on prompts that share nothing it must be. It is a finding only
where the engine's own count of tokens that went through the model exceeds what prompts, cache hits,
answers and preemptions explain. Where an engine does not export that count, nothing is said: from times
alone a slow server and a slow machine cannot be told apart.
"""

from __future__ import annotations

from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.rules.pool import PREEMPTIONS
from kvprobe.diagnose.rules.queue_words import waiting_share
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.units import percent, whole

FORWARD = "engine.forward_tokens_total"
PROMPTS, GENERATED = "engine.prompt_tokens_total", "engine.generation_tokens_total"
EXCESS = 0.3
MIN_EXCESS_TOKENS = 1000
PREFILL_SHARE = 0.5
"""Of what is not waiting in the queue (a queue can come of slow prefill) ..."""
LEAST_SHARE = 0.2
"""... and of TTFT as a whole."""


def prefill_twice(view: View) -> Outcome:
    """Needs: far more tokens through the model than the work needed, and a TTFT that is prefill. Refuted by
    preemptions (their tokens are computed again), aborted prompts, or a queue that makes up the wait."""
    told = [view.increase(name) for name in (FORWARD, PROMPTS, GENERATED)]
    grown = [t.value for t in told if t is not None and not t.resets]
    if len(grown) < len(told):
        return Outcome()
    forward, prompts, generated = grown
    hits = view.increase(activity.PREFIX_HITS)
    needed = prompts - (hits.value if hits else 0.0) + generated + _again(view)
    excess = forward - needed
    if needed <= 0 or excess < max(EXCESS * needed, MIN_EXCESS_TOKENS):
        return Outcome()
    prefill, waited = _prefill_share(view), waiting_share(view)
    if prefill is None or prefill < max(PREFILL_SHARE * (1.0 - (waited or 0.0)), LEAST_SHARE):
        return Outcome()
    queue = f", {percent(waited)} the queue" if waited is not None else ""
    found = finding(
        "prefill_compute_bound",
        "likely",
        f"{whole(forward)} tokens went through the model where prompts, cache hits and answers needed "
        f"{whole(needed)}: prefill is computed {forward / needed:.1f} times; {percent(prefill)} of all TTFT "
        f"was prefill{queue}.",
        [
            evidence(
                FORWARD,
                f"{whole(excess)} tokens more than needed",
                forward=(forward, "tokens"),
                needed=(needed, "tokens"),
                prompts=(prompts, "tokens"),
                hits=(hits.value if hits else None, "tokens"),
                generated=(generated, "tokens"),
            ),
            evidence(
                "engine.prefill_seconds / engine.ttft_seconds",
                f"{percent(prefill)} of TTFT",
                prefill_share=(prefill, "ratio"),
                queue_share=(waited, "ratio"),
            ),
        ],
        check_first=["prefill speed of one request alone, in tokens a second, against another version"],
        remedy=[
            "upgrade, or go back to the version before",
            "report the two counters to the engine's makers",
        ],
        would_change_my_mind=["speculative or draft passes that the counter includes"],
    )
    return Outcome(candidates=[Candidate(finding=found, timing_free=True)])


def _again(view: View) -> float:
    """Most tokens that preempted and aborted requests may have had computed in vain or twice."""
    preempted = view.increase(PREEMPTIONS)
    sizes = [
        (r.prompt_tokens or r.asked_prompt_tokens or 0)
        + (r.completion_tokens or r.asked_completion_tokens or 0)
        for r in view.run.records
    ]
    unfinished = [
        r for r in view.run.records if r.sent_ns is not None and r.first_token_ns is None and r.failure
    ]
    times = (preempted.value if preempted else 0.0) + len(unfinished) + len(view.run.opened)
    return times * max(sizes, default=0)


def _prefill_share(view: View) -> float | None:
    prefill = view.increase("engine.prefill_seconds_sum")
    ttft = view.increase("engine.ttft_seconds_sum")
    return min(prefill.value / ttft.value, 1.0) if prefill and ttft and ttft.value > 0 else None
