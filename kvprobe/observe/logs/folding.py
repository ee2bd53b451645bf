"""One thing that happened is one event, however many ranks print it; and memory stays bounded.

Sixteen ranks print one failure sixteen times, each with its own pid, device and perhaps its own free
bytes. Such lines differ in digits only, come from different speakers and stand close together. A
statistics line of one speaker is never a repeat: it is the next sample.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

import msgspec

from kvprobe.evidence.events import Event

WINDOW_LINES = 4000
WINDOW_S = 120.0
_SAMPLE_WINDOW_LINES = 64
_SAMPLES = frozenset({"engine_stats", "preemption", "retraction", "refused", "truncated", "cancelled"})
_SAME_MESSAGE_LINES = 12
_BINDING = {
    "available_kv": "bytes",
    "pool_size": "tokens",
    "free_below_desired": "free",
    "budget": "kv",
    "weights_loaded": "free_after",
    "pool_end": "free_after",
    "pool_ready": "tokens",
    "pool_free": "free",
}
"""Where ranks tell different numbers, the engine is bound by the least one: that rank's line is kept."""
_DIGITS = re.compile(r"\d+")
_SHAPE_CHARS = 300
_OTHER_THAN_SPEAKER = ("device", "pid", "rank", "engine_index")
_MOST_SHAPES = 2048
_FIRST, _MIDDLE, _LAST = 64, 512, 512


class Fold:
    """Takes the events of one source in order of lines; `kept` are those that stay."""

    def __init__(self) -> None:
        self._groups: dict[tuple[object, ...], _Group] = {}
        self._latest: dict[str, _Group] = {}
        self._stores: dict[str, _Store] = {}
        self._era = 0
        self._served = False

    def add(self, event: Event) -> None:
        """Keep an event, or count it as a repeat of one that is kept."""
        self._note_life(event)
        shape = _DIGITS.sub("", event.text[:_SHAPE_CHARS])
        key = (event.name, shape, event.provenance == "quoted", self._era)
        group = self._groups.get(key)
        if group is not None and group.takes(event):
            return
        latest = self._latest.get(event.name)
        if latest is not None and latest.is_also(event):
            return
        if len(self._groups) >= _MOST_SHAPES:
            self._groups.clear()
        self._groups[key] = _Group(event)
        self._latest[event.name] = self._groups[key]
        self._stores.setdefault(event.name, _Store()).add(self._groups[key])

    def _note_life(self, event: Event) -> None:
        """A server that starts again prints its lines again: those are no repeats."""
        if event.phase in ("warmup", "capture", "serve"):
            self._served = True
        elif event.phase == "load" and self._served:
            self._era += 1
            self._served = False

    def events(self) -> list[Event]:
        """What is kept, in order of lines, with the counts of repeats."""
        groups = [group for store in self._stores.values() for group in store.all()]
        return sorted((group.event() for group in groups), key=lambda e: e.line)

    @property
    def thinned(self) -> int:
        """Events that were dropped because there were thousands of their name."""
        return sum(store.dropped for store in self._stores.values())


class _Group:
    """An event and the repeats of it."""

    __slots__ = ("_first", "_last_line", "_repeats", "_shown", "_speakers", "_time_s")

    def __init__(self, event: Event) -> None:
        self._first = self._shown = event
        self._last_line = event.line
        self._time_s = event.time_s
        self._repeats = event.repeats
        self._speakers = {_speaker(event)}

    def takes(self, event: Event) -> bool:
        """Count `event` if it says what this group's event says."""
        if not self._near(event) or not self._same(event):
            return False
        self._repeats += event.repeats if event.line != self._first.line else 0
        self._last_line = max(self._last_line, event.line)
        self._speakers.add(_speaker(event))
        if _binds(event, self._shown):
            self._shown = event
        return True

    def is_also(self, event: Event) -> bool:
        """Whether `event` is this one read twice: a broken line alone, and put together again."""
        near = abs(event.line - self._first.line) <= _SAME_MESSAGE_LINES
        return (
            near
            and self._near(event)
            and event.name not in _SAMPLES
            and bool(event.values)
            and event.rank == self._first.rank
            and (event.provenance == "quoted") == (self._first.provenance == "quoted")
            and event.values == self._first.values
        )

    def _near(self, event: Event) -> bool:
        if (
            self._time_s is not None
            and event.time_s is not None
            and abs(event.time_s - self._time_s) > WINDOW_S
        ):
            return False
        window = _SAMPLE_WINDOW_LINES if event.name in _SAMPLES else WINDOW_LINES
        return abs(event.line - self._last_line) <= window

    def _same(self, event: Event) -> bool:
        other_speaker = _speaker(event) not in self._speakers and any(_speaker(event))
        equal = _content(event) == _content(self._first)
        if event.name in _SAMPLES:
            return equal and other_speaker and any(next(iter(self._speakers)))
        if event.phase is not None and event.name == "phase":
            return other_speaker or equal
        return equal or other_speaker

    def event(self) -> Event:
        """The first of them, or the one that binds, with how often and until where it was said."""
        if self._repeats == self._first.repeats and self._last_line == self._first.line:
            return self._first
        return msgspec.structs.replace(self._shown, repeats=self._repeats, last_line=self._last_line)


def _binds(event: Event, shown: Event) -> bool:
    value = _BINDING.get(event.name)
    if value is None or event.provenance == "quoted":
        return False
    ours, theirs = event.get(value), shown.get(value)
    return isinstance(ours, int | float) and isinstance(theirs, int | float) and ours < theirs


def _speaker(event: Event) -> tuple[object, ...]:
    return (event.rank, event.pid, *(event.get(name) for name in _OTHER_THAN_SPEAKER if name in event.values))


def _content(event: Event) -> dict[str, object]:
    return {k: v.value for k, v in event.values.items() if k not in _OTHER_THAN_SPEAKER}


class _Store:
    """Of one name: the first, the last, and evenly some of those between."""

    def __init__(self) -> None:
        self._first: list[_Group] = []
        self._middle: list[_Group] = []
        self._last: deque[_Group] = deque()
        self._stride = 1
        self._passed = 0
        self.dropped = 0

    def add(self, group: _Group) -> None:
        if len(self._first) < _FIRST:
            self._first.append(group)
            return
        self._last.append(group)
        if len(self._last) > _LAST:
            self._thin(self._last.popleft())

    def _thin(self, group: _Group) -> None:
        self._passed += 1
        if self._passed % self._stride:
            self.dropped += 1
            return
        self._middle.append(group)
        if len(self._middle) > _MIDDLE:
            self.dropped += len(self._middle) - len(self._middle[::2])
            self._middle = self._middle[::2]
            self._stride *= 2

    def all(self) -> Iterator[_Group]:
        yield from self._first
        yield from self._middle
        yield from self._last
