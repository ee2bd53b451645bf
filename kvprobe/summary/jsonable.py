"""Structs to JSON types. JSON knows no NaN and no infinity: they become null."""

from __future__ import annotations

import math
from typing import Any

import msgspec


def jsonable(value: Any) -> Any:
    """`value` as dicts, lists, strings, numbers and nulls."""
    return _finite(msgspec.to_builtins(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
