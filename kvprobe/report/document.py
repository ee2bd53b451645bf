"""The JSON documents of the contract and their schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from kvprobe.diagnose.model import Diagnosis
from kvprobe.summary.jsonable import jsonable

if TYPE_CHECKING:  # a diagnosis of logs needs neither runs nor numpy
    from kvprobe.evidence.rundata import RunData
    from kvprobe.summary.build import Summary

_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def run_document(data: RunData, summary: Summary, diagnosis: Diagnosis) -> dict[str, Any]:
    """`kvprobe.run/1`. `prediction`, `thresholds` and `runs` are there and empty where the run
    has none: a script can read them without asking."""
    from kvprobe.summary.holders import who_held
    from kvprobe.summary.prediction import predict

    document = summary.to_json()
    document["run_dir"] = str(data.path)
    document["status"] = data.status
    document["prediction"] = predict(data, diagnosis.facts.get("log")).to_json()
    document["held_cache"] = who_held(data).to_json()
    document["thresholds"] = threshold_results(data, summary)
    document["runs"] = []
    document["diagnosis"] = diagnosis_document(diagnosis)
    return document


def threshold_results(data: RunData, summary: Summary) -> list[Any]:
    """The run's thresholds, each with its value, interval and verdict."""
    from kvprobe.gates.judge import judged

    found = jsonable(judged(data, summary))
    assert isinstance(found, list)
    return found


def diagnosis_document(diagnosis: Diagnosis) -> dict[str, Any]:
    """`kvprobe.diagnosis/1`."""
    document = jsonable(diagnosis)
    assert isinstance(document, dict)
    return {"schema": "kvprobe.diagnosis/1", **{k: v for k, v in document.items() if k != "schema"}}


def diagnosis_schema() -> dict[str, Any]:
    return _with_constant(msgspec.json.schema(Diagnosis), "kvprobe.diagnosis/1")


def run_schema() -> dict[str, Any]:
    """Schema of `kvprobe.run/1`: the summary's fields and what `run_document` adds."""
    from kvprobe.summary.build import Summary

    schema = msgspec.json.schema(Summary)
    diagnosis = msgspec.json.schema(Diagnosis)
    definitions = {**schema.get("$defs", {}), **diagnosis.get("$defs", {})}
    summary = definitions["Summary"]
    summary["properties"].pop("layout", None)
    summary["required"] = [name for name in summary.get("required", []) if name != "layout"]
    summary["properties"] |= {
        "prediction": {"type": ["object", "null"]},
        "held_cache": {"type": ["object", "null"]},
        "thresholds": {"type": "array"},
        "runs": {"type": "array"},
        "diagnosis": {"$ref": "#/$defs/Diagnosis"},
    }
    summary["required"] += ["prediction", "held_cache", "thresholds", "runs", "diagnosis"]
    found = _with_constant({"$ref": "#/$defs/Summary", "$defs": definitions}, "kvprobe.run/1")
    return _or_suite(found)


def _or_suite(schema: dict[str, Any]) -> dict[str, Any]:
    """A suite's document has the same name and holds such documents under `runs`."""
    from kvprobe.report.suite_document import suite_definitions

    schema["$defs"] |= suite_definitions()
    schema["anyOf"] = [{"$ref": schema.pop("$ref")}, {"$ref": "#/$defs/Suite"}]
    return schema


def error_schema() -> dict[str, Any]:
    text, number = {"type": ["string", "null"]}, {"type": ["integer", "null"], "minimum": 1}
    properties = {"code": {"type": "string"}, "message": {"type": "string"}, "fix": text, "path": text}
    properties |= {"line": number, "column": number}
    error = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {
        "$schema": _DRAFT,
        "title": "kvprobe.error/1",
        "type": "object",
        "properties": {
            "schema": {"const": "kvprobe.error/1"},
            "errors": {"type": "array", "items": error, "minItems": 1},
        },
        "required": ["schema", "errors"],
        "additionalProperties": False,
    }


def _with_constant(schema: dict[str, Any], name: str) -> dict[str, Any]:
    """Add the document's `schema` field, which the structs themselves do not carry."""
    top = schema["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    top["properties"] = {"schema": {"const": name}, **top["properties"]}
    top["required"] = ["schema", *(n for n in top.get("required", []) if n != "schema")]
    return {"$schema": _DRAFT, "title": name, **schema}
