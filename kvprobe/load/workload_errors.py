"""pydantic's complaints -> `Problem`s with a place, plain words and a fix."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kvprobe.errors import Problem
from kvprobe.load.workload_checks import presence_problems
from kvprobe.load.workload_find import did_you_mean
from kvprobe.load.workload_prompts import PROMPT_CLASSES
from kvprobe.load.workload_type_fixes import type_fix
from kvprobe.load.workload_values import format_duration
from kvprobe.load.yaml_source import KeyPath, YamlDocument

_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
    "tuple_type": "a list",
    "list_type": "a list",
    "none_required": "null",
}
_TYPE_NAMES: dict[type, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a decimal number",
    str: "text",
    type(None): "null",
}
_LIMITS = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def translate(error: ValidationError, document: YamlDocument, model: type[BaseModel]) -> Iterator[Problem]:
    """Problems in the order in which pydantic found them, presence problems included."""
    details = error.errors(include_url=False, include_input=False)
    for detail in details:
        path, known = _walk(detail["loc"], model)
        if any(path[:length] in document.spoilt for length in range(len(path) + 1)):
            continue
        if detail["type"] == "bad_value" and _lacks_what_was_spoilt(document, path):
            continue
        yield from _Translator(document, model, detail, path, known).problems()
    of_workload = "kind" in model.model_fields
    if of_workload and not any(detail["type"] == "workload_problems" for detail in details):
        for cross in presence_problems(document.value):
            if cross.code == "missing_key" and _lacks_what_was_spoilt(document, cross.loc):
                continue
            yield _at(document, cross.loc, cross.code, cross.message, cross.fix)


def _lacks_what_was_spoilt(document: YamlDocument, path: KeyPath) -> bool:
    """Whether a value that stands right here could not be read: that it is missing would be no news."""
    value = document.value
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return False
    return isinstance(value, dict) and any(
        spoilt[:-1] == path and spoilt != () and value.get(spoilt[-1]) is None for spoilt in document.spoilt
    )


def _walk(loc: tuple[int | str, ...], model: type[BaseModel]) -> tuple[KeyPath, list[str]]:
    """The key path without the tags that unions put into it, and the keys known where it ends."""
    path: list[str | int] = []
    current: type[BaseModel] | None = model
    keys = list(_fields(model))
    for part in loc:
        if path == ["prompt"] and part in PROMPT_CLASSES:
            current = PROMPT_CLASSES[str(part)]
            keys = list(_fields(current))
            continue
        if isinstance(part, int):  # an item of a list is of the class that the list is of
            path.append(part)
            continue
        keys = list(_fields(current)) if current is not None else []
        child = _fields(current).get(str(part)) if current is not None else None
        path.append(part)
        current = child
    return tuple(path), keys


def _fields(model: type[BaseModel] | None) -> dict[str, type[BaseModel] | None]:
    """Keys as they are written in a file, each with the class of its value if it has one."""
    if model is None:
        return {}
    return {f.alias or name: _model_of(f.annotation) for name, f in model.model_fields.items()}


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = [m for arg in get_args(annotation) if (m := _model_of(arg)) is not None]
    return found[0] if len(found) == 1 else None


def _places(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key, dotted path) of every key of the schema, for keys that stand in the wrong place."""
    for key, child in _fields(model).items():
        yield key, prefix + key
        children = list(PROMPT_CLASSES.values()) if not prefix and key == "prompt" else [child]
        for each in children:
            if each is not None:
                yield from _places(each, f"{prefix}{key}.")


def _at(
    document: YamlDocument, path: KeyPath, code: str, message: str, fix: str | None, *, key: bool = False
) -> Problem:
    mark = document.mark_at(path, key=key)
    return mark.problem(code, message, fix) if mark is not None else Problem(code, message, fix)


def _without_text(problem: Problem) -> Problem:
    """The place without what stands there."""
    path = problem.path
    if path is not None and path.startswith("--set "):
        path = path.partition("=")[0]
    return dataclasses.replace(problem, source_line=None, path=path)


class _Translator:
    """One complaint."""

    def __init__(
        self,
        document: YamlDocument,
        model: type[BaseModel],
        detail: ErrorDetails,
        path: KeyPath,
        known: list[str],
    ) -> None:
        self._document = document
        self._model = model
        self._type = detail["type"]
        if self._type in _LIMITS and path not in document.marks:
            path = path[:-1]  # `tokens: 0` is short for `tokens: {fixed: 0}`, which nobody wrote
        self._ctx: dict[str, Any] = detail.get("ctx", {})
        self._message = detail["msg"]
        self._path = path
        self._known = known
        dotted = ".".join(str(part) for part in path) or "the workload"
        self._name = document.options.get(path, dotted)
        self._key = str(path[-1]) if path else ""

    def problems(self) -> Iterator[Problem]:
        if self._type == "workload_problems":
            for cross in self._ctx["problems"]:
                if cross.code == "missing_key" and _lacks_what_was_spoilt(self._document, cross.loc):
                    continue
                yield _at(self._document, cross.loc, cross.code, cross.message, cross.fix)
        elif self._type == "extra_forbidden":
            yield self._unknown_key()
        elif self._type == "missing":
            message, fix = f"`{self._name}` is missing", self._missing_fix()
            yield _at(self._document, self._path[:-1], "missing_key", message, fix)
        elif self._type in ("union_tag_not_found", "union_tag_invalid"):
            # A mapping without a tag means that `kind` is wrong, which is reported there.
            if not isinstance(self._value(), dict):
                yield self._wrong_type("a mapping of keys to values")
        elif self._type in _TYPES:
            yield self._wrong_type(_TYPES[self._type])
        else:
            yield self._bad_value()

    def _value(self) -> Any:
        value = self._document.value
        for part in self._path:
            try:
                value = value[part]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def _unknown_key(self) -> Problem:
        where = ".".join(str(part) for part in self._path[:-1])
        message = f"unknown key `{self._key}`" + (f" in `{where}`" if where else "")
        fix = did_you_mean(self._key, self._known) or self._right_place()
        if fix is None:
            fix = f"known here: {', '.join(self._known)}" if self._known else "remove it"
        return _at(self._document, self._path, "unknown_key", message, fix, key=True)

    def _right_place(self) -> str | None:
        """Where a key that is known elsewhere belongs."""
        place = next((place for key, place in _places(self._model) if key == self._key), None)
        if place is None:
            return None
        above = place.rpartition(".")[0]
        return (
            f"`{self._key}` belongs under `{above}`"
            if above
            else f"`{self._key}` belongs at the top of the file"
        )

    def _missing_fix(self) -> str:
        near = [key for key in self._given() if key not in self._known]
        close = difflib.get_close_matches(self._key, near, n=1, cutoff=0.6)
        return f"rename `{close[0]}` to `{self._key}`" if close else f"add `{self._key}: …`"

    def _given(self) -> list[str]:
        return [str(p[-1]) for p in self._document.key_marks if p[:-1] == self._path[:-1]]

    def _written(self) -> str | None:
        """The scalar as it stands in the file: variables are never shown filled in."""
        return self._document.written.get(self._path)

    def _shown(self) -> str:
        written = self._written()
        if written is None:
            value = self._value()
            return (
                "a mapping"
                if isinstance(value, dict)
                else "a list"
                if isinstance(value, list)
                else "this value"
            )
        short = written if len(written) <= 60 else written[:57] + "…"
        return "nothing" if short == "" and self._path not in self._document.quoted else f"`{short}`"

    def _wrong_type(self, wanted: str) -> Problem:
        message = f"`{self._name}` must be {wanted}, and {self._shown()} is {self._what()}"
        if self._path in self._document.unexpanded:
            fix = f'variables give text only; use --set {self._name}="$NAME"'
        else:
            quoted = self._path in self._document.quoted
            fix = type_fix(wanted, self._written() or "", self._value(), quoted=quoted)
        return _at(self._document, self._path, "wrong_type", message, fix)

    def _what(self) -> str:
        value = self._value()
        if self._path in self._document.unexpanded:
            return "text from the environment"
        names = _TYPE_NAMES | {dict: "not one", list: "not one"}
        return names.get(type(value), "something else")

    def _bad_value(self) -> Problem:
        if self._type in _LIMITS:
            words, key = _LIMITS[self._type]
            limit = self._limit(self._ctx[key])
            message = f"`{self._name}` must be {words} {limit}, and {self._shown()} is not"
            return _at(self._document, self._path, "bad_value", message, f"write a value of {words} {limit}")
        if self._type == "literal_error":
            return self._bad_word()
        if self._type == "string_pattern_mismatch":
            message = f"{self._shown()} cannot be a name"
            fix = "use 1 to 64 of the characters a-z 0-9 _ -, the first a letter or digit"
            return _at(self._document, self._path, "bad_value", message, fix)
        if self._type == "string_too_long":
            limit = self._ctx["max_length"]
            message = f"`{self._name}` has more than {limit:,} characters"
            return _at(self._document, self._path, "bad_value", message, "make it shorter")
        if self._type == "missing_argument" or "fix" not in self._ctx:
            message = f"`{self._name}`: {self._message[:1].lower()}{self._message[1:]}"
            return _at(self._document, self._path, "bad_value", message, None)
        path = (*self._path, *self._ctx.get("key", ()))
        scalar = self._written() is not None
        message = f"`{self._name}`: {self._message}" + (f" ({self._shown()})" if scalar else "")
        code = "wrong_type" if self._type in ("bad_duration", "bad_length") else "bad_value"
        problem = _at(self._document, path, code, message, self._ctx["fix"], key="key" in self._ctx)
        return _without_text(problem) if "secret" in self._ctx else problem

    def _limit(self, limit: float) -> str:
        if re.search(r"[0-9](ms|s|m|h)\Z", self._written() or ""):
            return format_duration(limit)
        return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"

    def _bad_word(self) -> Problem:
        known = re.findall(r"'([^']*)'", str(self._ctx.get("expected", "")))
        value = self._value()
        near = did_you_mean(value, known) if isinstance(value, str) else None
        fix = near or f"write one of: {', '.join(known)}"
        if self._path in self._document.unexpanded:
            fix = f"write one of: {', '.join(known)}"
        message = f"`{self._name}` cannot be {self._shown()}; known: {', '.join(known)}"
        return _at(self._document, self._path, "bad_value", message, fix)
