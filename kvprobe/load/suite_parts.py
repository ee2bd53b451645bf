"""From the parts of a suite file to workloads that are ready to run, or to what is wrong with them."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kvprobe.errors import Problem, UsageError
from kvprobe.load.suite_spec import PartSpec, Role, SuiteSpec
from kvprobe.load.workload import Workload
from kvprobe.load.workload_find import find_workload
from kvprobe.load.workload_sets import Setting, apply_sets, lay_over
from kvprobe.load.yaml_source import KeyPath, YamlDocument, parse_yaml
from kvprobe.load.yaml_text import read_text

Sets = list[Setting]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitePart:
    """A part that is ready to run."""

    name: str
    role: Role | None
    workload: Workload
    """Called like the part."""
    serve_args: tuple[str, ...]
    """The part's own, without the suite's."""


class PartsBuilder:
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
        self._check_roles()
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

    def _check_roles(self) -> None:
        """Parts that cannot answer the suite's question are told before they are run."""
        roles = [spec.role for spec in self._spec.suite]
        for i, spec in enumerate(self._spec.suite):
            if "name" in spec.set:
                message = f"the part `{spec.name}` has its name already"
                self._at(("suite", i, "set", "name"), "conflict", message, "leave out `name` under `set`")
            if self._spec.answer == "three_controls" and spec.role is not None and spec.role in roles[:i]:
                message = f"a second part is `{spec.role}`: three controls are one of each"
                self._at(("suite", i, "role"), "conflict", message, "take `rounds` to run a part again")
        missing = {
            "three_controls": "" if {"repeated", "distinct"} <= set(roles) else "`repeated` and `distinct`",
            "allocator": "" if roles.count("crowd") > 1 else "`crowd`, two or more of them",
            "block_size": "",
        }.get(self._spec.answer or "", "")
        if missing:
            message = f"`{self._spec.answer}` is answered from parts with the roles {missing}"
            self._at(
                ("answer",), "missing_key", message, "give the parts their `role`, or leave out `answer`"
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
        if not name.strip():
            self._at(at, "bad_value", "this names no workload", "name a bundled workload, or a file")
            return None
        beside = self._path.parent / name
        try:
            path, shown = (beside, str(beside)) if beside.is_file() else find_workload(name)
            document = parse_yaml(read_text(path, shown), shown, os.environ)
        except UsageError as error:
            for problem in error.problems:
                if problem.line is None:  # the file cannot be read at all
                    self._at(at, problem.code, problem.message, problem.fix)
                else:
                    self.problems.append(problem)
            return None
        if not isinstance(document.value, dict):
            message = f"`{name}` is no workload: it holds no mapping of keys to values"
            self._at(at, "wrong_type", message, "name a workload")
            return None
        if "suite" in document.value:
            self._at(at, "nested", f"`{name}` is a suite itself", "name a workload")
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
