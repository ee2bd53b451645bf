"""What a log rule gives back. Ranking across rules is the log judge's, not the rules'."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.model import Confidence, Evidence, Finding, Quantity
from kvprobe.diagnose.rules.base import finding
from kvprobe.evidence.events import Event, Phase


@dataclass(slots=True, kw_only=True)
class LogCandidate:
    """A finding with what the judge ranks it by.

    `fatal`: it explains why the process died or did not start (against: slow, wasteful). `root`:
    the cause of the event, not the event itself (the budget, not the fragmentation that the budget
    led to). `at` is the event it explains, for order and phase. `excludes` are cause ids that this
    evidence rules out, each with the number that does so.
    """

    finding: Finding
    fatal: bool
    root: bool = True
    at: Event | None = None
    phase: Phase | None = None
    excludes: dict[str, str]


LogRule = Callable[[LogView], list[LogCandidate]]


def candidate(
    cause: str,
    confidence: Confidence,
    why: str,
    evidence: list[Evidence],
    *,
    fatal: bool,
    check_first: list[str],
    remedy: list[str],
    would_change_my_mind: list[str],
    root: bool = True,
    at: Event | None = None,
    phase: Phase | None = None,
    excludes: dict[str, str] | None = None,
) -> LogCandidate:
    """A candidate of a known cause id (an unknown id is a defect of the rule)."""
    return LogCandidate(
        finding=finding(
            cause,
            confidence,
            why,
            evidence,
            check_first=check_first,
            remedy=remedy,
            would_change_my_mind=would_change_my_mind,
        ),
        fatal=fatal,
        root=root,
        at=at,
        phase=phase,
        excludes=excludes or {},
    )


def cite(event: Event, *names: str) -> Evidence:
    """The line itself as evidence, with the named values (all of them when none is named)."""
    chosen = names or tuple(event.values)
    return Evidence(
        source=event.source,
        line=event.line,
        text=event.text,
        facts={n: Quantity(event.values[n].value, event.values[n].unit) for n in chosen if n in event.values},
    )
