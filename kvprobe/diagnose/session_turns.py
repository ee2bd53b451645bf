"""Requests that left late because they had to: a turn waits for the answer before it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from kvprobe.diagnose.view import View
from kvprobe.evidence.records import RequestRecord
from kvprobe.summary.latency import NS, dispatch_delay_s


def waiting_turns(view: View, late_s: float) -> int:
    """How many requests left late if all of those waited for the answer before them, else 0."""
    late = [r for r in view.measured if (dispatch_delay_s(r) or 0.0) > late_s]
    own = own_delays_s(view.run.records)
    return len(late) if all(own[r.request_id] <= late_s for r in late) else 0


def own_delays_s(records: Iterable[RequestRecord]) -> dict[str, float]:
    """By request id: from when a request could leave to when it did, seconds.

    A turn can leave when the schedule wants it and the turn before it is over; any other request when
    the schedule wants it. Requests that were never sent have no delay.
    """
    rows = [r for r in records if r.sent_ns is not None]
    sessions: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in rows:
        if record.session is not None:
            sessions[record.session].append(record)
    ready = {r.request_id: r.intended_ns for r in rows}
    for turns in sessions.values():
        turns.sort(key=lambda r: r.sent_ns or 0)
        over_ns = 0
        for turn in turns:
            ready[turn.request_id] = max(turn.intended_ns, over_ns)
            over_ns = max(over_ns, turn.end_ns or turn.last_token_ns or 0)
    return {r.request_id: max((r.sent_ns or 0) - ready[r.request_id], 0) * NS for r in rows}
