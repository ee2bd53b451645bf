"""What a check of the measurement can report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kvprobe.diagnose.model import Quantity

Code = Literal[
    "late_client",
    "batched_reads",
    "batched_stream",
    "client_cpu",
    "client_descriptors",
    "cache_contaminated",
    "host_slept",
    "clock_jumped",
    "client_stood_still",
    "lost_records",
    "no_success",
    "warning",
]
CLIENT_CODES: frozenset[Code] = frozenset(
    {"late_client", "batched_reads", "client_cpu", "client_descriptors", "client_stood_still", "lost_records"}
)
"""Issues whose cause is the load generator itself."""


@dataclass(frozen=True, slots=True)
class Issue:
    """One thing that is wrong, or worth knowing, about the measurement."""

    level: Literal["invalid", "warning"]
    code: Code
    text: str
    facts: dict[str, Quantity] = field(default_factory=dict)
