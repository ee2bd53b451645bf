"""Keys that only the count of parameters needs: what is missing or odd ends the count, never the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvprobe.model.fields import MAX_COUNT, shown

Group = Literal["embedding", "head", "attention", "state", "mlp", "experts", "shared", "router", "other"]
"""What parameters belong to. `other` is norms, biases, convolutions, position tables: never quantised."""
MAX_VOCABULARY = 1 << 24
MAX_EXPERTS = 1 << 16


class Uncounted(Exception):
    """The parameters cannot be counted; the text says why, for the plan's reason."""


@dataclass(frozen=True, slots=True)
class Flag:
    """A switch of the configuration, and what the family's class takes where the file is silent."""

    key: str
    default: bool


@dataclass(slots=True)
class Tally:
    """Parameters by group."""

    groups: Counter[Group] = field(default_factory=Counter)

    def add(self, group: Group, elements: int) -> None:
        self.groups[group] += elements

    @property
    def total(self) -> int:
        return sum(self.groups.values())


class Keys:
    """The language model's configuration, with the class defaults of sizes where it is a nested one."""

    def __init__(self, data: Mapping[str, object], defaults: Mapping[str, object] | None = None) -> None:
        self.data = data
        self.defaults = defaults or {}

    def optional(self, *names: str, high: int = MAX_COUNT) -> int | None:
        """The first of `names` that holds a value (0 is one); null where none does."""
        for name in names:
            value = self.data.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
                raise Uncounted(f"`{name}` is {shown(value)}, which is no size")
            return value
        return None

    def size(self, *names: str, high: int = MAX_COUNT) -> int:
        """A size above 0 that the count depends on. Raises Uncounted where the file does not hold it."""
        value = self.optional(*names, high=high)
        if value is None:
            known = next((self.defaults[name] for name in names if name in self.defaults), None)
            value = known if isinstance(known, int) else None
        if value is None:
            raise Uncounted(f"`{names[0]}` is missing")
        if value == 0:
            raise Uncounted(f"`{names[0]}` is 0")
        return value

    def flag(self, switch: Flag | bool) -> bool:
        if isinstance(switch, bool):
            return switch
        value = self.data.get(switch.key)
        if value is None:
            return switch.default
        if not isinstance(value, bool):
            raise Uncounted(f"`{switch.key}` is {shown(value)}, neither true nor false")
        return value

    def stated(self, key: str) -> bool:
        """Whether the key is in the file at all, be it as null: a class may mean something by null."""
        return key in self.data or key in self.defaults

    def numbers(self, key: str) -> list[int] | None:
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(entry) is int for entry in value):
            raise Uncounted(f"`{key}` is {shown(value)}, not a list of numbers")
        return value

    def words(self, key: str, length: int) -> list[str] | None:
        value = self.data.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != length or not all(isinstance(x, str) for x in value):
            raise Uncounted(f"`{key}` is {shown(value)}, not one name for each of {length} layers")
        return value
