"""A suite file as typed objects: several workloads in turn, and the question that they answer together.

A suite is a workload file with the top-level key `suite`. `load_suite` raises one `UsageError` with all
problems of the file, of the workloads that its parts name, and of the `--set` options.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, ValidationError

from kvprobe.errors import Problem, UsageError
from kvprobe.load.workload import NAME_PATTERN, Workload, in_order
from kvprobe.load.workload_find import find_workload
from kvprobe.load.workload_parts import ServerArgs
from kvprobe.load.workload_sets import Setting, apply_sets, lay_over
from kvprobe.load.workload_values import Part, as_tuple
from kvprobe.load.yaml_source import KeyPath, YamlDocument, parse_yaml
from kvprobe.load.yaml_text import read_text

MAX_PARTS = 32
Answer = Literal["three_controls", "block_size", "allocator"]
Role = Literal["repeated", "distinct", "mixed", "crowd", "alone"]
_SUITE_KEYS = ("name", "description", "answer", "rounds", "server_args", "suite")
_TOP_KEY = re.compile(r"^(suite|sweep)[ \t]*:", re.MULTILINE)


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
    suite: Annotated[tuple[PartSpec, ...], BeforeValidator(as_tuple)] = Field(
        min_length=1, max_length=MAX_PARTS, description="The parts, in the order of the first round."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitePart:
    """A part that is ready to run."""

    name: str
    role: Role | None
    workload: Workload
    """Called like the part."""
    serve_args: tuple[str, ...]
    """The part's own, without the suite's."""


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
    builder = _Parts(document, path, shown, spec, by_part, common)
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


Sets = list[Setting]


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


class _Parts:
    """Builds the parts and collects what is wrong with them."""

    def __init__(
        self,
        document: YamlDocument,
        path: Path,
        shown: str,
        spec: SuiteSpec,
        by_part: dict[str, Sets],
        common: Sets,
    ) -> None:
        self._document, self._path, self._shown, self._spec = document, path, shown, spec
        self._by_part, self._common = by_part, common
        self.problems: list[Problem] = []

    def all(self) -> list[SuitePart]:
        self._check_names()
        found = [self._part(i, spec) for i, spec in enumerate(self._spec.suite)]
        return [part for part in found if part is not None]

    def _check_names(self) -> None:
        seen: set[str] = set()
        for i, spec in enumerate(self._spec.suite):
            if spec.name in seen:
                message = f"a second part is called `{spec.name}`"
                self._at(("suite", i, "name"), "duplicate_part", message, "give each part a name of its own")
            seen.add(spec.name)
        for name in self._by_part.keys() - seen:
            setting = self._by_part[name][0]
            message = f"this suite has no part `{name}`"
            self.problems.append(
                setting.mark().problem("unknown_part", message, f"its parts: {', '.join(sorted(seen))}")
            )

    def _part(self, i: int, spec: PartSpec) -> SuitePart | None:
        document = self._workload_document(i, spec)
        if document is None:
            return None
        at = ("suite", i, "set")
        lay_over(
            document,
            [
                (key, below(self._document, (*at, key)), self._document.key_marks[(*at, key)])
                for key in spec.set
            ],
        )
        apply_sets(document, [*self._common, *self._by_part.get(spec.name, [])], os.environ)
        workload = self._validated(document)
        if workload is None:
            return None
        if workload.sweep is not None:
            self._at(
                ("suite", i), "nested", f"`{spec.name}` sweeps its load; a part is one run", "run it alone"
            )
            return None
        return SuitePart(
            name=spec.name,
            role=spec.role,
            workload=workload.model_copy(update={"name": spec.name, "server_args": ()}),
            serve_args=workload.server_args + spec.serve_args,
        )

    def _workload_document(self, i: int, spec: PartSpec) -> YamlDocument | None:
        at: KeyPath = ("suite", i, "workload") if spec.workload is not None else ("workload",)
        given = spec.workload if spec.workload is not None else self._spec.workload
        if given is None:
            message = f"the part `{spec.name}` has no workload, and neither has the suite"
            self._at(("suite", i), "missing_key", message, "add `workload: NAME`, or one for the whole suite")
            return None
        if isinstance(given, str):
            return self._named(given, at)
        document = below(self._document, at)
        document.value = {"name": spec.name, **document.value}
        return document

    def _named(self, name: str, at: KeyPath) -> YamlDocument | None:
        beside = self._path.parent / name
        try:
            path, shown = (beside, str(beside)) if beside.is_file() else find_workload(name)
            document = parse_yaml(read_text(path, shown), shown, os.environ)
        except UsageError as error:
            for problem in error.problems:
                if problem.path is None:
                    self._at(at, problem.code, problem.message, problem.fix)
                else:
                    self.problems.append(problem)
            return None
        if not isinstance(document.value, dict) or "suite" in document.value:
            message = f"`{name}` is a suite itself" if document.value else f"`{name}` is empty"
            self._at(at, "nested", message, "name a workload")
            return None
        return document

    def _validated(self, document: YamlDocument) -> Workload | None:
        from kvprobe.load.workload_errors import translate

        try:
            workload = Workload.model_validate(document.value)
        except ValidationError as error:
            self.problems += [*document.problems, *translate(error, document, Workload)]
            return None
        self.problems += document.problems
        workload._unexpanded.update(document.unexpanded)
        return workload

    def _at(self, path: KeyPath, code: str, message: str, fix: str | None) -> None:
        mark = self._document.mark_at(path)
        self.problems.append(
            mark.problem(code, message, fix) if mark is not None else Problem(code, message, fix)
        )


def below(document: YamlDocument, prefix: KeyPath) -> YamlDocument:
    """What stands under a key, as a document of its own that keeps its places; the original is not shared."""
    value: Any = document.value
    for key in prefix:
        value = value[key]
    n = len(prefix)

    def cut(table: dict[KeyPath, Any]) -> dict[KeyPath, Any]:
        return {path[n:]: found for path, found in table.items() if path[:n] == prefix}

    return YamlDocument(
        copy.deepcopy(value),
        marks=cut(document.marks),
        key_marks={path: mark for path, mark in cut(document.key_marks).items() if path},
        written=cut(document.written),
        quoted={path[n:] for path in document.quoted if path[:n] == prefix},
        unexpanded=cut(document.unexpanded),
        spoilt={path[n:] for path in document.spoilt if path[:n] == prefix},
        options=cut(document.options),
    )
