"""A sweep of load in numbers: which steps are sustained, and between what the limit lies.

Pure functions of `Step`s; a step can come from a run (`sweep_steps`) or from a table that somebody
published. *Sustained* is a rate at which the backlog does not grow: a growth that cannot be told from
0 because the step was short is neither, and widens the interval that is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from kvprobe.summary.backlog import Backlog
from kvprobe.summary.units import figures, percent, seconds

Axis = Literal["rate", "users"]
Verdict = Literal["sustained", "overloaded", "slo_missed", "failed", "undecided", "invalid"]
BAD: frozenset[Verdict] = frozenset({"overloaded", "slo_missed", "failed"})

MATERIAL_RISE = 3.0
"""Requests: a backlog that rose by less over a step may be the last few arrivals."""


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """A percentile and its 95 % interval; seconds."""

    value: float | None = None
    lo: float | None = None
    hi: float | None = None
    reason: str | None = None


class Step(msgspec.Struct, kw_only=True):
    """One load of a sweep and what came of it. What is not known is null."""

    load: float
    """Requests a second, or users."""
    served_per_s: float | None = None
    """Requests done a second while requests were being issued."""
    output_tokens_per_s: float | None = None
    requests: int | None = None
    failed_share: float | None = None
    """Failed or never sent, of those wanted; what the end of the step cut off does not count."""
    ttft_s: dict[str, Bound] = msgspec.field(default_factory=dict)
    """By `mean`, `p50`, `p95`, `p99`."""
    tpot_s: dict[str, Bound] = msgspec.field(default_factory=dict)
    queue_s: float | None = None
    """Mean time in the server's queue, as it says itself."""
    queue_p50_s: float | None = None
    """Median of it, from the growth of the histogram's buckets over the step."""
    queue_p50_at_least: bool = False
    """Whether the median lies above the histogram's last edge: `queue_p50_s` then is that edge."""
    max_active: int | None = None
    backlog: Backlog | None = None
    valid: bool = True
    invalid_because: str | None = None
    run_dir: str | None = None
    verdict: Verdict = "undecided"
    why: str = ""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What *sustained* asks for."""

    growth_share: float = 0.05
    """Growth of the backlog, as a share of the offered rate, that is let pass as none."""
    failed_share: float = 0.01
    ttft_s: float | None = None
    tpot_s: float | None = None
    percentile: Literal["p50", "p95", "p99"] = "p95"


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """The highest sustained load lies in [lo, hi): lo was sustained, hi was not. Null: not reached."""

    lo: float | None
    hi: float | None
    lo_step: int | None = None
    hi_step: int | None = None
    notes: list[str] = msgspec.field(default_factory=list)


def judge(step: Step, axis: Axis, limits: Limits) -> tuple[Verdict, str]:
    """The verdict on one step and the reason, with its numbers."""
    if not step.valid:
        return "invalid", step.invalid_because or "the measurement is invalid"
    if step.failed_share is not None and step.failed_share > limits.failed_share:
        return _judge_failures(step, step.failed_share, limits.failed_share)
    queue: tuple[Verdict, str] = ("sustained", "")
    if axis == "rate":
        queue = judge_backlog(step, limits)
        if queue[0] == "overloaded":
            return queue
    slo = judge_slo(step, limits)
    if slo is not None and slo[0] == "slo_missed":
        return slo
    for found in (queue, slo):
        if found is not None and found[0] == "undecided":
            return found
    said = [why for _, why in (queue, slo or ("sustained", "")) if why]
    return "sustained", "; ".join(said) or "no limit was set"


def _judge_failures(step: Step, share: float, limit: float) -> tuple[Verdict, str]:
    """More than may fail did. One of a few is no rate of failures: its lower bound must lie above, too.

    One-sided 95 % bound of a share by Wilson (1927); of a published share without a count, the share.
    """
    told = f"{percent(share)} of the requests failed or were never sent"
    if step.requests is None or not limit:
        return "failed", told
    n, z = max(step.requests, 1), 1.645
    middle = share + z * z / (2 * n)
    spread = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) if share <= 1 else 0.0
    if (middle - spread) / (1 + z * z / n) > limit:
        return "failed", told
    return "undecided", f"{told}: too few to tell whether more than {percent(limit)} fail"


def judge_backlog(step: Step, limits: Limits) -> tuple[Verdict, str]:
    """Does the backlog grow? From its slope where rows tell it, else from offered against served."""
    allowed = limits.growth_share * step.load
    found = step.backlog
    if found is None:
        # A table that somebody published has no rows; a run has, and these were too few for a line.
        if step.served_per_s is None or step.requests is not None:
            return "undecided", "too few requests to tell whether a backlog grows"
        growth = step.load - step.served_per_s
        if growth > allowed:
            return "overloaded", _grows(step.load, step.served_per_s, growth)
        return "sustained", f"served {figures(step.served_per_s)} of {figures(step.load)} req/s"
    interval = f"[{_signed(found.lo_per_s)}, {_signed(found.hi_per_s)}]"
    if found.lo_per_s > 0 and found.growth_per_s > allowed and found.rise >= MATERIAL_RISE:
        if found.settling:
            why = "so does what is served" if found.done_per_s != 0.0 else "none was done yet"
            return "undecided", (
                f"requests in flight rise by {_two(found.growth_per_s)}/s, but {why}: "
                f"{seconds(found.seconds)} are too short to tell a backlog from a load that settles"
            )
        if found.done_hi_per_s is not None and found.done_hi_per_s >= step.load:
            return "undecided", (
                f"requests in flight rise by {_two(found.growth_per_s)}/s, but up to "
                f"{figures(found.done_hi_per_s)} req/s may be done: {seconds(found.seconds)} are too short "
                "to tell a backlog from a bunch of arrivals"
            )
        served = step.served_per_s if step.served_per_s is not None else step.load - found.growth_per_s
        told = _grows(step.load, served, step.load - served)
        return "overloaded", f"{told} (slope {_signed(found.growth_per_s)} {interval})"
    if found.hi_per_s <= allowed:
        return "sustained", f"backlog {_signed(found.growth_per_s)} req/s {interval}: not growing"
    return "undecided", (
        f"backlog {_signed(found.growth_per_s)} req/s {interval}: a growth up to "
        f"{figures(found.hi_per_s)} req/s is not ruled out in {seconds(found.seconds)}"
    )


def judge_slo(step: Step, limits: Limits) -> tuple[Verdict, str] | None:
    """Against the limits on latency; null where there are none."""
    said: list[str] = []
    undecided: str | None = None
    for name, limit, bounds in (
        ("TTFT", limits.ttft_s, step.ttft_s),
        ("TPOT", limits.tpot_s, step.tpot_s),
    ):
        if limit is None:
            continue
        found = bounds.get(limits.percentile, Bound(reason="not measured"))
        label = f"{name} {limits.percentile}"
        if found.value is None:
            undecided = undecided or f"{label}: {found.reason or 'not known'}"
        elif found.value > limit:
            return "slo_missed", f"{label} {seconds(found.value)} is above {seconds(limit)}"
        elif found.hi is not None and found.hi > limit:
            undecided = undecided or (
                f"{label} {seconds(found.value)} is within {seconds(limit)}, but its upper bound "
                f"{seconds(found.hi)} is not"
            )
        else:
            said.append(f"{label} {seconds(found.value)} <= {seconds(limit)}")
    if undecided is not None:
        return "undecided", undecided
    return ("sustained", "; ".join(said)) if said else None


def arrived_per_s(step: Step) -> float:
    """The load, or what of it arrived where that was less by more than one request; three figures."""
    found = step.backlog
    if found is None or found.offered_per_s is None or found.seconds <= 0:
        return step.load
    came = found.offered_per_s + 1.0 / found.seconds
    return step.load if came >= step.load else float(f"{came:.3g}")


def limit_interval(steps: Sequence[Step]) -> Interval:
    """[highest sustained below the first bad load, lowest bad load), with what does not fit told."""
    bad = [i for i, s in enumerate(steps) if s.verdict in BAD]
    hi_step = min(bad, key=lambda i: steps[i].load, default=None)
    hi = steps[hi_step].load if hi_step is not None else None
    good = [i for i, s in enumerate(steps) if s.verdict == "sustained" and (hi is None or s.load < hi)]
    lo_step = max(good, key=lambda i: steps[i].load, default=None)
    notes = []
    above = sorted({s.load for s in steps if s.verdict == "sustained" and hi is not None and s.load >= hi})
    if hi is not None and above:
        notes.append(
            f"{', '.join(map(figures, above))} was sustained although {figures(hi)} was not: the machine or "
            "the load was not the same all the time; repeat the sweep, or make its steps longer"
        )
    lo = steps[lo_step].load if lo_step is not None else None
    if lo_step is not None and (came := arrived_per_s(steps[lo_step])) < steps[lo_step].load:
        lo = came
        notes.append(
            f"of {figures(steps[lo_step].load)} req/s, {figures(came)} came by chance of the arrivals: no "
            "more than that is called sustained; longer steps, or `process: constant`, come nearer"
        )
    decided = {s.load for s in steps if s.verdict in BAD or s.verdict == "sustained"}
    unsure = sorted({s.load for s in steps} - decided)
    if between := [load for load in unsure if (lo is None or load > lo) and (hi is None or load < hi)]:
        notes.append(f"not decided: {', '.join(map(figures, between))}")
    return Interval(lo=lo, hi=hi, lo_step=lo_step, hi_step=hi_step, notes=notes)


def next_load(steps: Sequence[Step], ladder: Sequence[float], refinements: int) -> float | None:
    """The load to try next: up the ladder until one is bad, then between the best good and that.

    The middle is the geometric one. Null: the search is over. Whole numbers stay whole (users).
    """
    found = limit_interval(steps)
    tried = {s.load for s in steps}
    if found.hi is None:
        return next((load for load in ladder if load not in tried), None)
    lo, hi = found.lo, found.hi
    refined = len({s.load for s in steps if s.load not in ladder})
    if lo is None or refined >= refinements:
        return None
    unsure = [s.load for s in steps if lo < s.load < hi]
    # An undecided step is not tried again: the search goes on below it, where it may find a good one.
    top = min(unsure, default=hi)
    middle = math.sqrt(lo * top)
    whole = all(float(load).is_integer() for load in ladder) and top - lo >= 2 and hi >= 50
    middle = float(round(middle)) if whole else float(f"{middle:.3g}")
    return middle if lo < middle < top and middle not in tried else None


def load_text(load: float) -> str:
    """Three figures, whole numbers as such from 10 on."""
    if float(load).is_integer() and load >= 10:
        return f"{load:,.0f}"
    return figures(load)


def _grows(offered: float, served: float, growth: float) -> str:
    return f"Offered {figures(offered)} > served {figures(served)}: backlog grows {_two(growth)} req/s"


def _two(value: float) -> str:
    """Two figures: a growth is a difference of two measured rates."""
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.1f}" if abs(value) >= 1 else f"{value:.2f}"


def _signed(value: float) -> str:
    return f"{value:+.2f}"
