"""A suite or sweep as a `kvprobe.run/1` document, and what the schema says of it."""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.diagnose.suite_answer import Answer
from kvprobe.diagnose.suite_judge import JudgedRun, SuiteResult, merged_diagnosis
from kvprobe.report.document import diagnosis_document, run_document
from kvprobe.summary.jsonable import jsonable
from kvprobe.summary.sweep_result import SweepResult

_COUNTS = (
    "intended",
    "sent",
    "unsent",
    "ok",
    "failed",
    "unfinished",
    "warmup",
    "warmup_failed",
    "cut_at_end",
)


def suite_document(result: SuiteResult) -> dict[str, Any]:
    """The sums of all runs, the answer or the sweep, and the whole document of each run under `runs`.

    `metrics` is null: the latencies of unlike parts have no common percentiles.
    """
    runs = [_run(judged) for judged in result.runs]
    first: dict[str, Any] = runs[0] if runs else {}
    plan = result.data.plan
    return {
        "schema": "kvprobe.run/1",
        "run_dir": str(result.data.path),
        "status": result.data.status,
        "workload": plan.get("name"),
        "workload_hash": plan.get("hash"),
        "target": first.get("target"),
        "model": first.get("model"),
        "engine": first.get("engine"),
        "engine_version": first.get("engine_version"),
        "requests": _requests(runs),
        "metrics": None,
        "prediction": None,
        "thresholds": [
            {"part": run["part"]["name"], "round": run["part"]["round"], **threshold}
            for run in runs
            for threshold in run.get("thresholds") or []
        ],
        "diagnosis": diagnosis_document(merged_diagnosis(result)),
        "answer": jsonable(result.answer) if result.answer is not None else None,
        "sweep": jsonable(result.sweep) if result.sweep is not None else None,
        "runs": runs,
        "unreadable": [problem.message for problem in result.data.unreadable],
    }


def _run(judged: JudgedRun) -> dict[str, Any]:
    """The run's own document, and which part of the suite it is."""
    run = judged.run
    document = run_document(run.data, judged.summary, judged.diagnosis)
    document["part"] = {"name": run.part, "role": run.role, "round": run.round, "load": run.load}
    return document


def _requests(runs: list[dict[str, Any]]) -> dict[str, Any]:
    counted = [run["requests"] for run in runs]
    found: dict[str, Any] = {name: sum(c[name] for c in counted) for name in _COUNTS}
    failures: dict[str, int] = {}
    for each in counted:
        for kind, number in each["by_failure"].items():
            failures[kind] = failures.get(kind, 0) + number
    return {**found, "by_failure": failures}


def suite_definitions() -> dict[str, Any]:
    """JSON Schema definitions of a suite's document: `Suite` and what it refers to."""
    definitions: dict[str, Any] = {}
    for kind in (Answer, SweepResult):
        definitions |= msgspec.json.schema(kind).get("$defs", {})
    text, whole = {"type": ["string", "null"]}, {"type": "integer", "minimum": 0}
    properties: dict[str, Any] = {
        "schema": {"const": "kvprobe.run/1"},
        "run_dir": {"type": "string"},
        "status": {"enum": ["complete", "partial", "killed"]},
        **dict.fromkeys(("workload", "workload_hash", "target", "model", "engine", "engine_version"), text),
        "requests": {
            "type": "object",
            "properties": {**dict.fromkeys(_COUNTS, whole), "by_failure": {"type": "object"}},
            "required": [*_COUNTS, "by_failure"],
        },
        "metrics": {"type": "null", "description": "The runs have theirs."},
        "prediction": {"type": "null"},
        "thresholds": {"type": "array", "items": {"type": "object", "required": ["part", "round"]}},
        "diagnosis": {"$ref": "#/$defs/Diagnosis"},
        "answer": {"anyOf": [{"$ref": "#/$defs/Answer"}, {"type": "null"}]},
        "sweep": {"anyOf": [{"$ref": "#/$defs/SweepResult"}, {"type": "null"}]},
        "runs": {"type": "array", "items": {"$ref": "#/$defs/Summary"}},
        "unreadable": {
            "type": "array",
            "items": {"type": "string"},
            "description": "Run directories of this folder that could not be read, and why.",
        },
    }
    definitions["Suite"] = {
        "title": "Suite",
        "description": "All runs of a suite or a sweep.",
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }
    return definitions
