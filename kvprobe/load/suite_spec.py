"""What a suite file may hold, and its JSON Schema beside a workload's."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, JsonValue
from pydantic_core import PydanticCustomError

from kvprobe.load.workload import NAME_PATTERN
from kvprobe.load.workload_parts import ServerArgs
from kvprobe.load.workload_values import Part, as_tuple

MAX_PARTS = 32
Answer = Literal["three_controls", "block_size", "allocator"]
Role = Literal["repeated", "distinct", "mixed", "crowd", "alone"]


class PartSpec(Part):
    """One part of a suite: a workload, what is changed in it, and options of its server."""

    name: str = Field(pattern=NAME_PATTERN, description="Short name; its run directories carry it.")
    role: Role | None = Field(default=None, description="What the part is in the suite's question.")
    workload: str | dict[str, JsonValue] | None = Field(
        default=None,
        description="A bundled workload's name, a path (from this file's folder), or a workload written out; "
        "the suite's own `workload` when left out.",
    )
    set: dict[str, JsonValue] = Field(
        default_factory=dict, description="Keys that are laid over the workload, such as `output.tokens: 8`."
    )
    serve_args: ServerArgs = Field(
        default=(),
        description="Options of the bundled server for this part, after the suite's; parts of equal options "
        "that follow each other share one server.",
    )


def _counted(parts: tuple[PartSpec, ...]) -> tuple[PartSpec, ...]:
    """After the parts themselves: a part that is wrong must not be told as a missing one, too."""
    if not parts:
        fix = "write a part such as `- name: first`"
        raise PydanticCustomError("bad_value", "a suite without parts runs nothing", {"fix": fix})
    if len(parts) > MAX_PARTS:
        message = f"{len(parts)} parts are more than the {MAX_PARTS} of one suite"
        raise PydanticCustomError("bad_value", message, {"fix": "split it into several files"})
    return parts


class SuiteSpec(Part):
    """A kvprobe suite: parts that are run in turn, each into a run directory of its own."""

    model_config = ConfigDict(title="kvprobe suite")

    name: str = Field(pattern=NAME_PATTERN, description="Short name; part of the folder's name.")
    description: str = Field(default="", max_length=2_000, description="What this suite is for, for people.")
    answer: Answer | None = Field(
        default=None, description="The question that is answered from all parts together."
    )
    rounds: int = Field(
        default=1,
        ge=1,
        le=20,
        description="How often all parts are run; every other round goes backwards, so that what drifts "
        "with time meets each part alike (count).",
    )
    workload: str | dict[str, JsonValue] | None = Field(
        default=None, description="The workload of the parts that name none."
    )
    server_args: ServerArgs = Field(
        default=(), description="Options of the bundled server for all parts; not used with --target."
    )
    suite: Annotated[tuple[PartSpec, ...], BeforeValidator(as_tuple), AfterValidator(_counted)] = Field(
        description="The parts, in the order of the first round.",
        json_schema_extra={"minItems": 1, "maxItems": MAX_PARTS},
    )


def with_suite(workload: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a workload file: a workload, or a suite of several."""
    suite = SuiteSpec.model_json_schema()
    definitions = {**workload.pop("$defs", {}), **suite.pop("$defs", {})}
    draft = workload.pop("$schema")
    inline = {"$ref": "#/$defs/Workload"}
    for place in (suite["properties"]["workload"], definitions["PartSpec"]["properties"]["workload"]):
        # A workload that is written out takes its name from the part.
        place["anyOf"] = [
            {"type": "string"},
            {"type": "object", "properties": inline_properties(workload)},
            {"type": "null"},
        ]
    definitions |= {"Workload": workload, "Suite": suite}
    return {
        "$schema": draft,
        "title": "kvprobe workload or suite",
        "if": {"required": ["suite"]},
        "then": {"$ref": "#/$defs/Suite"},
        "else": inline,
        "$defs": definitions,
    }


def inline_properties(workload: dict[str, Any]) -> dict[str, Any]:
    return {name: {"$ref": f"#/$defs/Workload/properties/{name}"} for name in workload["properties"]}
