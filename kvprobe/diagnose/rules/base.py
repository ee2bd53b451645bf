"""What a rule gives back, and the helpers with which it says it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvprobe.diagnose.causes import SYMPTOM_OF
from kvprobe.diagnose.model import Confidence, Evidence, Finding, Observation, Quantity

if TYPE_CHECKING:  # rules over logs use this module too, and need neither runs nor numpy
    from kvprobe.diagnose.view import View


@dataclass(slots=True, kw_only=True)
class Candidate:
    """A finding that has not been ranked yet, with what the judge ranks it by."""

    finding: Finding
    timing_free: bool
    """Rests on counters, configuration and prompts alone: holds even if the client's clock was late."""
    fatal: bool = False
    """It explains why the server died, not only why it was slow or wasteful."""
    root: bool = True
    """The cause of what happened, not the event itself."""
    excludes: dict[str, str] = field(default_factory=dict)
    """Causes that this evidence rules out, each with the number that does so."""
    explains: frozenset[str] = frozenset()
    """Kinds of failed requests that follow from this cause."""


@dataclass(slots=True)
class Outcome:
    """Of one rule: causes that its evidence supports, and effects that are no fault."""

    candidates: list[Candidate] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)


Rule = Callable[["View"], Outcome]


def finding(
    cause: str,
    confidence: Confidence,
    why: str,
    evidence: list[Evidence],
    *,
    check_first: list[str],
    remedy: list[str],
    would_change_my_mind: list[str],
) -> Finding:
    """A finding of a known cause (an unknown id is a defect of the rule); the judge sets the role."""
    return Finding(
        cause=cause,
        role="secondary",
        confidence=confidence,
        symptom=SYMPTOM_OF[cause],
        why=why,
        evidence=evidence,
        check_first=check_first,
        remedy=remedy,
        would_change_my_mind=would_change_my_mind,
    )


def evidence(source: str, text: str, **facts: tuple[object, str | None]) -> Evidence:
    """One piece of evidence; `facts` are name=(value, unit)."""
    return Evidence(source=source, text=text, facts={k: Quantity(v, u) for k, (v, u) in facts.items()})
