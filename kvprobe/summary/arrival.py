"""How the load was asked to arrive, as the workload file says; null where it does not say."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvprobe.evidence.rundata import RunData


class Arrival(msgspec.Struct, kw_only=True):
    """A closed loop (users that wait for their answer) or an open one (a schedule that does not)."""

    loop: Literal["closed", "open"] | None = None
    users: int | None = None
    process: str | None = None
    rate_per_s: float | None = None
    max_in_flight: int | None = None
    """The most requests in flight that an open loop allows."""


def read_arrival(run: RunData) -> Arrival:
    """Tolerant of a run directory that something else wrote: what is not as expected is null."""
    stated = run.workload.get("arrival")
    if not isinstance(stated, dict):
        return Arrival()
    if isinstance(closed := stated.get("closed"), dict):
        return Arrival(loop="closed", users=_count(closed.get("users")))
    if not isinstance(opened := stated.get("open"), dict):
        return Arrival()
    process = opened.get("process")
    return Arrival(
        loop="open",
        process=process if isinstance(process, str) else None,
        rate_per_s=_rate(opened.get("rate")),
        max_in_flight=_count(opened.get("max_in_flight")),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _rate(value: Any) -> float | None:
    return (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None
    )
