"""A suite file as typed objects: several workloads in turn, and the question that they answer together.

A suite is a workload file with the top-level key `suite`. `load_suite` raises one `UsageError` with all
problems of the file, of the workloads that its parts name, and of the `--set` options.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from kvprobe.errors import UsageError
from kvprobe.load.suite_parts import PartsBuilder, Sets, SuitePart
from kvprobe.load.suite_spec import Answer, SuiteSpec
from kvprobe.load.workload import in_order
from kvprobe.load.workload_find import find_workload
from kvprobe.load.workload_sets import Setting, apply_sets
from kvprobe.load.yaml_source import parse_yaml
from kvprobe.load.yaml_text import read_text

_SUITE_KEYS = ("name", "description", "answer", "rounds", "server_args", "suite")
_TOP_KEY = re.compile(r"^(suite|sweep)[ \t]*:", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A whole suite, every part checked."""

    name: str
    description: str
    answer: Answer | None
    rounds: int
    server_args: tuple[str, ...]
    parts: tuple[SuitePart, ...]

    def content_hash(self) -> str:
        """SHA-256 of what is sent and to what server, as hex."""
        parts = [
            (part.name, part.role, part.workload.content_hash(), list(self.server_args + part.serve_args))
            for part in self.parts
        ]
        text = json.dumps([self.answer, self.rounds, parts], ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def order(self) -> list[tuple[int, SuitePart]]:
        """(round, part) of every run: forwards, backwards, forwards …"""
        rounds = range(1, self.rounds + 1)
        return [(n, part) for n in rounds for part in (self.parts if n % 2 else self.parts[::-1])]


def kind_of_file(path_or_name: str) -> Literal["suite", "sweep", "workload"]:
    """What a file asks for, by its top-level keys; cheap, and no judgement on the rest of it."""
    path, shown = find_workload(path_or_name)
    found = set(_TOP_KEY.findall(read_text(path, shown)))
    return "suite" if "suite" in found else "sweep" if "sweep" in found else "workload"


def load_suite(path_or_name: str, sets: Sequence[tuple[str, str] | Setting] = ()) -> Suite:
    """Reads a suite file (or a bundled one by its name). `--set` values go to every part, those that
    begin with `suite.PART.` to one part, and those of the suite's own keys to the suite."""
    from kvprobe.load.workload_errors import translate

    path, shown = find_workload(path_or_name)
    document = parse_yaml(read_text(path, shown), shown, os.environ)
    own, by_part, common = _sorted_sets(sets)
    apply_sets(document, own, os.environ)
    if not isinstance(document.value, dict):
        mark = document.marks[()]
        fix = "start from one of the bundled suites, such as three_controls"
        raise UsageError(
            *document.problems, mark.problem("wrong_type", "a suite is a mapping of keys to values", fix)
        )
    try:
        spec = SuiteSpec.model_validate(document.value)
    except ValidationError as error:
        problems = [*document.problems, *translate(error, document, SuiteSpec)]
        raise UsageError(*in_order(problems, shown)) from None
    builder = PartsBuilder(document, path, shown, spec, by_part, common)
    parts = builder.all()
    problems = [*document.problems, *builder.problems]
    if problems:
        raise UsageError(*in_order(problems, shown))
    return Suite(
        name=spec.name,
        description=spec.description,
        answer=spec.answer,
        rounds=spec.rounds,
        server_args=spec.server_args,
        parts=tuple(parts),
    )


def _sorted_sets(sets: Sequence[tuple[str, str] | Setting]) -> tuple[Sets, dict[str, Sets], Sets]:
    """Those of the suite itself, those of one part by its name, those of every part."""
    own: Sets = []
    by_part: dict[str, Sets] = {}
    common: Sets = []
    for setting in (Setting(*each) for each in sets):
        keys = setting.key.split(".")
        if keys[0] == "suite" and len(keys) > 2:
            whole = setting.option or f"--set {setting.key}"
            below = Setting(".".join(keys[2:]), setting.text, whole)
            by_part.setdefault(keys[1], []).append(below)
        elif keys[0] in _SUITE_KEYS:
            own.append(setting)
        else:
            common.append(setting)
    return own, by_part, common
