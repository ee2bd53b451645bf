"""Requests wait for a configured limit while blocks are free."""

from __future__ import annotations

from collections import Counter

from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.memory import whole as label_number
from kvprobe.summary.units import figures, percent, plural, whole

WAITING = "engine.requests_waiting"
ROOMY = 0.7
"""Above this use of the pool the next prompt may not fit, and memory may be what they wait for."""
MIN_READINGS = 4
PINNED, PINNED_UNTOLD = 0.8, 0.95
"""Share of the readings with a queue in which exactly so many ran: where the limit is known, and where
it has to be guessed."""
MIN_UNTOLD = 8
WAIT_SHARE = 0.25
OVERLOAD = 1.1
"""Offered over served, from which on a queue grows whatever the limit."""


def queue_limit(view: View) -> Outcome:
    """Needs: a queue, a pool with room, and the number that runs pinned to one value, the configured one
    where it is known. Refuted by a number that varies: then the queue is for compute, not for a limit."""
    usage = dict(view.load_series(activity.KV_USAGE))
    running = dict(view.load_series(activity.RUNNING))
    queued = [t for t, v in view.load_series(WAITING) if v > 0 and t in running and t in usage]
    if len(queued) < MIN_READINGS or max(usage[t] for t in queued) > ROOMY:
        return Outcome()
    cap, times = Counter(running[t] for t in queued).most_common(1)[0]
    share, limit = times / len(queued), configured(view)
    if cap < 1 or cap < max(running.values()) or (limit is not None and limit != cap):
        return Outcome()
    known = limit is not None
    if share < (PINNED if known else PINNED_UNTOLD) or (not known and len(queued) < MIN_UNTOLD):
        return Outcome()
    waited = waiting_share(view)
    if waited is not None and waited < WAIT_SHARE:
        return Outcome()
    return Outcome(candidates=[_said(view, cap, queued, usage, known=known, waited=waited)])


def configured(view: View) -> int | None:
    """The limit on sequences that the engine states, on its metrics page or in its log."""
    told = label_number(view.config.get("max_num_seqs"))
    if told is not None or view.log is None:
        return told
    event = view.log.last("config")
    value = event.get("max_num_seqs") if event is not None else None
    return value if type(value) is int else None


def overload(view: View) -> tuple[float, float] | None:
    """(offered, served) requests a second of an open loop that asks for more than is done; else null.
    Whether the limit or the computing is what holds them back, one run at one limit cannot tell."""
    if view.summary.arrival.loop != "open":
        return None
    rates = view.summary.metrics.rates
    offered, served = rates.offered_per_s, rates.completed_per_s
    return (offered, served) if offered and served and offered > OVERLOAD * served else None


def waiting_share(view: View) -> float | None:
    """Share of TTFT spent in the server's queue, by its own histograms; null where it has none."""
    queue, ttft = view.increase("engine.queue_seconds_sum"), view.increase("engine.ttft_seconds_sum")
    return min(queue.value / ttft.value, 1.0) if queue and ttft and ttft.value > 0 else None


def _said(
    view: View, cap: float, queued: list[int], usage: dict[int, float], *, known: bool, waited: float | None
) -> Candidate:
    most = max(usage[t] for t in queued)
    longest = max(v for _, v in view.load_series(WAITING))
    stated = "the configured limit" if known else "as if by a limit"
    took = f"; {percent(waited)} of all TTFT was that wait" if waited is not None else ""
    more = overload(view)
    if more is not None:
        took += (
            f"; {figures(more[0])}/s were offered and {figures(more[1])}/s served, and a higher limit may not"
        )
        took += " change that"
    found = finding(
        "queue_limit",
        "suspected" if more is not None else "certain" if known else "likely",
        f"{plural(round(cap), 'request')} ran at a time, {stated}, and up to {whole(longest)} waited in "
        f"{plural(len(queued), 'reading')}, with at most {percent(most)} of the KV pool in use{took}.",
        [
            evidence(
                activity.RUNNING,
                f"never more than {whole(cap)} running",
                running_max=(cap, "count"),
                limit=(cap if known else None, "count"),
            ),
            evidence(
                WAITING,
                f"up to {whole(longest)} waiting",
                waiting_max=(longest, "count"),
                readings_with_queue=(len(queued), "count"),
            ),
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
