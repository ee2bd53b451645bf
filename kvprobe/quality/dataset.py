"""The user's own questions: JSON lines with `prompt` (or `messages` of one user turn) and `answer`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from kvprobe.errors import Problem, UsageError
from kvprobe.quality.items import Item, Method
from kvprobe.quality.judging import numbers, valid_json, words

MAX_BYTES = 256 << 20
MAX_LINE_CHARS = 1 << 20
MAX_PROBLEMS = 20
DEFAULT_MAX_TOKENS = 64
METHODS = get_args(Method)
TOGETHER = "all"
"""The name under which all kinds are told together."""
_FIX = '{"prompt": "What is 2 plus 2?", "answer": "4", "match": "number", "max_tokens": 12, "kind": "sums"}'


@dataclass(slots=True)
class Dataset:
    """The questions of a file that are asked, and what of it is not."""

    items: list[Item] = field(default_factory=list)
    repeated: int = 0
    """Lines whose question stands in the file already: asked twice it would count as two, and say nothing
    more."""
    left: int = 0
    """Lines behind the last question that was taken."""


def read_dataset(path: Path, limit: int | None) -> Dataset:
    """All mistakes of the file at once, each with its line. `limit` takes the first so many."""
    problems: list[Problem] = []
    found = Dataset()
    try:
        if not path.is_file():
            raise UsageError(Problem("no_file", f"`{path}` is no file", "name a JSON lines file", str(path)))
        if path.stat().st_size > MAX_BYTES:
            message = f"the file is larger than {MAX_BYTES >> 20} MiB"
            raise UsageError(Problem("too_large", message, "give a part of it", str(path)))
        _read(path, limit, found, problems)
    except OSError as error:
        raise UsageError(
            Problem("unreadable", f"{path}: {error.strerror}", "give a readable file")
        ) from error
    if problems:
        raise UsageError(*problems)
    if not found.items:
        raise UsageError(Problem("empty", "the file holds no question", f"a line is {_FIX}", str(path)))
    return found


def _read(path: Path, limit: int | None, found: Dataset, problems: list[Problem]) -> None:
    asked: set[tuple[str, str, str, int]] = set()
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            if limit is not None and len(found.items) >= limit:
                found.left += 1
                continue
            item = _item(line, number, path, problems)
            if len(problems) >= MAX_PROBLEMS:
                return
            if item is None:
                continue
            same = (item.text, item.answer, item.method, item.max_tokens)
            found.repeated += same in asked
            found.items += [item] if same not in asked else []
            asked.add(same)


def _item(line: str, number: int, path: Path, problems: list[Problem]) -> Item | None:
    """The question of a line; what is wrong with it is added to `problems`."""
    row: Any = None
    if len(line) > MAX_LINE_CHARS:
        wrong: str | None = f"this line is longer than {MAX_LINE_CHARS:,} characters"
    else:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        wrong = _wrong(row)
    if wrong is not None:
        problems.append(Problem("bad_item", wrong, f"a line is {_FIX}", str(path), number))
        return None
    return Item(
        id=str(row.get("id", number))[:200],
        kind=str(row.get("kind", "dataset"))[:40],
        text=_prompt(row) or "",
        answer=_answer(row) or "",
        method=row.get("match", "contains"),
        max_tokens=row.get("max_tokens", DEFAULT_MAX_TOKENS),
    )


def _wrong(row: Any) -> str | None:
    """Why a line is no question; null for one that is."""
    if not isinstance(row, dict):
        return "this line is no JSON object"
    if _prompt(row) is None:
        return "`prompt` (a text), or `messages` with one user message, is missing"
    answer = _answer(row)
    if answer is None or not answer.strip():
        return "`answer` (a text or a number) is missing"
    method = row.get("match", "contains")
    if method not in METHODS:
        return f"`match` is one of {', '.join(METHODS)}"
    if (unfit := _unfit(method, answer)) is not None:
        return f"`answer` holds no {unfit}, which `match` compares: every answer or none would be right"
    tokens = row.get("max_tokens", DEFAULT_MAX_TOKENS)
    if type(tokens) is not int or not 1 <= tokens <= 8_192:
        return "`max_tokens` is a whole number from 1 to 8,192"
    if str(row.get("kind", "")).strip() == TOGETHER:
        return f"`kind` may not be `{TOGETHER}`, under which all kinds are told together"
    return None


def _unfit(method: str, answer: str) -> str | None:
    """What an answer must hold for its method and does not."""
    match method:
        case "number" | "last_number":
            return None if numbers(answer) else "number"
        case "words":
            return None if words(answer) else "word"
        case "json":
            return None if valid_json(answer) else "JSON object"
    return None


def _answer(row: dict[str, Any]) -> str | None:
    """As text; an object is the answer of a JSON question."""
    answer = row.get("answer")
    if isinstance(answer, dict) and row.get("match") == "json":
        return json.dumps(answer)
    return None if isinstance(answer, bool) or not isinstance(answer, str | int | float) else str(answer)


def _prompt(row: dict[str, Any]) -> str | None:
    if isinstance(row.get("prompt"), str) and row["prompt"].strip():
        return str(row["prompt"])
    messages = row.get("messages")
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], dict):
        content, role = messages[0].get("content"), messages[0].get("role", "user")
        return content if isinstance(content, str) and content.strip() and role == "user" else None
    return None
