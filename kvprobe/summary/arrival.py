"""How the load was asked to arrive, as the workload file says; null where it does not say."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvprobe.evidence.rundata import RunData

_SHOWN_STAGES = 4


class Arrival(msgspec.Struct, kw_only=True):
    """A closed loop (users that wait for their answer) or an open one (a schedule that does not)."""

    loop: Literal["closed", "open"] | None = None
    users: int | None = None
    process: str | None = None
    rate_per_s: float | None = None
    max_in_flight: int | None = None
    """The most requests in flight that an open loop allows."""
    burstiness: float | None = None
    """Coefficient of variation of the gaps, where it was given."""
    course: str | None = None
    """How the load changes over time, in words: a ramp, stages, a trace; null when it does not."""


def read_arrival(run: RunData) -> Arrival:
    """Tolerant of a run directory that something else wrote: what is not as expected is null."""
    stated = run.workload.get("arrival")
    if not isinstance(stated, dict):
        return Arrival()
    if isinstance(closed := stated.get("closed"), dict):
        ramp = closed.get("ramp")
        course = f"users begin one by one over {ramp}" if isinstance(ramp, str) and ramp != "0s" else None
        return Arrival(loop="closed", users=_count(closed.get("users")), course=course)
    if not isinstance(opened := stated.get("open"), dict):
        return Arrival()
    process = "trace" if isinstance(opened.get("trace"), dict) else opened.get("process")
    return Arrival(
        loop="open",
        process=process if isinstance(process, str) else None,
        rate_per_s=_rate(opened.get("rate")),
        max_in_flight=_count(opened.get("max_in_flight")),
        burstiness=_rate(opened.get("burstiness")),
        course=_course(opened),
    )


def _course(opened: dict[str, Any]) -> str | None:
    """What stands in the place of one rate."""
    if isinstance(ramp := opened.get("ramp"), dict):
        return f"from {ramp.get('from')} to {ramp.get('to')}/s over {ramp.get('over')}"
    if isinstance(stages := opened.get("stages"), list):
        shown = [
            f"{s.get('rate')}/s for {s.get('for')}" for s in stages[:_SHOWN_STAGES] if isinstance(s, dict)
        ]
        return ", ".join(shown) + (
            f", and {len(stages) - len(shown)} more" if len(stages) > len(shown) else ""
        )
    if isinstance(trace := opened.get("trace"), dict):
        return f"the instants of a trace, times {trace.get('scale_time', 1.0)}"
    return None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _rate(value: Any) -> float | None:
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None
    )
