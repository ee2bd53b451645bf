"""A whole sweep as a document: its steps, the interval, the knee, and what they mean in sentences."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvprobe.summary.knee import Knee, find_knee
from kvprobe.summary.sweep import Axis, Interval, Limits, Step, judge, limit_interval
from kvprobe.summary.sweep_text import interval_text, knee_text, overload_text

_CONSTANT = (
    "Requests came at equal distances. Independent users come in bunches: the rate that a server sustains "
    "for them is at most this one; a sweep with `process: poisson` needs steps several times as long."
)


class SweepResult(msgspec.Struct, kw_only=True):
    """`sweep` of a run document."""

    axis: Axis
    unit: str
    limits: Limits
    steps: list[Step]
    """By load; the runs of one load in the order in which they were made."""
    interval: Interval | None
    """Null for a sweep of users without a limit on latency: nothing can be too much for a closed loop."""
    knee: Knee | None
    sentences: list[str]
    notes: list[str]


def sweep_result(axis: Axis, limits: Limits, steps: Sequence[Step], *, constant: bool) -> SweepResult:
    """Judges every step and draws the conclusions."""
    for step in steps:
        step.verdict, step.why = judge(step, axis, limits)
    ordered = sorted(steps, key=lambda s: s.load)
    limited = axis == "rate" or limits.ttft_s is not None or limits.tpot_s is not None
    interval = limit_interval(ordered) if limited else None
    knee = find_knee(ordered, axis)
    sentences = []
    if interval is not None:
        sentences.append(interval_text(interval, ordered, axis))
    sentences.append(knee_text(knee, ordered, axis))
    first_over = next((s for s in ordered if s.verdict == "overloaded"), None)
    if first_over is not None:
        sentences.append(overload_text(first_over))
    notes = list(interval.notes) if interval is not None else []
    if constant and axis == "rate":
        notes.append(_CONSTANT)
    return SweepResult(
        axis=axis,
        unit="req/s" if axis == "rate" else "users",
        limits=limits,
        steps=ordered,
        interval=interval,
        knee=knee,
        sentences=sentences,
        notes=notes,
    )


def undecided_because_invalid(result: SweepResult) -> bool:
    """Whether invalid measurements keep the sweep from its answer: then it is INVALID itself.

    An invalid step beyond the interval or below it costs nothing, one within only widens it.
    """
    valid = {step.load for step in result.steps if step.valid}
    if not valid:
        return bool(result.steps)
    lost = {step.load for step in result.steps if not step.valid} - valid
    if not lost:
        return False
    if result.interval is None:
        return result.knee is None
    at, hi = result.interval.lo_step, result.interval.hi
    lo = result.steps[at].load if at is not None else None
    return lo is None or (hi is None and max(lost) > lo)
