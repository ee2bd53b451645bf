"""May the numbers of this run be trusted? Each check is a small function of the evidence.

An `invalid` issue means that the run must not be quoted (exit 4); a `warning` says what a reader has
to know. The thresholds and their reasons stand in docs/measuring.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvprobe.diagnose import client_checks, evidence_checks, machine_checks, steadiness
from kvprobe.diagnose.issues import Issue
from kvprobe.diagnose.model import Validity
from kvprobe.diagnose.view import View

Check = Callable[[View], Iterator[Issue]]

CHECKS: tuple[Check, ...] = (
    client_checks.lost_records,
    evidence_checks.no_success,
    client_checks.late_client,
    client_checks.late_dispatch,
    client_checks.batched_reads,
    client_checks.client_cpu,
    client_checks.client_descriptors,
    client_checks.client_stood_still,
    client_checks.retry_after_obeyed,
    evidence_checks.clocks,
    evidence_checks.cache_contaminated,
    evidence_checks.others_on_server,
    evidence_checks.cut_short,
    evidence_checks.server_restarted,
    steadiness.not_steady,
    evidence_checks.asked_and_got,
    evidence_checks.usage_missing,
    evidence_checks.samples_missing,
    evidence_checks.unverified,
    machine_checks.others_on_machine,
    machine_checks.shared_cores,
)


def check(view: View) -> tuple[Validity, list[Issue]]:
    """Every check, in the order of `CHECKS`."""
    issues = [issue for one in CHECKS for issue in one(view)]
    reasons = [i.text for i in issues if i.level == "invalid"]
    warnings = [i.text for i in issues if i.level == "warning"]
    return Validity(valid=not reasons, reasons=reasons, warnings=warnings), issues
