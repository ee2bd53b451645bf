"""A sweep in sentences: where the limit lies, where the knee is, what an overloaded step is worth."""

from __future__ import annotations

from collections.abc import Sequence

from kvprobe.summary.knee import Knee
from kvprobe.summary.sweep import Axis, Bound, Interval, Step, load_text
from kvprobe.summary.units import seconds

UNCHANGED = 0.15
QUEUEING_SHARE = 0.5
"""Of TTFT: from here on it is called queueing."""


def overload_text(step: Step) -> str:
    """What a rate above the server's means for everything measured at it."""
    told = step.why if step.why.endswith(".") else f"{step.why}."
    queue, of_queue, ttft = _queue(step)
    if queue is not None and ttft and queue >= QUEUEING_SHARE * ttft:
        wait = f"TTFT is queueing ({of_queue}), not prefill."
    elif queue is not None and ttft:
        wait = f"Of a TTFT of {seconds(ttft)}, the server's queue is {seconds(queue)} so far."
    else:
        wait = "TTFT holds the wait in the queue (the server exports no queue time)."
    return f"{told} {wait} Percentiles at this rate depend on run length: do not quote."


def _queue(step: Step) -> tuple[float | None, str, float | None]:
    """(time in the queue, its name, the TTFT of the same kind): medians where the server has buckets,
    else means."""
    middle = step.ttft_s.get("p50", Bound()).value
    mean = step.ttft_s.get("mean", Bound()).value or middle
    if step.queue_p50_s is not None:
        above = "above " if step.queue_p50_at_least else ""
        return step.queue_p50_s, f"server queue p50 {above}{seconds(step.queue_p50_s)}", middle or mean
    if step.queue_s is not None:
        return step.queue_s, f"server queue {seconds(step.queue_s)} on average", mean
    return None, "", mean


def knee_text(knee: Knee | None, steps: Sequence[Step], axis: Axis) -> str:
    unit = "users" if axis == "users" else "req/s"
    if knee is None:
        loads = [s.load for s in steps if s.valid]
        if len(loads) < 2:
            return "No knee can be told: fewer than two valid steps."
        return f"No knee between {load_text(min(loads))} and {load_text(max(loads))} {unit}."
    gain = f"{100 * knee.throughput_gain:+.0f} %"
    return (
        f"Knee between {load_text(knee.below)} and {load_text(knee.above)}: {gain} throughput for "
        f"{knee.ttft_ratio:.1f}x TTFT."
    )


def interval_text(found: Interval, steps: Sequence[Step], axis: Axis) -> str:
    """`Sustainable 1.10 req/s [1.10, 1.15); decode unchanged, queue grows.`"""
    unit = "users" if axis == "users" else "req/s"
    if found.lo is None and found.hi is None:
        return "No step could be decided: nothing is said about the highest sustainable load."
    if found.lo is None:
        assert found.hi is not None
        return f"Nothing tried was sustained: the limit lies below {load_text(found.hi)} {unit}."
    lo = load_text(found.lo)
    if found.hi is None:
        return (
            f"Sustainable at least {lo} {unit} [{lo}, not reached): no step was proved to be too much; "
            "sweep higher."
        )
    head = f"Sustainable {lo} {unit} [{lo}, {load_text(found.hi)})"
    assert found.lo_step is not None
    assert found.hi_step is not None
    return f"{head}; {_what_changes(steps[found.lo_step], steps[found.hi_step])}."


def _what_changes(good: Step, bad: Step) -> str:
    """Decode and queue of the first load that is too much, beside those of the last that is not."""
    said = []
    slow, fast = bad.tpot_s.get("p50", Bound()).value, good.tpot_s.get("p50", Bound()).value
    if slow and fast:
        ratio = slow / fast
        said.append("decode unchanged" if abs(ratio - 1.0) <= UNCHANGED else f"decode {ratio:.1f}x as long")
    said.append("queue grows" if bad.verdict == "overloaded" else bad.why)
    return ", ".join(said)
