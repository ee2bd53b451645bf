"""Reading a JSON object of a model's author: bounded, with errors that name the field and the file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, overload

from reference_server.errors import ConfigError

MOST_JSON_BYTES = 64 * 1024**2
"""Of one JSON file of a model; the largest tokenizers have some 35 MB."""


class Fields:
    """One object, and where it stands."""

    def __init__(self, raw: dict[str, Any], source: str) -> None:
        self.raw = raw
        self.source = source

    def error(self, message: str) -> ConfigError:
        return ConfigError(f"{self.source}: {message}")

    def whole(self, key: str, *, high: int, low: int = 1, default: int | None = None) -> int:
        """A whole number from `low` to `high`; null and absent give the default."""
        value = self.raw.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(f"{key} must be a whole number from {low} to {high}, and is {value!r:.80}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0."""
        value = self.raw.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self.error(f"{key} must be a number above 0, and is {value!r:.80}")
        return float(value)

    @overload
    def text(self, key: str, default: str) -> str: ...
    @overload
    def text(self, key: str, default: None) -> str | None: ...
    def text(self, key: str, default: str | None) -> str | None:
        value = self.raw.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(f"{key} must be text, and is {value!r:.80}")
        return value

    def section(self, key: str) -> Fields | None:
        """An object within; None when null or absent."""
        value = self.raw.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(f"{key} must be an object, and is {value!r:.80}")
        return Fields(value, f"{self.source}, {key}")


def read_json_object(path: Path) -> dict[str, Any]:
    """Raise `ConfigError` unless `path` is a JSON object of a size that can be meant."""
    try:
        if path.stat().st_size > MOST_JSON_BYTES:
            raise ConfigError(f"{path} is larger than {MOST_JSON_BYTES} B")
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return found


def read_fields(path: Path) -> Fields:
    return Fields(read_json_object(path), str(path))
