"""Whether a step of a sweep can be used: what makes a run alone invalid may be a sweep's answer."""

from __future__ import annotations

from kvprobe.diagnose.evidence_checks import none_ended_well
from kvprobe.diagnose.model import Validity
from kvprobe.summary.build import Summary

_UNDER_LOAD = frozenset(
    {
        "connect",
        "status",
        "throttled",
        "timeout_first",
        "timeout_gap",
        "timeout_total",
        "in_band_error",
        "reset_before_headers",
        "reset_mid_stream",
        "truncated",
        "empty_stream",
    }
)
"""Failures that a server gives where there is too much to do."""


def invalid_because(summary: Summary, validity: Validity | None, *, others_succeed: bool) -> str | None:
    """Why the step's measurement is invalid; null when it can be used.

    A load at which the server fails every request is too much for it, if at others it answers. Where it
    never does, the load is not what is wrong.
    """
    reasons = validity.reasons if validity is not None else []
    counted = summary.requests
    if others_succeed and counted.by_failure and _UNDER_LOAD.issuperset(counted.by_failure):
        reasons = [reason for reason in reasons if reason != none_ended_well(counted.sent)]
    return reasons[0] if reasons else None
