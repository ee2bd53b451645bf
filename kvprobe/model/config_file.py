"""Reading a JSON file that somebody else wrote: bounded, and with errors that say what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

from kvprobe.errors import Problem, UsageError

MAX_CONFIG_BYTES = 16 << 20
"""A config.json has some kilobytes; the largest published ones, with label tables, some megabytes."""
_MAX_DEPTH = 64
_MAX_DIGITS = 400


def read_json_object(path: Path, *, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, object]:
    """The JSON object in `path`. Raises UsageError for anything else, with line and column where known."""
    return parse_json_object(read_bounded(path, max_bytes=max_bytes), str(path))


def refuse_special(path: Path) -> None:
    """Refuse pipes, devices and sockets, which could be read for ever or never answer."""
    try:
        special = path.exists() and not path.is_file()
    except (OSError, ValueError):
        # A name that the system cannot even look up; opening it says why.
        return
    if special:
        _fail(
            "not_a_file",
            f"{path.name} is no regular file",
            "give a config.json, a .gguf file or a directory",
            path,
        )


def read_bounded(path: Path, *, max_bytes: int) -> bytes:
    """The bytes of a regular file of at most `max_bytes`."""
    refuse_special(path)
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except FileNotFoundError:
        _fail("model_not_found", "there is no such file", "check the path given to --model", path)
    except ValueError:
        _fail("model_not_found", "there is no file of that name", "check the path given to --model", path)
    except OSError as error:
        _fail("model_unreadable", f"cannot be read: {error.strerror}", "check the file's permissions", path)
    if len(data) > max_bytes:
        message = f"is larger than {max_bytes >> 20} MiB, no model configuration is"
        _fail("config_too_large", message, "use the config.json that the model was published with", path)
    return data


def parse_json_object(data: bytes, source: str) -> dict[str, object]:
    """`data` as a JSON object; NaN, too deep nesting and duplicate sizes of text are refused by name."""
    path = Path(source)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        _fail("config_not_utf8", "is not UTF-8 text", "this is no config.json; check the path", path)
    if _too_deep(text):
        _fail("config_too_deep", f"nests deeper than {_MAX_DEPTH} levels", "use the published file", path)
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_int=_bounded_int)
    except json.JSONDecodeError as error:
        problem = Problem(
            code="config_not_json",
            message=f"is no valid JSON: {error.msg}",
            fix="use the config.json that the model was published with",
            path=source,
            line=error.lineno,
            column=error.colno,
        )
        raise UsageError(problem) from None
    except ValueError as error:
        _fail("config_bad_number", f"holds {error}", "write a plain number, or null", path)
    if not isinstance(value, dict):
        found = type(value).__name__
        _fail(
            "config_not_object", f"holds a JSON {found}, not an object", "use the published config.json", path
        )
    return value


def _refuse_constant(name: str) -> float:
    # Infinity stands in real files (time_step_limit of Mamba-2); it is no size and never read as one.
    if name == "NaN":
        raise ValueError("NaN, which is no number")
    return float("inf") if name == "Infinity" else float("-inf")


def _bounded_int(text: str) -> int:
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _too_deep(text: str) -> bool:
    """Whether brackets nest too deep. Those inside strings are skipped; the scan is linear."""
    depth, inside, escaped = 0, False, False
    for char in text:
        if inside:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                inside = False
        elif char == '"':
            inside = True
        elif char in "[{":
            depth += 1
            if depth > _MAX_DEPTH:
                return True
        elif char in "]}":
            depth -= 1
    return False


def _fail(code: str, message: str, fix: str, path: Path) -> NoReturn:
    raise UsageError(Problem(code=code, message=message, fix=fix, path=str(path)))
