"""Requests that failed, and nothing that was read says why: `unknown`, with what to collect."""

from __future__ import annotations

from kvprobe.diagnose.causes import UNKNOWN
from kvprobe.diagnose.model import Evidence, Finding
from kvprobe.diagnose.rules.base import evidence, finding
from kvprobe.diagnose.view import View
from kvprobe.summary.rates import FailureGroup
from kvprobe.summary.units import percent, plural

OWN = frozenset({"cancelled_at_end", "client_fd"})
"""Failures that are no failure of the target."""


def of_target(view: View, explained: frozenset[str] = frozenset()) -> list[FailureGroup]:
    """The target's failures that no finding explains."""
    return [g for g in view.summary.failures if g.kind not in OWN and g.kind not in explained]


def unexplained_failures(view: View, explained: frozenset[str] = frozenset()) -> Finding | None:
    """Needs: failures of the target. Says what was seen; the server's log decides."""
    groups = of_target(view, explained)
    if not groups:
        return None
    sent = view.summary.requests.sent
    count = sum(g.count for g in groups)
    kinds = ", ".join(f"{g.count} {_kind(g)}" for g in groups)
    return finding(
        UNKNOWN,
        "suspected",
        f"{count} of {plural(sent, 'request')} ({percent(count / max(sent, count))}) failed ({kinds}), "
        f"and nothing that was read says why{_went_away(view)}.",
        [*(_evidence(g) for g in groups), *_server_exit(view)],
        check_first=["the server's log at the time of the first failure"],
        remedy=[
            "collect the server's log and pass it to `kvprobe diagnose` together with this run directory"
        ],
        would_change_my_mind=["an error in the server's log, or a kernel message that names the process"],
    )


def _went_away(view: View) -> str:
    """A server that had answered and then refused connections: that much is seen, not why."""
    refused = [r.intended_ns for r in view.measured if r.failure == "connect"]
    answered = [r.end_ns for r in view.ok if r.end_ns is not None]
    before = sum(1 for t in answered if refused and t <= min(refused))
    if not refused or not before:
        return ""
    back = any(t > max(refused) for t in answered)
    then = "answered again later" if back else "did not answer again"
    return f": the server had answered {plural(before, 'request')}, then refused connections, and {then}"


def _kind(group: FailureGroup) -> str:
    statuses = "/".join(group.statuses)
    return f"{group.kind} {statuses}" if group.kind in ("status", "throttled") and statuses else group.kind


def _evidence(group: FailureGroup) -> Evidence:
    detail = f": {group.details[0]}" if group.details else ""
    return evidence("requests.failure", f"{_kind(group)}{detail}", count=(group.count, "count"))


def _server_exit(view: View) -> list[Evidence]:
    """A bundled server that ended by itself is worth a line."""
    code = view.fact("server_exit_code")
    if not isinstance(code, int):
        return []
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return [evidence("server process", f"the server {how} during the run", exit_code=(code, None))]
