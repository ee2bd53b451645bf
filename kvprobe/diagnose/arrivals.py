"""Why did requests leave later than the schedule wanted?"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from kvprobe.diagnose.view import View
from kvprobe.summary.latency import dispatch_delay_s

FULL_SHARE = 0.9
"""Share of the late requests that must have found every place taken."""


def late_because_full(view: View, late_s: float) -> bool:
    """True when the late requests waited for a place among the allowed requests in flight.

    A request that found all places taken leaves in the instant that another one ends: just before
    it was sent, as many were in flight as the workload allows.
    """
    cap = view.summary.arrival.max_in_flight
    if cap is None:
        return False
    rows = [r for r in view.run.records if r.sent_ns is not None]
    starts = sorted(r.sent_ns for r in rows if r.sent_ns is not None)
    ends = sorted(e for r in rows if (e := r.end_ns or r.last_token_ns) is not None)
    late = [r for r in view.measured if (d := dispatch_delay_s(r)) is not None and d > late_s]
    full = 0
    for record in late:
        # While it waited: how many were in flight when the schedule wanted it. One place may be
        # between two requests at that very instant.
        in_flight = bisect_left(starts, record.intended_ns) - bisect_right(ends, record.intended_ns)
        full += in_flight >= cap - 1
    return bool(late) and full >= FULL_SHARE * len(late)
