"""`--set a.b=c`: values from the command line laid over those of the file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvprobe.errors import Problem, UsageError
from kvprobe.load.workload_secrets import is_secret
from kvprobe.load.yaml_source import KeyPath, Mark, YamlDocument, parse_yaml

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*\Z")

_REPLACES: dict[KeyPath, tuple[KeyPath, ...]] = {
    ("arrival", "open"): (("arrival", "closed"),),
    ("arrival", "closed"): (("arrival", "open"),),
    ("arrival", "open", "rate"): (
        ("arrival", "open", "ramp"),
        ("arrival", "open", "stages"),
        ("arrival", "open", "trace"),
    ),
    ("warmup", "requests"): (("warmup", "duration"),),
    ("warmup", "duration"): (("warmup", "requests"),),
    ("duration",): (("requests",),),
}
"""An option replaces the alternative that the file chose: `--rate 5` the file's users, and
`--duration 60s` the file's number of requests."""


MAX_SHOWN_CHARS = 120


class Setting(NamedTuple):
    """One value from outside the file. `option` is what the user wrote it with, such as `--users`
    or `KVPROBE_USERS`; null for `--set` itself."""

    key: str
    text: str
    option: str | None = None

    def mark(self) -> Mark:
        """Where it stands, for messages: the option as it was typed, with a caret at its value."""
        before = f"--set {self.key}=" if self.option is None else f"{self.option}{self._between()}"
        # What looks like a key or a password is not shown.
        text = self.text if len(self.text) <= MAX_SHOWN_CHARS else f"{self.text[:MAX_SHOWN_CHARS]}…"
        shown = before + ("…" if is_secret(self.key.rpartition(".")[2]) else text)
        return Mark(shown, 1, len(before) + 1, shown)

    def _between(self) -> str:
        return " " if self.option is not None and self.option.startswith("-") else "="


def apply_sets(
    document: YamlDocument, given: Sequence[tuple[str, str] | Setting], environ: Mapping[str, str]
) -> None:
    """Changes `document` in place; problems of the options are added to its problems."""
    sets = [Setting(*each) for each in given]
    paths = [tuple(each.key.split(".")) for each in sets]
    for setting in sets:
        key, text, mark = setting.key, setting.text, setting.mark()
        if not _KEY.match(key):
            message = f"`{key}` is not the dotted name of a key"
            document.problems.append(mark.problem("bad_key", message, "write --set arrival.closed.users=4"))
            continue
        path = tuple(key.split("."))
        try:
            part = parse_yaml(text, mark.path, environ)
        except UsageError as error:
            document.problems.extend(_moved(problem, mark) for problem in error.problems)
            continue
        document.problems.extend(_moved(problem, mark) for problem in part.problems)
        _forget_alternatives(document, path, paths)
        _lay_over(document, path, part, mark)
        if setting.option is not None:
            document.options[path] = setting.option


def lay_over(document: YamlDocument, given: Sequence[tuple[str, YamlDocument, Mark]]) -> None:
    """The same for values that stand in a file: (dotted key, its value, where the key stands)."""
    paths = [tuple(key.split(".")) for key, _, _ in given]
    for (key, part, mark), path in zip(given, paths, strict=True):
        if not _KEY.match(key):
            message = f"`{key}` is not the dotted name of a key"
            document.problems.append(mark.problem("bad_key", message, "write arrival.closed.users: 4"))
            continue
        _forget_alternatives(document, path, paths)
        _lay_over(document, path, part, part.marks.get((), mark))


def _moved(problem: Problem, mark: Mark) -> Problem:
    return mark.problem(problem.code, problem.message, problem.fix)


def _forget_alternatives(document: YamlDocument, path: KeyPath, others: Sequence[KeyPath]) -> None:
    for length in range(1, len(path) + 1):
        for alternative in _REPLACES.get(path[:length], ()):
            if any(other[: len(alternative)] == alternative for other in others):
                continue
            parent: Any = document.value
            for key in alternative[:-1]:
                parent = parent.get(key) if isinstance(parent, dict) else None
            if isinstance(parent, dict) and parent.pop(alternative[-1], None) is not None:
                _forget(document, alternative)


def _forget(document: YamlDocument, path: KeyPath) -> None:
    """Drops what is known of a value that is replaced, and of all below it."""
    tables: tuple[dict[KeyPath, Any], ...] = (
        document.marks,
        document.key_marks,
        document.written,
        document.unexpanded,
        document.options,
    )
    for table in tables:
        for known in [known for known in table if known[: len(path)] == path]:
            del table[known]
    for marked in (document.spoilt, document.quoted):
        marked.difference_update({known for known in marked if known[: len(path)] == path})


def _lay_over(document: YamlDocument, path: KeyPath, part: YamlDocument, mark: Mark) -> None:
    if document.value is None:
        document.value = {}
    parent = document.value
    for length, key in enumerate(path[:-1], start=1):
        if not isinstance(parent, dict):
            break
        child = parent.get(str(key))
        if not isinstance(child, dict):
            child = {}
            _forget(document, path[:length])
            document.marks[path[:length]] = document.key_marks[path[:length]] = mark
        # A value that an alias shares with another place must change here only.
        parent[str(key)] = child = dict(child)
        parent = child
    if not isinstance(parent, dict):
        return
    parent[str(path[-1])] = part.value
    _forget(document, path)
    document.marks[path] = document.key_marks[path] = mark
    for below, text in part.written.items():
        document.written[path + below] = text
    for below, text in part.unexpanded.items():
        document.unexpanded[path + below] = text
    document.quoted.update(path + below for below in part.quoted)
    document.spoilt.update(path + below for below in part.spoilt)
