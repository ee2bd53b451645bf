"""Plain values -> YAML that any reader, old or new, takes the same way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvprobe.load.yaml_source import KeyPath

_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_NOT_BARE = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "none"}
"""Words that YAML 1.1 or 1.2 readers take for something else, or that people might."""


def write_yaml(value: Mapping[str, Any], unexpanded: Mapping[KeyPath, str]) -> str:
    """Block style, keys in the order given; strings of `unexpanded` paths as they were written.

    A `${` in any other string is written `$${`, so that reading gives the same text again.
    """
    return "".join(_lines(value, (), 0, unexpanded))


def _lines(value: Any, path: KeyPath, depth: int, unexpanded: Mapping[KeyPath, str]) -> list[str]:
    indent = "  " * depth
    items = value.items() if isinstance(value, Mapping) else enumerate(value)
    lines = []
    for key, child in items:
        head = f"{_string(str(key))}:" if isinstance(value, Mapping) else "-"
        at = (*path, key)
        if isinstance(child, (Mapping, list, tuple)) and child and at not in unexpanded:
            lines.append(f"{indent}{head}\n")
            lines.extend(_lines(child, at, depth + 1, unexpanded))
        else:
            lines.append(f"{indent}{head} {_scalar(child, unexpanded.get(at))}\n")
    return lines


def _scalar(value: Any, written: str | None) -> str:
    if written is not None:
        return _string(written)
    if isinstance(value, str):
        return _string(value.replace("${", "$${"))
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Mapping, list, tuple)):
        return "{}" if isinstance(value, Mapping) else "[]"
    return repr(value)


def _string(text: str) -> str:
    if _BARE.match(text) and text.lower() not in _NOT_BARE:
        return text
    return '"' + "".join(_escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    code = ord(char)
    if char in '"\\':
        return "\\" + char
    if 0x20 <= code < 0x7F or (code > 0xA0 and code not in (0x2028, 0x2029, 0xFEFF) and char.isprintable()):
        return char
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
