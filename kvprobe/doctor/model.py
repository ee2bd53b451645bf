"""What an examination says: the structs behind `kvprobe.doctor/1`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvprobe.summary.jsonable import jsonable

SCHEMA = "kvprobe.doctor/1"
Status = Literal["ok", "warn", "fail", "unknown", "skipped"]
"""`unknown`: looked for and not to be had; `skipped`: not looked for, and `text` says why."""


class Check(msgspec.Struct, kw_only=True):
    """One thing that was looked at. A `fail` or `warn` has a fix of one line."""

    id: str
    status: Status
    text: str
    fix: str | None = None
    facts: dict[str, Any] = msgspec.field(default_factory=dict)


class Examination(msgspec.Struct, kw_only=True):
    """The whole answer; `ok` is false when a check failed."""

    schema: str = SCHEMA
    target: str | None
    ok: bool
    checks: list[Check]

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = jsonable(self)
        return document


def doctor_schema() -> dict[str, Any]:
    """JSON Schema of `kvprobe.doctor/1`."""
    schema = msgspec.json.schema(Examination)
    top = schema["$defs"]["Examination"]
    top["properties"]["schema"] = {"const": SCHEMA}
    top["required"] = ["schema", *top["required"]]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **schema}
