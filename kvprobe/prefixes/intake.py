"""Request logs in OpenAI's form: one JSON object a line, as proxies, batch files and gateways write.

Known shapes: the request body itself; `{"body": {…}}` (batch files); `{"request": {…}, "response": {…}}`;
each with or without a time, a replica and the usage of the answer. All of it is foreign text.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from kvprobe.errors import Problem, UsageError
from kvprobe.prefixes.rows import Sent

MAX_LINE_CHARS = 16 << 20
MAX_LINES = 2_000_000
_SNIFF_BYTES = 1 << 20
_TIMES = ("timestamp", "time", "ts", "t", "created", "created_at", "start_time", "@timestamp")
_REPLICAS = ("replica", "backend", "upstream", "server", "pod", "worker_id", "dp_rank")
_ADAPTERS = ("lora", "lora_name", "lora_path", "adapter", "adapter_id")


@dataclass(slots=True)
class RequestLog:
    """What was read, in order of time where every line has one."""

    path: str
    sent: list[Sent] = field(default_factory=list)
    lines: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Why lines were left out, and how many."""
    timed: bool = False


def is_request_log(path: str) -> bool:
    """Does the first line that is not blank look like a request? Never raises."""
    try:
        with open(path, "rb") as file:
            head = file.read(_SNIFF_BYTES)
    except OSError:
        return False
    line = next((x for x in head.split(b"\n") if x.strip()), b"")
    if not line.lstrip().startswith(b"{"):
        return False
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        # A line that is longer than what was looked at: its keys stand at its start.
        return len(line) >= _SNIFF_BYTES // 2 and (b'"messages"' in line or b'"prompt"' in line)
    return isinstance(row, dict) and _body(row) is not None


def read_request_log(path: str) -> RequestLog:
    """Raises `UsageError` when there is no request in it at all."""
    log = RequestLog(path)
    found: list[tuple[float | None, Sent]] = []
    try:
        with Path(path).open(encoding="utf-8-sig", errors="replace") as file:
            for number, line in _lines(file, log):
                made = _request(line, number, log)
                if made is not None:
                    found.append(made)
    except OSError as error:
        message = f"{path}: {error.strerror}"
        raise UsageError(Problem("unreadable", message, "give a file that can be read", path)) from error
    if not found:
        why = ", ".join(f"{n} {reason}" for reason, n in log.skipped.most_common(3)) or "it is empty"
        fix = (
            'a line is {"messages": [{"role": "user", "content": "…"}]}, or one with `request` and `response`'
        )
        raise UsageError(Problem("no_requests", f"the file holds no request: {why}", fix, path))
    log.timed = all(t is not None for t, _ in found)
    if log.timed:
        found.sort(key=lambda pair: pair[0] or 0.0)
    log.sent = [item for _, item in found]
    return log


def _lines(file: Any, log: RequestLog) -> Iterator[tuple[int, str]]:
    number = 0
    while line := file.readline(MAX_LINE_CHARS):
        number += 1
        if number > MAX_LINES:
            log.skipped["lines beyond the first 2,000,000"] += 1
            return
        if not line.endswith("\n") and len(line) >= MAX_LINE_CHARS:
            while (rest := file.readline(MAX_LINE_CHARS)) and not rest.endswith("\n"):
                pass
            log.skipped["far too long"] += 1
            continue
        if line.strip():
            log.lines += 1
            yield number, line


def _request(line: str, number: int, log: RequestLog) -> tuple[float | None, Sent] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        log.skipped["not JSON"] += 1
        return None
    body = _body(row) if isinstance(row, dict) else None
    text = _text(body) if body is not None else None
    if body is None or text is None:
        log.skipped["without a prompt"] += 1
        return None
    usage = _usage(row)
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else usage.get("cached_tokens")
    sent = Sent(
        text=text,
        tokens=_count(usage.get("prompt_tokens")),
        cached=_count(cached),
        key=_key(body),
        bypass=bypass_of(body),
        replica=_named(row, _REPLICAS),
        line=number,
    )
    return _time(row), sent


def _body(row: dict[str, Any]) -> dict[str, Any] | None:
    """The object that holds `messages` or `prompt`, at most two levels down."""
    for outer in (row, row.get("body"), row.get("request"), row.get("payload"), row.get("data")):
        for inner in (outer, outer.get("body") if isinstance(outer, dict) else None):
            if isinstance(inner, dict) and ("messages" in inner or "prompt" in inner):
                return inner
    return None


def _text(body: dict[str, Any]) -> str | None:
    """The prompt in the order in which templates write it: tools, then the messages."""
    if isinstance(body.get("prompt"), str):
        return str(body["prompt"])
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        return None
    parts = []
    tools = body.get("tools")
    if isinstance(tools, list) and tools:
        parts += ["<tools>\n", *(json.dumps(tool, ensure_ascii=False) + "\n" for tool in tools), "</tools>\n"]
    for message in messages:
        if not isinstance(message, dict):
            return None
        parts.append(f"<{message.get('role', 'user')}>\n{_content(message)}\n")
    return "".join(parts)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    calls = message.get("tool_calls")
    called = json.dumps(calls, ensure_ascii=False) if calls else ""
    if isinstance(content, list):
        return "".join(_part(part) for part in content) + called
    return (content if isinstance(content, str) else "") + called


def _part(part: Any) -> str:
    """Text as it is; an image as a name of its bytes, for equal images share."""
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    data = json.dumps(part, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")
    return f"<image {hashlib.blake2b(data, digest_size=8).hexdigest()}>"


def _key(body: dict[str, Any]) -> tuple[str, ...]:
    """What the engine puts into its cache key beside the tokens: never shown, only told apart."""
    stated = body.get("extra_body")
    extra = stated if isinstance(stated, dict) else {}
    salt = body.get("cache_salt", extra.get("cache_salt"))
    adapters = [str(body.get(name, extra.get(name))) for name in _ADAPTERS if name in body or name in extra]
    return (str(body.get("model", "")), "" if salt is None else str(salt), *adapters)


def bypass_of(body: dict[str, Any]) -> str | None:
    """A request option that keeps a prompt out of the cache (vLLM, SGLang)."""
    if body.get("prompt_logprobs") is not None:
        return "prompt_logprobs"
    start = body.get("logprob_start_len")
    return "logprob_start_len" if isinstance(start, int) and start >= 0 and start != -1 else None


def _usage(row: dict[str, Any]) -> dict[str, Any]:
    answer = row.get("response")
    inner = answer.get("body") if isinstance(answer, dict) else None
    for holder in (row, answer, inner):
        if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
            return dict(holder["usage"])
    return {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else None


def _named(row: dict[str, Any], names: tuple[str, ...]) -> str | None:
    for holder in (row, row.get("response")):
        if isinstance(holder, dict):
            for name in names:
                if isinstance(holder.get(name), str | int) and not isinstance(holder.get(name), bool):
                    return str(holder[name])
    return None


def _time(row: dict[str, Any]) -> float | None:
    """Seconds on any one clock: a number, or ISO 8601."""
    for holder in (row, row.get("request"), row.get("response")):
        if not isinstance(holder, dict):
            continue
        for name in _TIMES:
            value = holder.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e20:
                return float(value)
            if isinstance(value, str):
                try:
                    return datetime.fromisoformat(value).timestamp()
                except (ValueError, OverflowError):
                    continue
    return None
