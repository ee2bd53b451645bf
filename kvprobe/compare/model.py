"""What a comparison is: the structs behind `kvprobe.compare/1`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvprobe.summary.jsonable import jsonable

SCHEMA = "kvprobe.compare/1"
Verdict = Literal[
    "higher", "lower", "no_difference_shown", "hint", "n_too_small", "not_measured", "no_interval"
]
"""Of B against A. `hint`: outside chance by itself, but not among so many rows; `no_interval`: one
number a run."""


class Interval(msgspec.Struct, kw_only=True, frozen=True):
    lo: float
    hi: float


class Row(msgspec.Struct, kw_only=True):
    """One number in both runs. `unit` is that of `a` and `b`; `change` is B/A - 1, or B - A for shares."""

    name: str
    unit: Literal["s", "tokens/s", "requests/s", "ratio", "count", "B"]
    better: Literal["lower", "higher", "neither"]
    a: float | None
    b: float | None
    n_a: int | None = None
    n_b: int | None = None
    change: float | None = None
    change_is: Literal["relative", "difference"] = "relative"
    ci: Interval | None = None
    """95 % for this row alone."""
    ci_all: Interval | None = None
    """95 % for all rows together (Bonferroni): what `verdict` goes by."""
    verdict: Verdict
    why: str | None = None
    """Why there is no number or no interval."""


class Setting(msgspec.Struct, kw_only=True):
    """Something that was not the same when the two runs were made."""

    group: Literal["server", "engine", "cache", "target", "client", "machine", "workload"]
    name: str
    a: Any
    b: Any


class Side(msgspec.Struct, kw_only=True):
    """One of the two runs."""

    run_dir: str
    workload: str | None
    workload_hash: str | None
    engine: str | None
    engine_version: str | None
    model: str | None
    status: str
    valid: bool | None
    """Null when nothing judged it."""
    reasons: list[str]
    requests_ok: int
    requests_failed: int
    started_utc: str | None
    primary: str


class Comparison(msgspec.Struct, kw_only=True):
    """The whole answer."""

    schema: str = SCHEMA
    a: Side
    b: Side
    same_workload: bool
    summary: str
    settings: list[Setting]
    rows: list[Row]
    warnings: list[str]

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = jsonable(self)
        return document


def compare_schema() -> dict[str, Any]:
    """JSON Schema of `kvprobe.compare/1`."""
    schema = msgspec.json.schema(Comparison)
    top = schema["$defs"]["Comparison"]
    top["properties"]["schema"] = {"const": SCHEMA}
    top["required"] = ["schema", *top["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **schema}
