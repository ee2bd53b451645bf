"""One run of a suite or sweep: what is wanted, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from kvprobe.load.workload import Workload
from kvprobe.run.options import RunOutcome
from kvprobe.summary.rates import CUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One run that a plan wants."""

    part: str
    role: str | None
    round: int
    load: float | None
    workload: Workload
    server_args: tuple[str, ...]
    fresh_server: bool
    """A bundled server of its own, though one with these options runs: what that holds would be met again."""
    says: str
    """For the person who watches: `2 of 6: distinct, round 1`."""


@dataclass(slots=True)
class PartRun:
    """One run that was made."""

    item: Item
    outcome: RunOutcome

    @property
    def failed(self) -> bool:
        """Whether any of its requests failed otherwise than by being cut off at the end of the step."""
        summary = self.outcome.summary
        return summary is not None and not summary.requests.by_failure.keys() <= {CUT}

    @property
    def succeeded(self) -> bool:
        """Whether any of its requests ended well."""
        return self.outcome.summary is not None and self.outcome.summary.requests.ok > 0
