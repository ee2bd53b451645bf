"""The user's own questions: JSON lines with `prompt` (or `messages` of one user turn) and `answer`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

from kvprobe.errors import Problem, UsageError
from kvprobe.quality.items import Item, Method

MAX_BYTES = 256 << 20
MAX_LINE_CHARS = 1 << 20
DEFAULT_MAX_TOKENS = 64
METHODS = get_args(Method)
_FIX = '{"prompt": "What is 2 plus 2?", "answer": "4", "match": "number", "max_tokens": 12, "kind": "sums"}'


def read_dataset(path: Path, limit: int | None) -> list[Item]:
    """All mistakes of the file at once, each with its line. `limit` takes the first so many."""
    problems: list[Problem] = []
    found: list[Item] = []
    try:
        if not path.is_file():
            raise UsageError(Problem("no_file", f"`{path}` is no file", "name a JSON lines file", str(path)))
        if path.stat().st_size > MAX_BYTES:
            message = f"the file is larger than {MAX_BYTES >> 20} MiB"
            raise UsageError(Problem("too_large", message, "give a part of it", str(path)))
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            for number, line in enumerate(file, 1):
                if line.strip() and (limit is None or len(found) < limit):
                    item = _item(line, number, path, problems)
                    found += [item] if item is not None else []
    except OSError as error:
        raise UsageError(
            Problem("unreadable", f"{path}: {error.strerror}", "give a readable file")
        ) from error
    if problems:
        raise UsageError(*problems[:20])
    if not found:
        raise UsageError(Problem("empty", "the file holds no question", f"a line is {_FIX}", str(path)))
    return found


def _item(line: str, number: int, path: Path, problems: list[Problem]) -> Item | None:
    """The question of a line; what is wrong with it is added to `problems`."""
    try:
        row: Any = json.loads(line) if len(line) <= MAX_LINE_CHARS else None
    except (ValueError, RecursionError):
        row = None
    wrong = _wrong(row)
    if wrong is not None:
        problems.append(Problem("bad_item", wrong, f"a line is {_FIX}", str(path), number))
        return None
    return Item(
        id=str(row.get("id", number)),
        kind=str(row.get("kind", "dataset"))[:40],
        text=_prompt(row) or "",
        answer=str(row["answer"]),
        method=row.get("match", "contains"),
        max_tokens=row.get("max_tokens", DEFAULT_MAX_TOKENS),
    )


def _wrong(row: Any) -> str | None:
    """Why a line is no question; null for one that is."""
    if not isinstance(row, dict):
        return "this line is no JSON object"
    if _prompt(row) is None:
        return "`prompt` (a text), or `messages` with one user message, is missing"
    answer = row.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        return "`answer` (a text or a number) is missing"
    if row.get("match", "contains") not in METHODS:
        return f"`match` is one of {', '.join(METHODS)}"
    tokens = row.get("max_tokens", DEFAULT_MAX_TOKENS)
    if type(tokens) is not int or not 1 <= tokens <= 8_192:
        return "`max_tokens` is a whole number from 1 to 8,192"
    return None


def _prompt(row: dict[str, Any]) -> str | None:
    if isinstance(row.get("prompt"), str) and row["prompt"].strip():
        return str(row["prompt"])
    messages = row.get("messages")
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], dict):
        content = messages[0].get("content")
        return content if isinstance(content, str) and content.strip() else None
    return None
