"""The evidence of a run as the rules read it: rows sorted out once, series by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvprobe.diagnose.log_view import LogView
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.rundata import RunData
from kvprobe.summary import activity
from kvprobe.summary.build import Summary, measured_rows
from kvprobe.summary.memory import cache_config

_MARK_SLACK_NS = 50_000_000
"""A mark and the scrape that it takes are stamped apart by less than this."""


@dataclass(slots=True)
class View:
    """A run and its numbers."""

    run: RunData
    summary: Summary
    log: LogView | None = None
    """What the server's log says, where there is one."""
    measured: list[RequestRecord] = field(init=False)
    """All but the warm-up."""
    ok: list[RequestRecord] = field(init=False)
    """Measured, sent and ended well, in the order sent."""
    config: dict[str, Any] = field(init=False)
    """The engine's cache configuration, empty when it says none."""

    def __post_init__(self) -> None:
        self.measured = measured_rows(self.run)
        self.ok = sorted(
            (r for r in self.measured if r.failure is None and r.sent_ns is not None),
            key=lambda r: r.sent_ns or 0,
        )
        self.config = cache_config(self.run)

    def load_series(self, metric: str) -> list[activity.Point]:
        """A gauge while the load ran."""
        start = activity.mark_ns(self.run.samples, activity.LOAD_START) or self.summary.window.start_ns
        end = activity.mark_ns(self.run.samples, activity.LOAD_END) or self.summary.window.end_ns
        return activity.series(self.run.samples, metric, start, end)

    def increase(self, metric: str) -> activity.Increase | None:
        """How far a counter rose over the load."""
        return activity.increase(self.run.samples, metric)

    @property
    def alone(self) -> bool:
        """No other client's work in the server's counters, as far as these tell (null counts as alone)."""
        return not self.summary.metrics.prefix_hit_rate.others_tokens

    @property
    def engines(self) -> int:
        """How many engines (replicas, ranks) the metrics are of, as their labels tell; 1 without labels."""
        told = {
            (s.labels.get("replica", ""), s.labels.get("engine", ""))
            for s in self.run.samples
            if s.metric.startswith("engine.")
        }
        named = {pair for pair in told if any(pair)}
        return max(len(named), 1)

    def at_rest(self, metric: str) -> tuple[float, float] | None:
        """A gauge's first reading at or before the load's start, and its last at or after the load's end."""
        start = activity.mark_ns(self.run.samples, activity.LOAD_START)
        end = activity.mark_ns(self.run.samples, activity.LOAD_END)
        points = activity.series(self.run.samples, metric)
        if start is None or end is None or not points:
            return None
        before = [v for t, v in points if t <= start + _MARK_SLACK_NS]
        after = [v for t, v in points if t >= end - _MARK_SLACK_NS]
        return (before[-1], after[-1]) if before and after else None

    def facts(self, name: str) -> list[Fact]:
        return [f for f in self.run.facts if f.name == name]

    def fact(self, name: str) -> Any:
        """Value of the last fact of that name, null when there is none."""
        found = self.facts(name)
        return found[-1].value if found else None
