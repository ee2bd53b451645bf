"""Another process takes memory of the device while the load runs."""

from __future__ import annotations

from kvprobe.diagnose.model import Observation, Quantity
from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.view import View
from kvprobe.summary.units import percent, plural, size

TOTAL, FREE, OWN = (f"engine.device_memory_{name}_bytes" for name in ("total", "free", "own"))
WAITING = "engine.requests_waiting"
ROSE = 0.02
"""Of the device's total: less may be the driver's own bookkeeping."""
MIN_READINGS = 3
FAILED = frozenset({"in_band_error", "status", "reset_mid_stream", "truncated", "connect"})


def neighbour(view: View) -> Outcome:
    """Needs: memory that neither is free nor the server's own, and that rose during the load; a finding
    only where requests failed or waited meanwhile, else it is said as an observation."""
    total, own = dict(view.load_series(TOTAL)), dict(view.load_series(OWN))
    points = [(t, total[t] - free - own[t]) for t, free in view.load_series(FREE) if t in total and t in own]
    if len(points) < MIN_READINGS:
        return Outcome()
    device = max(total.values())
    first, most = points[0][1], max(v for _, v in points)
    if device <= 0 or most - first < ROSE * device:
        return Outcome()
    begun = next(t for t, v in points if v - first >= ROSE * device / 2)
    before, failed = _failed(view, begun)
    if not failed or before > failed:
        text = f"Other processes took {size(most - first)} of the device's {size(device)} during the load."
        return Outcome(
            observations=[
                Observation(id="device_shared", text=text, facts={"taken": Quantity(most - first, "B")})
            ]
        )
    found = finding(
        "other_process_on_gpu",
        "likely",
        f"Memory of the device that is not the server's rose from {size(max(first, 0))} to {size(most)} of "
        f"{size(device)} ({percent(most / device)}) during the load, and {plural(failed, 'request')} failed.",
        [
            evidence(
                f"{TOTAL} - {FREE} - {OWN}",
                f"{size(most - first)} taken by somebody else",
                others_at_start=(first, "B"),
                others_max=(most, "B"),
                device_total=(device, "B"),
            )
        ],
        check_first=["who holds the device (`nvidia-smi`), at the time of the first failure"],
        remedy=["keep other processes off the device", "or leave them room: a lower utilisation setting"],
        would_change_my_mind=["failures that began before that memory was taken"],
    )
    return Outcome(candidates=[Candidate(finding=found, timing_free=True, explains=FAILED)])


def _failed(view: View, begun_ns: int) -> tuple[int, int]:
    """(requests that failed before another process took memory, those that failed after)."""
    ends = [r.end_ns or r.intended_ns for r in view.measured if r.failure in FAILED]
    before = sum(1 for t in ends if t < begun_ns)
    return before, len(ends) - before
