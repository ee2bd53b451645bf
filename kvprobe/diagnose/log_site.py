"""Where a program stood when an error was raised: its phase and the sites of its traceback.

The frames of the traceback outrank the phase that earlier lines told: a log of many ranks interleaves
lines, a traceback does not lie. Among frames the outer one names the phase: `execute_model` below
`profile_run` is profiling, `_dummy_run` below `capture_model` is graph capture.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.evidence.events import Event, Phase

_REACH_LINES: Final = 400
"""A traceback of a compiled model may be this long."""
_BOUNDARY: Final = frozenset({"torch_oom", "cuda_oom", "exception"})
_PHASE_OF: Final[tuple[tuple[str, Phase], ...]] = (
    ("sampler_warmup", "warmup"),
    ("capture", "capture"),
    ("kv_alloc", "warmup"),
    ("profile", "profile"),
    ("convert", "load"),
    ("draft", "load"),
    ("load", "load"),
    ("wake", "serve"),
    ("serve", "serve"),
    ("kv_growth", "serve"),
    ("static_cache", "serve"),
    ("prompt_logprobs", "serve"),
    ("training", "serve"),
    ("engine_init", "load"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """`sites` are the kinds of the frames (`multimodal`, `logits`, `convert`, …); `told` is true when the
    traceback itself names the phase."""

    phase: Phase | None
    sites: frozenset[str] = frozenset()
    frames: list[Event] = field(default_factory=list)
    told: bool = False
    engine: str | None = None

    def frame(self, *sites: str) -> Event | None:
        """The innermost frame of one of these kinds."""
        return next((f for f in reversed(self.frames) if f.get("site") in sites), None)

    def __contains__(self, site: str) -> bool:
        return site in self.sites


def site_of(view: LogView, event: Event) -> Site:
    """The traceback that ends in this event, or what the log said before it."""
    frames = _frames(view, event, event.line)
    if not _told(frames) and event.last_line is not None:
        frames = _frames(view, event, event.last_line) or frames
    if not _told(frames):
        frames = _following(view, event) or frames
    sites = frozenset(str(f.get("site")) for f in frames)
    phase = next((p for s, p in _PHASE_OF if s in sites), None)
    engine = next((f.engine for f in frames if f.engine), None) or view.engine
    if phase is not None and event.phase is None:
        return Site(phase=phase, sites=sites, frames=frames, told=True, engine=engine)
    return Site(phase=view.phase_at(event), sites=sites, frames=frames, engine=engine)


def _frames(view: LogView, event: Event, at: int) -> list[Event]:
    """Frames before line `at`, back to the error before it; of the same process where its own frames tell
    a phase (a frame that many ranks print is kept once, with the first rank's mark)."""
    before = [e for e in view.events if e.source == event.source and e is not event]
    placed = sorted(((_place(e, at), e) for e in before), key=lambda p: p[0])
    found: list[Event] = []
    for line, e in reversed(placed):
        if line > at or (line == at and e.name != "frame"):
            continue
        if at - line > _REACH_LINES or (e.name in _BOUNDARY and _same(e, event) and line < at - 2):
            break
        if e.name == "frame" and e.provenance != "quoted":
            found.append(e)
    found.reverse()
    own = [f for f in found if _same(f, event)]
    return _with_unmarked(own, found) if _told(own) else found


def _with_unmarked(own: list[Event], found: list[Event]) -> list[Event]:
    """A line that a terminal broke loses its mark: what it tells beside a phase still counts."""
    tells = {site for site, _ in _PHASE_OF}
    first = min(f.line for f in own)
    return [
        f
        for f in found
        if f in own
        or (f.pid is None and f.rank is None and f.line > first and str(f.get("site")) not in tells)
    ]


def _following(view: LogView, event: Event) -> list[Event]:
    """A logger that prints an exception before its traceback: the frames come below."""
    found: list[Event] = []
    for e in view.events:
        if e.source != event.source or e.line <= event.line or not _perhaps_same(e, event):
            continue
        if e.line - event.line > _REACH_LINES or e.name in _BOUNDARY or e.name == "engine_start":
            break
        if e.name == "frame" and e.provenance != "quoted":
            found.append(e)
    return found if _told(found) else []


def _told(frames: list[Event]) -> bool:
    tells = {site for site, _ in _PHASE_OF}
    return any(f.get("site") in tells for f in frames)


def _place(e: Event, line: int) -> int:
    """Where a repeated line stood last before `line`: it belongs to each traceback that printed it."""
    return e.last_line if e.last_line is not None and e.last_line <= line else e.line


def _perhaps_same(a: Event, b: Event) -> bool:
    return _same(a, b) or (a.pid is None and a.rank is None)


def _same(a: Event, b: Event) -> bool:
    return (a.pid, a.rank) == (b.pid, b.rank)
