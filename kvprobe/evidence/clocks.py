"""Rows of several machines on one axis of time.

Each machine stamps with its own CLOCK_MONOTONIC, and the rows keep those stamps. The only thing that
relates two machines is the start: the master says go, and each worker notes which instant of its own
clock that is (fact `worker_clock`). Here the rows of another machine are moved by one whole number, so
that its start and the master's coincide. Differences within a row, which are all latencies there are,
stay what they were to the nanosecond; only the order of rows of different machines, and rates that are
counted over all of them, rest on the way of the message (`uncertainty_s`, half a round trip).
"""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.evidence.facts import Fact
from kvprobe.evidence.spool import SpoolContent

WORKER_CLOCK = "worker_clock"
_INSTANTS = (
    "sent_ns",
    "first_byte_ns",
    "first_chunk_ns",
    "first_token_ns",
    "first_visible_ns",
    "last_token_ns",
    "end_ns",
)


def shifts_ns(facts: Iterable[Fact]) -> dict[str, int]:
    """By worker name what is to be added to its instants; a worker on the master's clock is not in it."""
    shifts: dict[str, int] = {}
    for fact in facts:
        value = fact.value
        if fact.name != WORKER_CLOCK or not isinstance(value, dict) or value.get("same_clock"):
            continue
        name, here, there = value.get("worker"), value.get("t0_ns"), value.get("worker_t0_ns")
        if isinstance(name, str) and type(here) is int and type(there) is int:
            shifts[name] = here - there
    return shifts


def align(content: SpoolContent) -> None:
    """Put everything on the master's axis, in order of time. Nothing happens to a run of one machine."""
    shifts = shifts_ns(content.facts)
    if not shifts:
        return
    for record in content.records:
        if shift := shifts.get(record.worker):
            record.intended_ns += shift
            for name in _INSTANTS:
                if (instant := getattr(record, name)) is not None:
                    setattr(record, name, instant + shift)
    for opened in content.opened:
        if shift := shifts.get(opened.worker):
            opened.intended_ns += shift
            opened.sent_ns += shift
    for sample in content.samples:
        if sample.metric.startswith("client.") and (shift := shifts.get(sample.labels.get("worker", ""))):
            sample.t_ns += shift
    content.records.sort(key=lambda record: record.intended_ns)
    content.samples.sort(key=lambda sample: sample.t_ns)
