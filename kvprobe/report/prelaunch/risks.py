"""The gravest risks of a launch, each with who can do something about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvprobe.report.prelaunch.view import Prelaunch, capacity, demand, headroom
from kvprobe.summary.units import percent, whole

NARROW_ROOM = 0.2
POOR_HITS = 0.8
"""Of what the prompts allow."""
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Risk:
    text: str
    owner: str
    rank: int
    """0 is the gravest."""


def risks(view: Prelaunch, targets: bool) -> list[Risk]:
    """The three gravest. `targets`: whether a latency target was stated."""
    found = [*_of_measurement(view), *_of_load(view), *_of_room(view), *_of_plan(view)]
    if not targets:
        w = view.w
        text = w("No latency target is agreed: nothing tells when the service is too slow.")
        found.append(Risk(text, w("product"), 5))
    return sorted(found, key=lambda r: r.rank)[:SHOWN]


def _of_measurement(view: Prelaunch) -> Iterator[Risk]:
    w = view.w
    tests = w("load testing")
    if view.run is None:
        text = w("Speed and queues were not measured: capacity in memory is not capacity in time.")
        yield Risk(text, tests, 1)
    elif view.unlike:
        yield Risk(w("The run does not fit the plan: {why}.", why=w("; ").join(view.unlike)), tests, 0)
    elif not view.run.valid:
        yield Risk(w("The measurement is invalid; its numbers must not be used."), tests, 0)


def _of_load(view: Prelaunch) -> Iterator[Risk]:
    """What the run showed of the cache and of failures."""
    if view.run is None or view.unlike:
        return
    w, m, counted = view.w, view.run.summary.metrics, view.run.summary.requests
    platform, rate = w("platform"), m.prefix_hit_rate
    if m.preemptions:
        text = w(
            "The cache ran out under this load: {n} preemptions, each computes its tokens again.",
            n=whole(m.preemptions),
        )
        yield Risk(text, platform, 1)
    elif m.kv_usage_max is not None and m.kv_usage_max >= 0.9:
        text = w("The cache was {n} full: a burst will queue or preempt.", n=percent(m.kv_usage_max))
        yield Risk(text, platform, 2)
    if counted.failed_before_end:
        share = counted.failed_before_end / max(1, counted.sent)
        yield Risk(w("{n} of the requests failed in the test.", n=percent(share)), platform, 1)
    if rate.got is not None and rate.ceiling and rate.got < POOR_HITS * rate.ceiling:
        a, b = percent(rate.got), percent(rate.ceiling)
        yield Risk(w("The prefix cache served {a}, these prompts allow {b}.", a=a, b=b), platform, 3)


def _of_room(view: Prelaunch) -> Iterator[Risk]:
    have = capacity(view)
    need = demand(view, have.unit) if have is not None else None
    if have is not None and need is not None and 0 <= headroom(have, need) < NARROW_ROOM:
        n = percent(headroom(have, need))
        text = view.w("Only {n} of room: less than a usual daily peak.", n=n)
        yield Risk(text, view.w("product"), 2)


def _of_plan(view: Prelaunch) -> Iterator[Risk]:
    w = view.w
    for warning in view.items("warnings"):
        if isinstance(text := warning.get("text"), str):
            yield Risk(w.known(text) or text, w("platform"), 4)
    if any(isinstance(t, dict) and t.get("range") and t.get("bytes") is None for t in _terms(view)):
        text = w("Parts of the memory budget are known only as ranges: read them from a start's log.")
        yield Risk(text, w("platform"), 3)
    if view.number("lengths.p95_tokens") is None and view.plan is not None:
        text = w("No length distribution was given: the plan counts with the longest request.")
        yield Risk(text, w("product"), 3)


def _terms(view: Prelaunch) -> list[Any]:
    budget = view.get("budget")
    return [v for k, v in budget.items() if k != "kv"] if isinstance(budget, dict) else []
