"""When a line that speaks of a death is not believed as it stands.

A prompt that contains "CUDA out of memory" may reach a log without any mark. What gives it away is what
comes after: the engine goes on serving as before.
"""

from __future__ import annotations

import msgspec

from kvprobe.diagnose.log_site import site_of
from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.base import LogCandidate
from kvprobe.evidence.events import Event

_ALIVE_AFTER = 2
"""So many stats lines with tokens flowing, after the line, and no new start between."""


def doubted(view: LogView, c: LogCandidate) -> LogCandidate:
    """The candidate, or one of lower confidence where the engine lived on after the line it rests on."""
    if not c.fatal or c.at is None or not _unmarked(view, c.at) or not _lived_on(view, c.at):
        return c
    said = (
        f"{c.finding.why} But the line stands without a logger's prefix and the engine went on serving "
        "after it: it may be text that a request carried."
    )
    weaker = msgspec.structs.replace(c.finding, confidence="suspected", why=said)
    return LogCandidate(finding=weaker, fatal=False, root=False, at=c.at, phase=c.phase, excludes={})


def _unmarked(view: LogView, event: Event) -> bool:
    """Without a logger's prefix, and without frames of a traceback above it."""
    if event.provenance not in ("bare", "traceback") or event.rank is not None or event.pid is not None:
        return False
    return not site_of(view, event).frames


def _lived_on(view: LogView, event: Event) -> bool:
    after = [e for e in view.events if e.source == event.source and e.line > event.line]
    for n, e in enumerate(after):
        if e.name == "engine_start":
            after = after[:n]
            break
    prefixed = [e for e in after if e.name == "engine_stats" and e.provenance == "logger"]
    return sum(1 for e in prefixed if e.get("generation_tokens_per_s")) >= _ALIVE_AFTER
