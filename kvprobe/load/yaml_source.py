"""YAML text -> plain values, each with the place where it stands.

The text comes from anybody, so the composer is our own: it walks the parser's events without
recursion, caps size, depth, nodes and what aliases expand to, reads scalars by the YAML 1.2 core
schema (`no` and `12:30:00` are text) and refuses tags, so that nothing is ever constructed but
dicts, lists, strings, numbers, booleans and null. It goes on after a problem wherever the text can
still be read, so that all problems of a file come at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from kvprobe.errors import Problem, UsageError
from kvprobe.load.yaml_nodes import KeyPath, Mark, Node, OpenCollection, YamlDocument
from kvprobe.load.yaml_text import resolve_scalar

MAX_DEPTH = 64
MAX_NODES = 20_000
"""Nodes of the document with every alias written out."""
MAX_TAG_CHARS = 1 << 16
"""The parser's time grows with the square of a tag's length."""
MAX_SOURCE_LINE_CHARS = 300
"""Longer lines are not shown: a caret under them would help nobody."""

__all__ = ["KeyPath", "Mark", "YamlDocument", "parse_yaml"]

_LINE_BREAK = re.compile("\r\n|\r|\n")
_SURROGATE = re.compile("[\ud800-\udfff]")
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\{")


def parse_yaml(text: str, shown: str, environ: Mapping[str, str]) -> YamlDocument:
    """Reads one YAML document; problems that leave the text readable are in `.problems`.

    `shown` names the source in errors. UsageError when the text cannot be read to its end.
    """
    return _Composer(text, shown, environ).document()


class _Composer:
    """Builds nodes from parser events with an explicit stack."""

    def __init__(self, text: str, shown: str, environ: Mapping[str, str]) -> None:
        self._text = text
        self._lines = _LINE_BREAK.split(text)
        self._shown = shown
        self._environ = environ
        self._anchors: dict[str, Node] = {}
        self._problems: list[Problem] = []
        self._nodes = 0

    def mark(self, line: int, column: int) -> Mark:
        source = self._lines[line] if line < len(self._lines) else ""
        shown = source if len(source) <= MAX_SOURCE_LINE_CHARS else None
        return Mark(self._shown, line + 1, column + 1, shown)

    def document(self) -> YamlDocument:
        try:
            root = self._compose()
        except MarkedYAMLError as error:
            raise UsageError(*self._problems, *self._syntax(error)) from error
        except ReaderError as error:
            raise UsageError(*self._problems, self._bad_character(error)) from error
        except YAMLError as error:
            mark = self.mark(0, 0)
            raise UsageError(*self._problems, mark.problem("yaml_syntax", str(error))) from error
        document = YamlDocument(None, problems=self._problems)
        if root is None:
            document.marks[()] = self.mark(0, 0)
        else:
            document.value = self._plain(root, (), document)
        return document

    # -- events -> nodes ---------------------------------------------------------------------

    def _compose(self) -> Node | None:
        stack: list[OpenCollection] = []
        root: Node | None = None
        documents = 0
        for event in self._events():
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    mark = self._event_mark(event)
                    fix = "keep one document, without `---` between"
                    self._problems.append(
                        mark.problem("several_documents", "a second YAML document starts here", fix)
                    )
                    break
            elif isinstance(event, (MappingEndEvent, SequenceEndEvent)):
                root = self._close(stack, root)
            elif isinstance(event, NodeEvent):
                node = self._node(event, len(stack))
                if isinstance(event, (MappingStartEvent, SequenceStartEvent)):
                    stack.append(OpenCollection(node, isinstance(event, MappingStartEvent)))
                else:
                    root = self._attach(stack, node, root)
        return root

    def _events(self) -> Iterator[Event]:
        """The parser's events. What it trips over by an error of no YAML kind (an escape beyond
        Unicode, a version of a thousand digits) is a fault of the text after the last event."""
        if any(len(word) > MAX_TAG_CHARS and "!" in word for word in self._text.split()):
            message = f"a tag or word has more than {MAX_TAG_CHARS:,} characters"
            raise UsageError(self.mark(0, 0).problem("too_large", message, "no workload needs that"))
        at = self.mark(0, 0)
        try:
            for event in YAML(typ="safe", pure=True).parse(self._text):
                at = self.mark(event.end_mark.line, event.end_mark.column)
                yield event
        except (YAMLError, GeneratorExit):
            raise
        except Exception as error:
            what = f"what comes after this cannot be read: {error}"
            fix = "check the escapes (\\U…) and the lines that begin with %"
            raise UsageError(*self._problems, at.problem("yaml_syntax", what, fix)) from error

    def _event_mark(self, event: Event) -> Mark:
        start = event.start_mark
        return self.mark(start.line, start.column)

    def _node(self, event: NodeEvent, depth: int) -> Node:
        mark = self._event_mark(event)
        if depth > MAX_DEPTH:
            message = f"values are nested deeper than {MAX_DEPTH} levels"
            raise UsageError(*self._problems, mark.problem("too_deep", message, "no workload needs that"))
        node = self._alias(event, mark, depth) if isinstance(event, AliasEvent) else self._fresh(event, mark)
        self._nodes += node.weight
        if self._nodes > MAX_NODES:
            message = f"the document holds more than {MAX_NODES:,} values once its aliases are written out"
            fix = "write the values out where they are used, without `&` and `*`"
            raise UsageError(*self._problems, mark.problem("too_many_nodes", message, fix))
        return node

    def _fresh(self, event: NodeEvent, mark: Mark) -> Node:
        if isinstance(event, ScalarEvent):
            node = self._scalar(event, mark)
        else:
            mapping = isinstance(event, MappingStartEvent)
            node = Node({} if mapping else [], mark, complete=False)
        if (tag := getattr(event, "tag", None)) is not None:
            message = f"the tag `{tag}` is refused: tags can run code in other readers"
            self._problems.append(
                mark.problem("tag_refused", message, "remove the tag; write the plain value")
            )
            node.spoilt = True
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: AliasEvent, mark: Mark, depth: int) -> Node:
        target = self._anchors.get(event.anchor)
        if target is None or not target.complete:
            what = "is not defined" if target is None else "contains itself"
            fix = f"write `&{event.anchor}` before the value that is meant, or write the value out"
            self._problems.append(mark.problem("bad_alias", f"the alias `*{event.anchor}` {what}", fix))
            return Node(None, mark, spoilt=True)
        if depth + target.height > MAX_DEPTH:
            message = f"aliases nest values deeper than {MAX_DEPTH} levels"
            raise UsageError(*self._problems, mark.problem("too_deep", message, "write the values out"))
        return target

    def _attach(self, stack: list[OpenCollection], node: Node, root: Node | None) -> Node | None:
        """Puts a finished node into the collection that is open, or makes it the root."""
        if not stack:
            return node if root is None else root
        stack[-1].add(node, self._problems)
        return root

    def _close(self, stack: list[OpenCollection], root: Node | None) -> Node | None:
        node = stack.pop().node
        node.complete = True
        return self._attach(stack, node, root)

    def _scalar(self, event: ScalarEvent, mark: Mark) -> Node:
        text: str = event.value
        plain = event.style is None or event.style == ""
        if _SURROGATE.search(text):
            fix = "write the character itself, or as \\U and eight digits"
            self._problems.append(mark.problem("bad_character", "half a character (a surrogate)", fix))
            return Node(None, mark, "?", spoilt=True)
        try:
            value = resolve_scalar(text) if plain else text
        except ValueError as error:
            self._problems.append(mark.problem("bad_value", str(error), "write a number in the usual range"))
            return Node(None, mark, text, spoilt=True)
        return Node(value, mark, text, quoted=not plain)

    # -- nodes -> plain values ---------------------------------------------------------------

    def _plain(self, node: Node, path: KeyPath, document: YamlDocument) -> Any:
        """Recursion is bounded: `_node` and `_alias` keep the depth under MAX_DEPTH."""
        document.marks[path] = node.mark
        if node.spoilt:
            document.spoilt.add(path)
        if node.quoted:
            document.quoted.add(path)
        if node.written is not None:
            document.written[path] = node.written
        if isinstance(node.value, dict):
            for key, mark in node.key_marks.items():
                document.key_marks[(*path, key)] = mark
            return {key: self._plain(child, (*path, key), document) for key, child in node.value.items()}
        if isinstance(node.value, list):
            return [self._plain(child, (*path, i), document) for i, child in enumerate(node.value)]
        if isinstance(node.value, str) and "${" in node.value:
            return self._expand(node, path, document)
        return node.value

    def _expand(self, node: Node, path: KeyPath, document: YamlDocument) -> str:
        """Fills in `${NAME}`; `$${` stands for a literal `${`. Never shows what a variable holds."""
        document.unexpanded[path] = node.value

        def replace(match: re.Match[str]) -> str:
            name = match.group(1)
            if match.group() == "$${":
                return "${"
            if name is not None and name in self._environ:
                return self._environ[name]
            if name is None:
                what, fix = "`${` is not followed by a name and `}`", "write ${NAME}, or $${ for a literal ${"
            else:
                what, fix = f"the environment variable {name} is not set", f"export {name}=… before the run"
            code = "bad_value" if name is None else "missing_variable"
            problem = node.mark.problem(code, what, fix)
            if problem not in self._problems:
                self._problems.append(problem)
            document.spoilt.add(path)
            return ""

        expanded = _VARIABLE.sub(replace, node.value)
        if _SURROGATE.search(expanded):
            fix = "set them again as UTF-8 text"
            what = "the variables used here hold bytes that are not UTF-8"
            self._problems.append(node.mark.problem("encoding", what, fix))
            document.spoilt.add(path)
        return expanded

    # -- what the parser complains about -----------------------------------------------------

    def _syntax(self, error: MarkedYAMLError) -> Iterator[Problem]:
        where = error.problem_mark or error.context_mark
        mark = self.mark(where.line, where.column) if where is not None else self.mark(0, 0)
        if "\\t" in (error.problem or ""):
            tabs = list(self._tab_lines())
            if tabs:
                yield from tabs
                return
        what = " ".join(part for part in (error.context, error.problem) if part)
        fix = "check the indentation, the quotes and the colons on this line and the one before"
        yield mark.problem("yaml_syntax", f"this is not YAML: {what}", fix)

    def _tab_lines(self) -> Iterator[Problem]:
        for number, line in enumerate(self._lines):
            indent = line[: len(line) - len(line.lstrip(" \t"))]
            if "\t" in indent and line.strip():
                mark = self.mark(number, indent.index("\t"))
                yield mark.problem("tab_indent", "this line is indented with a tab", "indent with spaces")

    def _bad_character(self, error: ReaderError) -> Problem:
        before = self._text[: error.position]
        mark = self.mark(before.count("\n"), error.position - (before.rfind("\n") + 1))
        code = error.character if isinstance(error.character, int) else ord(str(error.character)[:1] or "\0")
        return mark.problem(
            "bad_character", f"the control character U+{code:04X} cannot stand in YAML", "remove it"
        )
