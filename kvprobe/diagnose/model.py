"""What a diagnosis is: the structs behind `kvprobe.diagnosis/1` (the contract is docs, CLI).

Texts here may quote foreign words (a prompt, an error body). They are plain strings and are cleaned
where they are shown (`kvprobe.report.sanitize`), never here, so that JSON keeps what was read.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvprobe.summary.jsonable import jsonable

Role = Literal["primary", "secondary", "ruled_out"]
Confidence = Literal["certain", "likely", "suspected"]
Symptom = Literal[
    "startup_full", "long_conversation_oom", "reserved_unused", "prefix_not_reused", "quality_drop"
]

SCHEMA = "kvprobe.diagnosis/1"


class Quantity(msgspec.Struct, frozen=True):
    """A number (or text) with its unit: `B`, `tokens`, `blocks`, `s`, `ratio`, `count`, or null."""

    value: Any
    unit: str | None = None


class Evidence(msgspec.Struct, kw_only=True):
    """One thing that was read or measured. `source` is a path, a metric name or a column."""

    source: str
    line: int | None = None
    text: str
    facts: dict[str, Quantity] = msgspec.field(default_factory=dict)


class Finding(msgspec.Struct, kw_only=True):
    """One cause, with what speaks for it and what would speak against it."""

    cause: str
    role: Role
    confidence: Confidence
    symptom: Symptom | None
    why: str
    evidence: list[Evidence]
    check_first: list[str]
    remedy: list[str]
    would_change_my_mind: list[str]


class Observation(msgspec.Struct, kw_only=True):
    """An expected effect that is no fault."""

    id: str
    text: str
    facts: dict[str, Quantity] = msgspec.field(default_factory=dict)


class Validity(msgspec.Struct, kw_only=True):
    """May the numbers be trusted? `reasons` make the run INVALID, `warnings` do not."""

    valid: bool
    reasons: list[str] = msgspec.field(default_factory=list)
    warnings: list[str] = msgspec.field(default_factory=list)


class Diagnosis(msgspec.Struct, kw_only=True):
    """The whole answer: `primary` is a cause id, `unknown` or `healthy_baseline`."""

    schema: str = SCHEMA
    primary: str
    findings: list[Finding] = msgspec.field(default_factory=list)
    observations: list[Observation] = msgspec.field(default_factory=list)
    validity: Validity | None = None
    facts: dict[str, Any] = msgspec.field(default_factory=dict)
    read: dict[str, Any] = msgspec.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """JSON types only; numbers that JSON cannot write are null."""
        document: dict[str, Any] = jsonable(self)
        return document
