"""From all families' candidates to one answer.

The order: what killed the process before what slows it; the root before the event that it led to; the
surer first, where a general id (`capacity_exhausted`, `not_memory`) must be a step surer than a specific
one to stand before it; then what the log told first. A cause that other evidence excludes is listed as
ruled out, with the number that does so. Lines that foreign text forged never reach a rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvprobe.diagnose.causes import HEALTHY, UNKNOWN
from kvprobe.diagnose.log_answer import facts_of, nothing_known, unexplained
from kvprobe.diagnose.log_doubt import doubted
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Diagnosis, Evidence, Finding, Role
from kvprobe.diagnose.rules.base import finding
from kvprobe.diagnose.rules.logs import all_rules
from kvprobe.diagnose.rules.logs.base import LogCandidate
from kvprobe.diagnose.rules.logs.words import FATAL_EVENTS, lived_on, pool_in_place
from kvprobe.evidence.events import Event

_SURE = {"certain": 0, "likely": 1, "suspected": 2}
_GENERAL = {
    "capacity_exhausted": 2,
    "not_memory": 2,
    "gpu_software_fault": 1,
    "driver_limit_not_capacity": 1,
    "host_oom_kill": 1,
    "kv_pool_pressure": 1,
    "kv_pool_idle": 1,
}
"""By how much an id is less specific than the others: a tie-breaker, and a step at equal confidence."""
_FULL_POOL = 0.9
_ADVERSE = (
    *(name for name in FATAL_EVENTS if name not in ("alloc_failed", "buffer_failed")),
    "child_died",
    "crashed",
    "worker_died",
    "runner_died",
    "start_failed",
    "signal",
    "swap_exhausted",
    "amd_fault",
    "device_lost",
)
"""What no healthy log holds, though no rule may name its cause. A refused buffer that was asked for again
in a smaller size is none."""
_MAX_EVIDENCE = 6
_MAX_FINDINGS = 8
_MAX_REMEDIES = 5


def diagnose_log(view: LogView, beside: Sequence[LogCandidate] = ()) -> Diagnosis:
    """What the logs mean: exactly one primary finding, or `healthy_baseline` with none. `beside` is what
    a live server showed meanwhile."""
    gathered = [doubted(view, c) for rule in all_rules() for c in rule(view)] + list(beside)
    kept, ruled_out = _excluded(gathered)
    ordered = _merged(sorted(kept, key=lambda c: _order(c, kept)))
    named = [c.finding for c in ordered]
    open_end = unexplained(view)
    if not named or (open_end is not None and not any(c.fatal for c in ordered)):
        named = [*([open_end or nothing_known(view)] if not _healthy(view, named, open_end) else []), *named]
    findings = [_with_role(f, "secondary" if i else "primary") for i, f in enumerate(named[:_MAX_FINDINGS])]
    names = {f.cause for f in findings}
    findings += [_with_role(f, "ruled_out") for f in ruled_out if f.cause not in names]
    primary = named[0].cause if named else HEALTHY
    return Diagnosis(
        primary=primary,
        findings=findings if named else [],
        facts=facts_of(view),
        read={"engine": view.engine, "engine_version": view.engine_version, **view.read},
    )


def _healthy(view: LogView, named: list[Finding], open_end: Finding | None) -> bool:
    """An engine that says it serves or has its pool, and nothing that speaks against it."""
    if named or open_end is not None or any(not lived_on(view, e) for e in view.all(*_ADVERSE)):
        return False
    stats = view.all("engine_stats")
    if 2 * sum(bool(e.get("waiting")) for e in stats) > len(stats):
        return False  # a queue in most readings is a complaint, though no rule may name its cause
    if view.all("serving") or len(stats) > 1 or any(not _strained(e) for e in stats):
        return True
    cut_off = "traceback" in view.ended.values()  # whose error is not in the excerpt
    return not stats and not cut_off and pool_in_place(view)


def _strained(stats: Event) -> bool:
    """A full pool or a queue in a single line: no proof of trouble, and none of health."""
    return (stats.get("kv_usage") or 0.0) >= _FULL_POOL or bool(stats.get("waiting"))


def _order(c: LogCandidate, kept: list[LogCandidate]) -> tuple[int, int, int, bool, int, int]:
    """What is only the event stands behind its root, however general the root's id is."""
    rank = _rank(c)
    if not c.root:
        rank = max([rank, *(_rank(r) for r in kept if r.root and r.at is c.at and r.at is not None)])
    unknown = c.finding.cause == UNKNOWN
    line = c.at.line if c.at is not None else 1 << 30
    return (not c.fatal, unknown, rank, not c.root, _GENERAL.get(c.finding.cause, 0), line)


def _rank(c: LogCandidate) -> int:
    general = _GENERAL.get(c.finding.cause, 0)
    return _SURE[c.finding.confidence] + (general > 0) + (0 if c.root else 1)


def _excluded(candidates: list[LogCandidate]) -> tuple[list[LogCandidate], list[Finding]]:
    """Candidates that no other one excludes, and a `ruled_out` finding for each excluded cause."""
    reasons: dict[str, tuple[str, LogCandidate]] = {}
    for c in candidates:
        for cause, reason in c.excludes.items():
            reasons.setdefault(cause, (reason, c))
    kept = [c for c in candidates if c.finding.cause not in reasons or _surer(c, reasons[c.finding.cause][1])]
    alive = {c.finding.cause for c in kept}
    return kept, [_ruled_out(cause, *told) for cause, told in reasons.items() if cause not in alive]


def _surer(c: LogCandidate, by: LogCandidate) -> bool:
    """What a less sure finding excludes stays: its reason may be the wrong one."""
    return _SURE[c.finding.confidence] < _SURE[by.finding.confidence]


def _ruled_out(cause: str, reason: str, by: LogCandidate) -> Finding:
    evidence: list[Evidence] = by.finding.evidence[:1]
    return finding(
        cause,
        by.finding.confidence,
        reason,
        evidence,
        check_first=[],
        remedy=[],
        would_change_my_mind=[],
    )


def _merged(ordered: list[LogCandidate]) -> list[LogCandidate]:
    """One candidate a cause: the best one, with the others' evidence behind its own."""
    best: dict[str, LogCandidate] = {}
    for c in ordered:
        first = best.setdefault(c.finding.cause, c)
        if first is c:
            continue
        seen = {(e.source, e.line) for e in first.finding.evidence}
        more = [e for e in c.finding.evidence if (e.source, e.line) not in seen]
        first.finding.evidence = [*first.finding.evidence, *more][:_MAX_EVIDENCE]
        first.finding.remedy = _with_more(first.finding.remedy, c.finding.remedy)
    return list(best.values())


def _with_more(first: list[str], more: list[str]) -> list[str]:
    """What another family would do as well, behind the first one's own remedies."""
    return [*first, *[text for text in more if text not in first]][: max(_MAX_REMEDIES, len(first))]


def _with_role(found: Finding, role: Role) -> Finding:
    return msgspec.structs.replace(found, role=role)
