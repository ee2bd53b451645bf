"""A log's events as the rules read them: by name, by phase, with what stands beside the log."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from kvprobe.evidence.events import Event, Phase


@dataclass(slots=True, kw_only=True)
class LogView:
    """All that was read of one incident: one or several files, perhaps a metrics page and a model.

    `events` are in order of file and line, ranks folded. `engine` and `engine_version` are what the
    logs say, null when they do not. `metrics` is a scraped page (canonical series -> value) or null;
    `prediction` what `kvprobe.plan` says of `--model`, or null. `ended` tells per source how the log
    ends: `traceback`, `shutdown`, `cut` (in mid-life, without a word) or `excerpt`.
    """

    events: list[Event]
    engine: str | None = None
    engine_version: str | None = None
    metrics: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    ended: dict[str, str] = field(default_factory=dict)
    read: dict[str, Any] = field(default_factory=dict)
    alive: bool = False
    """Somebody saw the server answer after the log's last line: a log without an end has just none yet."""

    def all(self, *names: str) -> list[Event]:
        """Events of these names, in order, without those that foreign text forged."""
        return [e for e in self.events if e.name in names and e.provenance != "quoted"]

    def last(self, *names: str) -> Event | None:
        found = self.all(*names)
        return found[-1] if found else None

    def first(self, *names: str) -> Event | None:
        found = self.all(*names)
        return found[0] if found else None

    def phase_at(self, event: Event) -> Phase | None:
        """What the engine was doing: the event's own word, else the last phase told before it."""
        if event.phase is not None:
            return event.phase
        told = [e.phase for e in self._before(event) if e.phase is not None]
        return told[-1] if told else self._start_that_failed(event)

    def _start_that_failed(self, event: Event) -> Phase | None:
        """A launcher may say only afterwards that it was the start which failed."""
        after = [e for e in self.events if e.source == event.source and e.line >= event.line]
        for e in after:
            if e.name in {"serving", "engine_stats"}:
                return None
            if e.name == "start_failed":
                stage: Phase | None = e.get("stage")
                return stage
        return None

    def _before(self, event: Event) -> Iterable[Event]:
        return (e for e in self.events if e.source == event.source and e.line <= event.line)
