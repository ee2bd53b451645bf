"""Reading a run directory back: from parquet when it was finalised, from the spool when not."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from kvprobe.errors import Problem, UsageError
from kvprobe.evidence import columns
from kvprobe.evidence.clocks import align
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.records import OpenedRequest, RequestRecord
from kvprobe.evidence.samples import Sample
from kvprobe.evidence.spool import SpoolContent, encode, open_regular, read_lines, read_spool_into

Status = Literal["complete", "partial", "killed"]

SPOOL = "spool"
REQUESTS = "requests.parquet"
SAMPLES = "samples.parquet"
OPENED = "opened.jsonl"
FACTS = "facts.jsonl"
DAMAGED_LINES = "spool_damaged_lines"
"""Fact that keeps the count of damaged lines once the spool is gone; `RunData` gives it as a number."""

MAX_TEXT_BYTES = 2**20
"""Of STATUS, workload.yaml and environment.json."""

T = TypeVar("T", bound=msgspec.Struct)


@dataclass(slots=True)
class RunData:
    """All that a run directory holds, in memory; records and samples are in order of time.

    `opened` are the requests that were sent and have no record: in flight when the run was cut.
    `bad_lines` counts damaged lines of the spool and of facts.jsonl; every whole line is here.
    """

    path: Path
    status: Status
    records: list[RequestRecord] = field(default_factory=list)
    opened: list[OpenedRequest] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    workload: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    bad_lines: int = 0


def load_run(path: Path) -> RunData:
    """Read the run at `path`. Raises UsageError (`run_damaged`) when its rows cannot be read."""
    content = read_spooled(path) if (path / SPOOL).is_dir() else _read_finalised(path)
    align(content)
    return RunData(
        path=path,
        status=read_status(path),
        records=content.records,
        opened=content.opened,
        samples=content.samples,
        facts=content.facts,
        workload=_read_workload(path / "workload.yaml"),
        environment=read_environment(path / "environment.json"),
        bad_lines=content.bad_lines,
    )


def read_status(path: Path) -> Status:
    """`killed` when there is no STATUS file or it says nothing known."""
    text = _read_text(path / "STATUS").strip()
    if text == "complete":
        return "complete"
    return "partial" if text == "partial" else "killed"


def read_spooled(path: Path) -> SpoolContent:
    """What the spool and facts.jsonl of an unfinished run hold together, in order of time.

    Raises UsageError (`run_damaged`) when a spool file may not be read. Links are passed over.
    """
    content = SpoolContent()
    try:
        for file in sorted((path / SPOOL).glob("*.jsonl")):
            if not file.is_symlink():
                read_spool_into(content, file)
    except OSError as exc:
        raise _damaged(path / SPOOL, exc) from exc
    kept = [fact for fact in _read_structs(path / FACTS, Fact, content) if fact.name != DAMAGED_LINES]
    # A finalise that was killed has copied the spool's facts already: none counts twice.
    known = {encode(fact) for fact in kept}
    content.facts = kept + [fact for fact in content.facts if encode(fact) not in known]
    done = {record.request_id for record in content.records}
    content.opened = [item for item in content.opened if item.request_id not in done]
    content.records.sort(key=lambda record: record.intended_ns)
    content.samples.sort(key=lambda sample: sample.t_ns)
    return content


def _read_finalised(path: Path) -> SpoolContent:
    content = SpoolContent()
    try:
        content.records = columns.read_requests(path / REQUESTS)
    except (OSError, ValueError) as exc:
        raise _damaged(path / REQUESTS, exc) from exc
    facts = _read_structs(path / FACTS, Fact, content)
    try:
        content.samples = columns.read_samples(path / SAMPLES)
    except (OSError, ValueError) as exc:
        facts.append(Fact(name="samples_unreadable", value=None, source=SAMPLES, text=str(exc)))
    content.opened = _read_structs(path / OPENED, OpenedRequest, content)
    for fact in facts:
        if fact.name != DAMAGED_LINES:
            content.facts.append(fact)
        elif isinstance(fact.value, int):
            content.bad_lines += fact.value
    return content


def _damaged(path: Path, exc: Exception) -> UsageError:
    return UsageError(
        Problem(
            code="run_damaged",
            message=f"the rows of the run cannot be read: {exc}",
            fix="copy the run directory again from where it was made",
            path=str(path),
        )
    )


def _read_structs(path: Path, kind: type[T], content: SpoolContent) -> list[T]:
    """The lines of a JSONL file of one kind; damage is counted in `content`, a missing file is empty."""
    decoder = msgspec.json.Decoder(kind)
    items = []
    try:
        for line, damaged in read_lines(path):
            content.bad_lines += damaged
            try:
                items.append(decoder.decode(line))
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                content.bad_lines += not damaged
    except FileNotFoundError:
        return []
    except OSError:
        content.bad_lines += 1  # a link, or not ours to read: the rest of the run still stands
    return items


def _read_workload(path: Path) -> dict[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        tree = YAML(typ="safe", pure=True).load(_read_text(path))
    except (YAMLError, ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def read_environment(path: Path) -> dict[str, Any]:
    """environment.json, empty when it is missing or none."""
    try:
        return msgspec.json.decode(_read_text(path), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}


def _read_text(path: Path) -> str:
    """The text of a file, empty when it is missing, unreadable, a link or far too large."""
    try:
        with open_regular(path) as file:
            data = file.read(MAX_TEXT_BYTES + 1)
    except OSError:
        return ""
    return data.decode("utf-8", "replace") if len(data) <= MAX_TEXT_BYTES else ""
