"""What a YAML text is made of on its way to plain values: marks, nodes, the document."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvprobe.errors import Problem

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a text; `line` and `column` count from 1."""

    path: str
    line: int
    column: int
    source_line: str | None

    def problem(self, code: str, message: str, fix: str | None = None) -> Problem:
        """A `Problem` at this place."""
        return Problem(code, message, fix, self.path, self.line, self.column, self.source_line)


@dataclass(slots=True)
class Node:
    """A composed value before it becomes plain: `value` is a scalar, a list or a dict of Nodes."""

    value: Any
    mark: Mark
    written: str | None = None
    """The scalar as it stands in the text, variables not filled in; null for collections."""
    quoted: bool = False
    weight: int = 1
    height: int = 1
    key_marks: dict[str, Mark] = field(default_factory=dict)
    spoilt: bool = False
    """A problem was already reported here: what the schema says of it would only repeat that."""
    complete: bool = True


@dataclass(slots=True)
class YamlDocument:
    """Plain values and, by key path, where and how each was written."""

    value: Any
    marks: dict[KeyPath, Mark] = field(default_factory=dict)
    key_marks: dict[KeyPath, Mark] = field(default_factory=dict)
    written: dict[KeyPath, str] = field(default_factory=dict)
    quoted: set[KeyPath] = field(default_factory=set)
    unexpanded: dict[KeyPath, str] = field(default_factory=dict)
    """Text of the strings that a `${VARIABLE}` was filled into, as it stood before."""
    spoilt: set[KeyPath] = field(default_factory=set)
    options: dict[KeyPath, str] = field(default_factory=dict)
    """The option of the command line that gave a value, where it has a name of its own."""
    problems: list[Problem] = field(default_factory=list)

    def mark_at(self, path: KeyPath, *, key: bool = False) -> Mark | None:
        """The place of `path`, or of the nearest value around it."""
        if key and path in self.key_marks:
            return self.key_marks[path]
        for length in range(len(path), -1, -1):
            if (mark := self.marks.get(path[:length])) is not None:
                return mark
        return None


class OpenCollection:
    """A collection that is being filled."""

    __slots__ = ("_key", "_key_node", "mapping", "node")

    def __init__(self, node: Node, mapping: bool) -> None:
        self.node = node
        self.mapping = mapping
        self._key: str | None = None
        self._key_node: Node | None = None

    def add(self, child: Node, problems: list[Problem]) -> None:
        if not self.mapping:
            self.node.value.append(child)
            self._grow(child)
        elif self._key_node is None:
            self._key_node = child
            self._key = self._key_text(child, problems)
        else:
            self._put(child, problems)
            self._key_node = None

    def _key_text(self, key: Node, problems: list[Problem]) -> str | None:
        if key.written is not None:
            return key.written
        if not key.spoilt:
            problems.append(key.mark.problem("bad_key", "a key must be a word", "write `key: value`"))
        return None

    def _put(self, child: Node, problems: list[Problem]) -> None:
        assert self._key_node is not None
        key, mark = self._key, self._key_node.mark
        if key is None:
            return
        if key in self.node.value:
            first = self.node.key_marks[key].line
            message = f"the key `{key}` stands here a second time (first in line {first})"
            problems.append(mark.problem("duplicate_key", message, "keep one of the two"))
            return
        if key == "<<":
            message = "merge keys (`<<`) are no part of YAML 1.2"
            problems.append(mark.problem("merge_key", message, "write the keys out"))
            return
        self.node.value[key] = child
        self.node.key_marks[key] = mark
        self._grow(child)

    def _grow(self, child: Node) -> None:
        self.node.weight += child.weight
        self.node.height = max(self.node.height, child.height + 1)
