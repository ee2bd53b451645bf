"""What is shown of a target, and the document of `--json`: `kvprobe.watch/1`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

SCHEMA = "kvprobe.watch/1"

LABEL_CHARS = 24
"""Of an engine's own label on a screen; a page can hold one of any length."""

State = Literal["read", "not_exported", "no_reading", "not_yet", "scrape_failed"]
Verdict = Literal[
    "pressure",
    "full_and_queueing_once",
    "full_and_healthy",
    "queueing_below_the_red_line",
    "queueing_at_low_use",
    "queueing_use_unknown",
    "held_by_nobody",
    "stalled",
    "healthy",
    "idle",
    "use_unknown",
    "restarted",
    "unreachable",
]


class Number(msgspec.Struct, kw_only=True, omit_defaults=False):
    """One figure. `value` is null exactly when `state` is not `read`: not exported by this engine, no
    reading (no observation in the window, NaN), not yet (a rate needs two looks), or no page."""

    value: float | None
    unit: str
    state: State
    series: str | None = None
    """The engine's own name of what was read."""
    window_s: float | None = None
    """Seconds that a rate or percentile was taken over; null for a value of this instant."""
    n: float | None = None
    """Observations behind a percentile, events behind a rate."""
    at_least: bool = False
    """The true value lies above: all that a histogram's last bucket can say."""
    note: str | None = None


class EngineView(msgspec.Struct, kw_only=True):
    """One of several engines (data parallel) on one page."""

    engine: str
    kv_usage: float | None
    running: float | None
    waiting: float | None


class Reading(msgspec.Struct, kw_only=True):
    """What the numbers mean, in words."""

    id: Verdict
    text: str


class Failure(msgspec.Struct, kw_only=True):
    kind: str
    text: str


class TargetView(msgspec.Struct, kw_only=True):
    """One target at one instant."""

    url: str
    reachable: bool
    failure: Failure | None
    engine: str | None
    engine_version: str | None
    engine_version_range: str | None
    looks: int
    """Pages that stand behind the window's rates."""
    window_s: float
    restarted_s_ago: float | None
    numbers: dict[str, Number]
    engines: list[EngineView]
    doubts: dict[str, str]
    reading: Reading


class Together(msgspec.Struct, kw_only=True):
    """Several targets as replicas of one service: counts summed, shares averaged, never added."""

    targets: int
    reachable: int
    running: float | None
    """Null where a target does not tell, or does not answer: a part is no sum."""
    waiting: float | None
    kv_usage_mean: float | None
    """Over the targets that tell it."""
    kv_usage_max: float | None


class GpuView(msgspec.Struct, kw_only=True):
    """A GPU of this machine (or one of its MIG instances)."""

    gpu: str
    mig: str | None
    name: str | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    utilization_ratio: float | None
    throttled_by: list[str]
    lost: bool


class WatchDocument(msgspec.Struct, kw_only=True):
    """All targets at one instant."""

    t_utc: str
    interval_s: float
    red_line_ratio: float
    idle_line_ratio: float
    targets: list[TargetView]
    together: Together | None
    """Null for one target."""
    gpus: list[GpuView] | None
    """Null where no target runs on this machine, or this machine has no GPU that can be read."""
    gpu_note: str | None


def document(view: WatchDocument) -> dict[str, Any]:
    """The JSON document: finite numbers and nulls only."""
    plain: dict[str, Any] = msgspec.to_builtins(view)
    return {"schema": SCHEMA, **plain}


def watch_schema() -> dict[str, Any]:
    """JSON Schema of `kvprobe.watch/1`."""
    schema = msgspec.json.schema(WatchDocument)
    top = schema["$defs"]["WatchDocument"]
    top["properties"] = {"schema": {"const": SCHEMA}, **top["properties"]}
    top["required"] = ["schema", *top.get("required", [])]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **schema}
