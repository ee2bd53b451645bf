"""Trace files that a workload names: found beside the workload file, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvprobe.errors import Problem, UsageError
from kvprobe.load.yaml_source import KeyPath, YamlDocument
from kvprobe.traces.formats import FORMATS
from kvprobe.traces.read import open_trace

_PARTS = ("prompt", "output")
_KEY = "trace"


def resolve_traces(document: YamlDocument, folder: Path) -> None:
    """Makes the paths of traces absolute: relative ones count from `folder`, else from here.

    What is wrong with a trace's first lines is added to the document's problems.
    """
    for parent, path in _places(document.value):
        found = _find(parent[_KEY], folder)
        if found is None:
            text = f"there is no trace file {parent[_KEY][:200]!r}"
            fix = "give a path that counts from the workload file or from here"
            mark = document.mark_at(path)
            problem = mark.problem("not_found", text, fix) if mark else Problem("not_found", text, fix)
            document.problems.append(problem)
            continue
        parent[_KEY] = found
        replayed = path == ("prompt", _KEY)
        form = parent.get("format")
        # An unknown format is a matter of the schema.
        known = form if replayed and isinstance(form, str) and form in FORMATS else "auto"
        try:
            open_trace(Path(found), known, lengths_only=not replayed)
        except UsageError as error:
            document.problems.extend(error.problems)


def hash_traces(content: dict[str, Any]) -> None:
    """Puts the digest of each trace in the place of its path: what is sent, not where it lies."""
    for parent, _ in _places(content):
        try:
            parent[_KEY] = f"sha256:{open_trace(Path(parent[_KEY]), lengths_only=True).digest}"
        except UsageError:
            continue  # the file is gone since: the path stays, and no two runs are called the same


def _places(value: Any) -> Iterator[tuple[dict[str, Any], KeyPath]]:
    """Mappings that name a trace, with the place of the name."""
    for part in _PARTS:
        below = value.get(part) if isinstance(value, dict) else None
        yield from _below(below, (part,))


def _below(value: Any, path: KeyPath) -> Iterator[tuple[dict[str, Any], KeyPath]]:
    if not isinstance(value, dict):
        return
    if isinstance(value.get(_KEY), str):
        yield value, (*path, _KEY)
    for key, child in value.items():
        yield from _below(child, (*path, key))


def _find(text: str, folder: Path) -> str | None:
    if not text or "\0" in text or len(text) > 4096:
        return None
    for path in (folder / text, Path(text)):
        if os.path.isfile(path):
            return os.path.abspath(path)
    return None
