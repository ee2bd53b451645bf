"""JSON lines: what a collector or a structured logger wrapped around a message.

Docker's json-file, Fluent Bit, GCP and AWS records, journalctl -o json, structlog, zap, zerolog,
python-json-logger, Rust's tracing. A JSON object that is no log record (a request body, a metrics
dump) is left as it stands and told apart, so that the texts inside it convince nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from kvprobe.observe.logs.clock import epoch_of_number, epoch_s

_MESSAGES = ("log", "message", "msg", "MESSAGE", "event", "@message", "textPayload", "text", "line", "body")
_TIMES = ("time", "ts", "timestamp", "@timestamp", "asctime", "T", "t", "datetime", "created")
_LEVELS = ("level", "levelname", "severity", "lvl", "L", "log.level", "PRIORITY")
_LOGGERS = (
    "logger",
    "name",
    "caller",
    "C",
    "target",
    "filename",
    "loggerName",
    "SYSLOG_IDENTIFIER",
    "source",
)
_MORE = (
    "exc_info",
    "exception",
    "exc_text",
    "stack_trace",
    "stacktrace",
    "stack",
    "error",
    "err",
    "traceback",
)
_INNER = ("jsonPayload", "fields", "record", "data", "_source")
_COLLECTORS = ("stream", "kubernetes", "__REALTIME_TIMESTAMP", "_BOOT_ID", "container_name", "logStream")
_REQUEST_KEYS = ("messages", "prompt", "prompts", "inputs", "input", "input_ids", "choices", "conversation")
_DEPTH = 3


@dataclass(slots=True)
class Record:
    """What a JSON log record says. `lines` are the message's lines and those of a traceback beside it."""

    lines: list[str]
    time_s: float | None = None
    level: str | None = None
    logger: str | None = None
    from_logger: bool = False
    """A structured logger's own record (against a collector's, whose message has its own prefixes)."""


def open_envelope(text: str) -> Record | None:
    """The record in a line that is one JSON object, null when it is none. Never raises."""
    if not (text.startswith("{") and text.endswith("}")):
        return None
    try:
        value = msgspec.json.decode(text.encode("utf-8", "replace"))
    except (msgspec.DecodeError, RecursionError, ValueError):
        return None
    return _record(value, _DEPTH) if isinstance(value, dict) else None


def is_request_body(text: str) -> bool:
    """A JSON object (perhaps cut off) with the keys of a request or an answer."""
    return text.startswith(("{", "[{")) and any(f'"{key}"' in text for key in _REQUEST_KEYS)


def _record(value: dict[str, Any], depth: int) -> Record | None:
    message = _first(value, _MESSAGES)
    if message is not None and message == value.get("text") and not isinstance(value.get("record"), dict):
        # `text` is loguru's, beside its `record`; elsewhere it is as likely what a user said.
        return _of(value, message) if any(key in value for key in _COLLECTORS) else None
    if message is None:
        inner = next((value[k] for k in _INNER if isinstance(value.get(k), dict)), None)
        outer = {key: value[key] for key in (*_TIMES, *_LEVELS) if key in value}
        found = _record(outer | inner, depth - 1) if inner is not None and depth > 0 else None
        return _with_outer(found, value) if found is not None else None
    return _of(value, message)


def _of(value: dict[str, Any], message: str) -> Record | None:
    time, level = _time(value), _first(value, _LEVELS)
    collected = any(key in value for key in _COLLECTORS) or ("log" in value and isinstance(value["log"], str))
    if time is None and level is None and not collected:
        return None
    lines = message.splitlines() or [""]
    for key in _MORE:
        if isinstance(more := value.get(key), str) and more not in message:
            lines += more.splitlines()
    return Record(
        lines=lines,
        time_s=time,
        level=level,
        logger=_first(value, _LOGGERS),
        from_logger=level is not None and not collected,
    )


def _with_outer(found: Record, value: dict[str, Any]) -> Record:
    found.time_s = found.time_s or _time(value)
    found.level = found.level or _first(value, _LEVELS)
    found.logger = found.logger or _first(value, _LOGGERS)
    found.from_logger = found.from_logger or found.level is not None
    return found


def _first(value: dict[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((value[k] for k in keys if isinstance(value.get(k), str) and value[k]), None)


def _time(value: dict[str, Any]) -> float | None:
    for key in (*_TIMES, "__REALTIME_TIMESTAMP"):
        told = value.get(key)
        if isinstance(told, bool):
            continue
        if isinstance(told, int | float):
            return epoch_of_number(float(told)) if abs(told) < 1e20 else None
        if isinstance(told, str) and told:
            return epoch_of_number(float(told)) if told.isdecimal() and len(told) < 20 else epoch_s(told)
    return None
