"""One ranking of what the run shows and what the server's log proves.

The order: what killed the server before what slows it; the root before what it led to (the table below);
the surer first, where a general id must be a step surer than a specific one; then the order of the rules.
Two sources that name one cause give one finding with the evidence of both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from kvprobe.diagnose.causes import UNKNOWN
from kvprobe.diagnose.log_doubt import doubted
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Finding
from kvprobe.diagnose.rules.base import Candidate, finding
from kvprobe.diagnose.rules.logs import all_rules
from kvprobe.diagnose.rules.logs.base import LogCandidate

SURE: Final = {"certain": 0, "likely": 1, "suspected": 2}
GENERAL: Final = frozenset(
    {"capacity_exhausted", "not_memory", "kv_pool_pressure", "driver_limit_not_capacity"}
)
_FULL_POOL: Final = frozenset({"kv_pool_pressure", "logical_kv_too_large", "prefix_evicted", "queue_limit"})
_BROKEN: Final = frozenset({"stream_protocol_defect", "host_cpu_bound"})
_WHY_FULL: Final = (
    "fixed_workspace_missized",
    "other_process_on_gpu",
    "gpu_memory_utilization_too_low",
    "reservation_policy_waste",
    "allocator_fragmentation",
    "kv_pool_leak",
    "cancellation_ignored",
)
LEADS_TO: Final[dict[str, frozenset[str]]] = {
    **dict.fromkeys(_WHY_FULL, _FULL_POOL | _BROKEN),
    "logical_kv_too_large": frozenset({"kv_pool_pressure"}),
    "kv_pool_pressure": frozenset({"prefix_evicted"}) | _BROKEN,
    "cancellation_ignored": _FULL_POOL | _BROKEN | {"kv_pool_leak"},
    "prefill_compute_bound": frozenset({"queue_limit"}),
    "host_memory_leak": frozenset({"host_oom_kill"}),
}
"""Root -> what it leads to, and what therefore stands behind it where both are found."""
_NO_FINDING: Final = frozenset({"kv_pool_idle", "reservation_by_design", "kv_quant_warning_harmless"})
"""Of a log these are answers; beside a run they are no fault, and the run has observations for them."""
_CUT_SHORT: Final = frozenset(
    {
        *("in_band_error", "status", "throttled", "connect", "truncated", "empty_stream"),
        *("reset_mid_stream", "reset_before_headers", "timeout_first", "timeout_gap", "timeout_total"),
    }
)
"""How requests fail when their server dies."""
_MAX_EVIDENCE = 8


def of_log(view: LogView | None) -> list[Candidate]:
    """What the log's rules say, in the form of the run's rules."""
    if view is None:
        return []
    gathered = [doubted(view, c) for rule in all_rules() for c in rule(view)]
    return [_as_run(c) for c in gathered if c.finding.cause not in _NO_FINDING]


def _as_run(c: LogCandidate) -> Candidate:
    return Candidate(
        finding=c.finding,
        timing_free=True,
        fatal=c.fatal,
        root=c.root,
        excludes=c.excludes,
        explains=_CUT_SHORT if c.fatal else frozenset(),
    )


def ordered(candidates: Sequence[Candidate]) -> list[Candidate]:
    """One candidate a cause, the root of all first."""
    merged = _merged(sorted(candidates, key=_rank))
    present = {c.finding.cause for c in merged if c.finding.confidence != "suspected" or c.fatal}
    behind = {cause for root in present for cause in LEADS_TO.get(root, frozenset())}
    if any(c.fatal for c in merged):
        behind |= _BROKEN
    return sorted(merged, key=lambda c: (_place(c, behind), *_rank(c)))


def _place(c: Candidate, behind: set[str]) -> int:
    if c.finding.cause == UNKNOWN:
        return 3
    return 0 if c.fatal else 2 if c.finding.cause in behind else 1


def _rank(c: Candidate) -> tuple[int, bool]:
    general = c.finding.cause in GENERAL
    return SURE[c.finding.confidence] + general + (not c.root), general


def _merged(candidates: Iterable[Candidate]) -> list[Candidate]:
    best: dict[str, Candidate] = {}
    for c in candidates:
        first = best.setdefault(c.finding.cause, c)
        if first is c:
            continue
        told = [*first.finding.evidence, *(e for e in c.finding.evidence if e not in first.finding.evidence)]
        first.finding = msgspec.structs.replace(first.finding, evidence=told[:_MAX_EVIDENCE])
        first.fatal, first.explains = first.fatal or c.fatal, first.explains | c.explains
        first.timing_free = first.timing_free or c.timing_free
    return list(best.values())


def without_excluded(candidates: list[Candidate]) -> tuple[list[Candidate], list[Finding]]:
    """Candidates that no surer one excludes, and a `ruled_out` finding for each cause that is excluded."""
    reasons: dict[str, tuple[str, Candidate]] = {}
    for c in candidates:
        for cause, reason in c.excludes.items():
            reasons.setdefault(cause, (reason, c))
    kept = [c for c in candidates if not _excluded(c, reasons)]
    alive = {c.finding.cause for c in kept}
    return kept, [_ruled_out(cause, *told) for cause, told in reasons.items() if cause not in alive]


def _excluded(c: Candidate, reasons: dict[str, tuple[str, Candidate]]) -> bool:
    told = reasons.get(c.finding.cause)
    return told is not None and SURE[c.finding.confidence] >= SURE[told[1].finding.confidence]


def _ruled_out(cause: str, reason: str, by: Candidate) -> Finding:
    text = reason[:1].upper() + reason[1:] + ("" if reason.endswith(".") else ".")
    told = finding(
        cause,
        by.finding.confidence,
        text,
        by.finding.evidence[:1],
        check_first=["the evidence that rules it out"],
        remedy=["none: it is ruled out"],
        would_change_my_mind=["other numbers in that evidence"],
    )
    return msgspec.structs.replace(told, role="ruled_out")
