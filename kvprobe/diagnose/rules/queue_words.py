"""What the rules about queues share: the engine's stated limit, the share of waiting, an open overload."""

from __future__ import annotations

from kvprobe.diagnose.model import Evidence
from kvprobe.diagnose.rules.base import evidence
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.memory import whole as label_number
from kvprobe.summary.units import figures, whole

WAITING = "engine.requests_waiting"
PINNED = 0.8
"""Share of the readings with a queue in which exactly so many ran, where the limit is known."""
OVERLOAD = 1.1
"""Offered over served, from which on a queue grows whatever the limit."""


def configured(view: View) -> int | None:
    """The limit on sequences that the engine states, on its metrics page or in its log."""
    told = label_number(view.config.get("max_num_seqs"))
    if told is not None or view.log is None:
        return told
    stated = [e.get("max_num_seqs") for e in view.log.all("config")]
    return next((n for n in reversed(stated) if type(n) is int), None)


def overload(view: View) -> tuple[float, float] | None:
    """(offered, served) requests a second of an open loop that asks for more than is done; else null.
    Whether the limit or the computing is what holds them back, one run at one limit cannot tell."""
    if view.summary.arrival.loop != "open":
        return None
    rates = view.summary.metrics.rates
    offered, served = rates.offered_per_s, rates.completed_per_s
    return (offered, served) if offered and served and offered > OVERLOAD * served else None


def over_the_limit(more: tuple[float, float] | None) -> str:
    """The words of an open overload; none without one."""
    if more is None:
        return ""
    return (
        f"; {figures(more[0])}/s were offered and {figures(more[1])}/s served, and a higher limit may not "
        "change that"
    )


def waiting_share(view: View) -> float | None:
    """Share of TTFT spent in the server's queue, by its own histograms; null where it has none."""
    queue, ttft = view.increase("engine.queue_seconds_sum"), view.increase("engine.ttft_seconds_sum")
    return min(queue.value / ttft.value, 1.0) if queue and ttft and ttft.value > 0 else None


def queue_evidence(cap: float, longest: float, readings: int, *, known: bool) -> list[Evidence]:
    """How many ran at most, which is the limit where it is `known`, and how many waited in the readings."""
    return [
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
            readings_with_queue=(readings, "count"),
        ),
    ]
