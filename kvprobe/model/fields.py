"""Typed access to a model configuration that may be wrong or hostile.

Every getter either returns a value inside its bounds or raises UsageError that names the file, the key,
what was found and what would be right. Defaults that are used are said in `assumptions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from kvprobe.errors import Problem, UsageError

MAX_LAYERS = 4096
MAX_COUNT = 1 << 20
"""Bound of a head count, a head width or a hidden size: beyond it no model exists, only a mistake."""
MAX_TOKENS = 1 << 40
_SHOWN_CHARS = 60


def shown(value: object) -> str:
    """A foreign value for an error message: short, whatever it is."""
    if isinstance(value, (list, dict)):
        return f"a {type(value).__name__} of {len(value)} entries"
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


class Fields:
    """One configuration (or a part of one) with its origin, its class defaults and what was assumed."""

    def __init__(
        self,
        data: Mapping[str, object],
        *,
        source: str,
        defaults: Mapping[str, object] | None = None,
        owner: str = "the configuration class",
        nested: bool = False,
        assumptions: list[str] | None = None,
    ) -> None:
        self.data = data
        self.source = source
        self.defaults = defaults or {}
        self.owner = owner
        self.nested = nested
        self.assumptions: list[str] = [] if assumptions is None else assumptions

    def assume(self, text: str) -> None:
        """Say once what was not in the configuration and what was taken in its place."""
        if text not in self.assumptions:
            self.assumptions.append(text)

    def wrong(self, key: str, message: str, fix: str) -> NoReturn:
        raise UsageError(
            Problem(code="bad_model_config", message=f"`{key}` {message}", fix=fix, path=self.source)
        )

    def missing(self, key: str, why: str = "the size of the cache depends on it") -> NoReturn:
        raise UsageError(
            Problem(
                code="missing_model_key",
                message=f"`{key}` is missing: {why}",
                fix=f"add `{key}`, or use the config.json that the model was published with",
                path=self.source,
            )
        )

    def has(self, key: str) -> bool:
        """Whether the key is there with a value; an explicit null is no value."""
        return self.data.get(key) is not None

    def _found(self, names: tuple[str, ...]) -> tuple[str, object] | None:
        return next(((name, self.data[name]) for name in names if self.has(name)), None)

    def _whole(self, key: str, value: object, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(key, f"must be a whole number, not {shown(value)}", f"write {key} as a JSON integer")
        if not low <= value <= high:
            found = shown(value) if abs(value) < 10**18 else "a far larger number"
            self.wrong(
                key,
                f"is {found}, outside {low} to {high}",
                "correct the number; no published model has such a value",
            )
        return value

    def optional(self, *names: str, low: int = 1, high: int = MAX_COUNT) -> int | None:
        """The first of `names` that is present, checked; null when none is."""
        found = self._found(names)
        return None if found is None else self._whole(found[0], found[1], low, high)

    def size(self, *names: str, low: int = 1, high: int = MAX_COUNT) -> int:
        """A size that the cache depends on.

        Inside a nested configuration a missing one takes the default of the configuration class:
        composite models publish only what differs from it. Elsewhere it is an error.
        """
        value = self.optional(*names, low=low, high=high)
        if value is not None:
            return value
        default = self._class_default(names) if self.nested else None
        if default is None:
            self.missing(names[0])
        return default

    def size_or(self, default: int, *names: str, low: int = 1, high: int = MAX_COUNT) -> int:
        """A size with a fixed default of the configuration class, said in `assumptions` when it is used."""
        value = self.optional(*names, low=low, high=high)
        if value is not None:
            return value
        known = self.defaults.get(names[0])
        chosen = known if isinstance(known, int) and not isinstance(known, bool) else default
        self.assume(f"{names[0]} is not in the configuration: {chosen}, the default of {self.owner}")
        return chosen

    def _class_default(self, names: tuple[str, ...]) -> int | None:
        for name in names:
            value = self.defaults.get(name)
            if isinstance(value, int) and not isinstance(value, bool):
                self.assume(f"{name} is not in the configuration: {value}, the default of {self.owner}")
                return value
        return None

    def class_size(self, *names: str) -> int | None:
        """The class default of a size, with the assumption said; null when the class has none."""
        return self._class_default(names)

    def flag(self, default: bool, *names: str) -> bool:
        found = self._found(names)
        if found is None:
            return default
        if not isinstance(found[1], bool):
            self.wrong(found[0], f"must be true or false, not {shown(found[1])}", "write true or false")
        return found[1]

    def text(self, *names: str) -> str | None:
        found = self._found(names)
        if found is None:
            return None
        if not isinstance(found[1], str) or len(found[1]) > 200:
            self.wrong(found[0], f"must be a short text, not {shown(found[1])}", "write it as a JSON string")
        return found[1]

    def _list(self, key: str, length: int | None) -> list[object]:
        value = self.data[key]
        if not isinstance(value, list):
            self.wrong(key, f"must be a list, not {shown(value)}", "write one entry per layer")
        if length is not None and len(value) != length:
            self.wrong(
                key,
                f"has {len(value)} entries for {length} layers",
                "give one entry per layer, or correct the number of layers",
            )
        if len(value) > MAX_LAYERS:
            self.wrong(key, f"has {len(value)} entries", f"at most {MAX_LAYERS} are read")
        return value

    def texts(self, key: str, *, length: int | None = None) -> list[str] | None:
        """A list of names, such as `layer_types`; null when absent."""
        if not self.has(key):
            return None
        names = self._list(key, length)
        bad = next((name for name in names if not isinstance(name, str)), None)
        if bad is not None:
            self.wrong(key, f"must hold names, not {shown(bad)}", "write each entry as a JSON string")
        return [str(name) for name in names]

    def sizes(self, key: str, *, length: int | None = None, low: int = 0) -> list[int] | None:
        """A list of whole numbers, such as KV heads of each layer; null when absent."""
        if not self.has(key):
            return None
        return [self._whole(key, value, low, MAX_COUNT) for value in self._list(key, length)]

    def part(self, key: str) -> Mapping[str, object] | None:
        """A nested object; null when absent."""
        if not self.has(key):
            return None
        value = self.data[key]
        if not isinstance(value, dict):
            self.wrong(key, f"must be an object, not {shown(value)}", "use the published config.json")
        return value
