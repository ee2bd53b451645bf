"""The bytes of a configuration file -> text, and plain scalars -> values."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from kvprobe.errors import Problem, UsageError

MAX_BYTES = 1 << 20
MAX_NUMBER_CHARS = 40

_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}
_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_INFINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)\Z")
_NAN = {".nan", ".NaN", ".NAN"}


def read_text(path: Path, shown: str) -> str:
    """The text of a configuration file; UsageError when it is none that can be read."""

    def refuse(code: str, message: str, fix: str, line: int | None = None) -> UsageError:
        return UsageError(Problem(code, message, fix, shown, line))

    try:
        if not path.is_file():
            kind = "is a directory" if path.is_dir() else "is not a regular file"
            raise refuse("not_a_file", f"{shown} {kind}", "give the path of a YAML file")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        message = f"{shown} cannot be read: {error.strerror or error}"
        raise refuse("unreadable", message, "check the path and its permissions") from error
    if len(data) > MAX_BYTES:
        raise refuse(
            "too_large",
            f"{shown} is larger than {MAX_BYTES // 1024} KiB, which no workload file is",
            "check that this is the file you meant",
        )
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or (
        b"\0" in data[:2] and len(data) > 1 and data.count(b"\0") > 1
    ):
        raise refuse("encoding", f"{shown} is UTF-16 or UTF-32 text", "save it as UTF-8")
    if b"\0" in data:
        raise refuse("binary", f"{shown} is a binary file (it holds NUL bytes)", "give a YAML text file")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        message = f"{shown} is not UTF-8: byte {data[error.start]:#04x} at offset {error.start}"
        raise refuse("encoding", message, "save it as UTF-8", line) from error


def resolve_scalar(text: str) -> Any:
    """The value of a plain scalar by the YAML 1.2 core schema (yaml.org/spec/1.2.2, 10.3.2).

    ValueError for numbers that are absurdly long or not finite.
    """
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if not (text[0] in "+-." or text[0].isdigit()):
        return text
    if _INFINITE.match(text) or text in _NAN:
        raise ValueError(f"`{text}` is not a finite number")
    base = 10 if _INT.match(text) else 8 if _OCTAL.match(text) else 16 if _HEX.match(text) else None
    if base is None and not _FLOAT.match(text):
        return text
    if len(text) > MAX_NUMBER_CHARS:
        raise ValueError(f"this number has more than {MAX_NUMBER_CHARS} characters")
    if base is not None:
        return int(text, 10) if base == 10 else int(text[2:], base)
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"`{text}` is not a finite number")
    return number
