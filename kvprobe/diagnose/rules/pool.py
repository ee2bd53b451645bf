"""The KV pool: under pressure (a finding), or idle (an observation).

Usage at or above 90 % alone is not pressure: a pool is there to be used. Pressure is high usage
together with preemptions, or with a queue; below that, a queue whose next prompt does not fit beside what
is held. Usage below 30 % says that memory is not the limit only
if nothing waited.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvprobe.diagnose.model import Confidence, Evidence, Observation, Quantity
from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.rules.cancelled import COUNTS_RUNNING_ONLY
from kvprobe.diagnose.rules.held import who_held_it
from kvprobe.diagnose.rules.pool_next import pool_holds_no_more
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.flight import fewest_holding, holders
from kvprobe.summary.units import figures, percent, plural, whole

PREEMPTIONS = "engine.preemptions_total"
WAITING = "engine.requests_waiting"
RED_LINE = 0.90
IDLE = 0.30
MIN_SAMPLES = 5
QUEUED_SAMPLES = 2
MOST_OF_IT = 0.75
FEW = 4
"""So many requests or fewer hold most of what is held: their length is the cause, not their number."""
LONG = 8.0
"""A long request holds at least this part of the pool (1 / 8)."""


def kv_pool(view: View) -> Outcome:
    usage = view.load_series(activity.KV_USAGE)
    waiting = view.load_series(WAITING)
    if len(usage) < MIN_SAMPLES:
        return Outcome()
    pressure = _pressure(view, usage, waiting) or pool_holds_no_more(view)
    if pressure is not None:
        return Outcome(candidates=[pressure])
    idle = _idle(usage, waiting)
    return Outcome(observations=[idle] if idle else [])


def _pressure(view: View, usage: list[activity.Point], waiting: list[activity.Point]) -> Candidate | None:
    """Needs: a pool at the red line together with preemptions or a queue. Refuted by neither of them."""
    high = {t for t, v in usage if v >= RED_LINE}
    queued = sum(1 for t, v in waiting if v > 0 and t in high)
    preempted = view.increase(PREEMPTIONS)
    preemptions = preempted.value if preempted else 0.0
    if not high or (preemptions <= 0 and queued < QUEUED_SAMPLES):
        return None
    few = few_long(view, sorted(t for t, v in waiting if v > 0 and t in high) or sorted(high))
    if few is not None:
        return _too_long(view, few, len(high), preemptions, queued)
    signs = [plural(round(preemptions), "preemption")] if preemptions > 0 else []
    signs += [f"requests waiting in {queued} of these"] if queued else []
    most = max(v for _, v in usage)
    found = finding(
        "kv_pool_pressure",
        _confidence(view, preemptions),
        f"The KV pool was too small for this load: {percent(RED_LINE)} or more of it was in use in "
        f"{len(high)} of {plural(len(usage), 'reading')} (max {percent(most)}), with "
        f"{' and '.join(signs)}{_holds(view)}.",
        [
            evidence(
                activity.KV_USAGE,
                f"up to {percent(most)} of the pool in use",
                kv_usage_max=(most, "ratio"),
                readings_at_red_line=(len(high), "count"),
            ),
            *_signs(preempted.value if preempted else None, queued if waiting else None),
            *who_held_it(view),
        ],
        check_first=["how many requests of this length the pool holds at once, against the users"],
        remedy=["a larger KV pool, or a limit on concurrent sequences that the pool can hold"],
        would_change_my_mind=["the same latencies, and no preemptions, with a pool twice as large"],
    )
    return Candidate(finding=found, timing_free=True)


def _confidence(view: View, preemptions: float) -> Confidence:
    """A gauge that may count blocks that are only cached is always full: a queue beside it proves little."""
    if preemptions > 0:
        return "certain"
    return "likely" if view.summary.engine in COUNTS_RUNNING_ONLY else "suspected"


@dataclass(frozen=True, slots=True)
class FewLong:
    """At pressure: so many requests held most of what was held, each at least so many tokens."""

    requests: int
    tokens_each: int
    share: float
    """Of the pool, that the least of these held (ratio)."""


def few_long(view: View, instants: list[int]) -> FewLong | None:
    """Needs the pool's size. Null where many requests share the pool: then their number is the cause."""
    pool = view.summary.metrics.memory.kv_pool_tokens
    running = dict(view.load_series(activity.RUNNING))
    if not pool:
        return None
    told = [fewest_holding(holders(view.run.records, t, running.get(t)), MOST_OF_IT) for t in instants]
    known = sorted(pair for pair in told if pair[0])
    if not known:
        return None
    requests, least = known[len(known) // 2]
    if requests > FEW or least < pool / LONG:
        return None
    return FewLong(requests, least, least / pool)


def _too_long(view: View, few: FewLong, high: int, preemptions: float, queued: int) -> Candidate:
    pool = view.summary.metrics.memory.kv_pool_tokens
    signs = [plural(round(preemptions), "preemption")] if preemptions > 0 else []
    signs += [f"requests waiting in {queued} of these"] if queued else []
    found = finding(
        "logical_kv_too_large",
        _confidence(view, preemptions),
        f"{plural(few.requests, 'request')} of {whole(few.tokens_each)} tokens or more filled the KV pool of "
        f"{whole(pool or 0)} tokens ({percent(RED_LINE)} or more in {plural(high, 'reading')}), with "
        f"{' and '.join(signs)}{_holds(view)}.",
        [
            evidence(
                "requests x cache_config_info",
                f"each of them holds {percent(few.share)} of the pool or more",
                requests=(few.requests, "count"),
                tokens_each=(few.tokens_each, "tokens"),
                kv_pool=(pool, "tokens"),
            ),
            *_signs(preemptions, queued),
            *who_held_it(view),
        ],
        check_first=["bytes per token, the sum of active tokens, and the context limit"],
        remedy=[
            "a larger KV pool, or fewer bytes a token (KV precision, a model with fewer KV heads)",
            "a context limit at which the pool holds as many conversations as come at once",
        ],
        would_change_my_mind=["the same pressure with short requests"],
    )
    return Candidate(finding=found, timing_free=True)


def _signs(preemptions: float | None, queued: int | None) -> list[Evidence]:
    told = []
    if preemptions is not None:
        text = f"{plural(round(preemptions), 'preemption')} (each computes a request's tokens again)"
        told.append(evidence(PREEMPTIONS, text, preemptions=(preemptions, "count")))
    if queued is not None:
        text = f"requests waited in {plural(queued, 'reading')} at the red line"
        told.append(evidence(WAITING, text, readings_with_queue=(queued, "count")))
    return told


def _holds(view: View) -> str:
    """The pool in typical requests, where both sizes are known."""
    metrics = view.summary.metrics
    prompt, answer = metrics.prompt_tokens.got_median, metrics.completion_tokens.got_median
    pool = metrics.memory.kv_pool_tokens
    if not pool or not prompt or answer is None:
        return ""
    return (
        f"; it holds {whole(pool)} tokens, {figures(pool / (prompt + answer))} typical requests of "
        f"{whole(prompt + answer)} tokens at once"
    )


def _idle(usage: list[activity.Point], waiting: list[activity.Point]) -> Observation | None:
    most = max(v for _, v in usage)
    if most >= IDLE or not waiting or any(v > 0 for _, v in waiting):
        return None
    return Observation(
        id="kv_pool_idle",
        text=f"KV memory was not the limit: at most {percent(most)} of the pool was in use and nothing "
        "waited. This load says nothing about how the server behaves when the pool is full.",
        facts={"kv_usage_max": Quantity(most, "ratio"), "requests_waiting_max": Quantity(0, "count")},
    )
