"""One thing that a log says: a typed event with its numbers, units, file and line."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Provenance = Literal["logger", "traceback", "kernel", "bare", "quoted"]
"""Who says so. `logger`: a line with the prefix of the engine's own logger. `traceback`: the last line
of an exception. `kernel`: dmesg, journald, a container runtime. `bare`: a line without any prefix, as in
a pasted excerpt. `quoted`: inside a logged prompt, request body or other foreign text: never convinces."""

Phase = Literal["load", "profile", "capture", "warmup", "serve"]


class Value(msgspec.Struct, frozen=True):
    """A number or text of an event. Units: `B`, `tokens`, `blocks`, `s`, `ratio`, `count`, null."""

    value: Any
    unit: str | None = None


class Event(msgspec.Struct, kw_only=True):
    """What one line, or a few lines that belong together, said.

    `name` is from `kvprobe.observe.logs.vocabulary`. `time_s` is seconds since the epoch where the
    line had a full timestamp, else null. `rank` is as printed (`TP3`, `EngineCore_DP0`, `rank1`).
    `phase` is what the engine was doing, where the line itself tells. `repeats` counts the same event
    printed by other ranks or echoed by wrappers; `last_line` is the line of its last repeat.
    """

    name: str
    source: str
    line: int
    text: str
    values: dict[str, Value] = msgspec.field(default_factory=dict)
    engine: str | None = None
    phase: Phase | None = None
    time_s: float | None = None
    rank: str | None = None
    pid: int | None = None
    provenance: Provenance = "bare"
    repeats: int = 1
    last_line: int | None = None

    def get(self, name: str) -> Any:
        """A value's number or text, null when the line did not carry it."""
        found = self.values.get(name)
        return None if found is None else found.value
