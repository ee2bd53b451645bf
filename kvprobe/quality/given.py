"""One answer as it is judged, read from what a server sent. All of it is foreign."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Given:
    """One answer. `tokens`, `logprobs` and `alternatives` are null where the server gives none."""

    text: str = ""
    finish_reason: str | None = None
    tokens: list[str] | None = None
    logprobs: list[float] | None = None
    alternatives: list[dict[str, float]] | None = None
    """At each token, the likeliest ones and their log probabilities."""
    model: str | None = None
    """As the answer names it."""
    error: str | None = None
    broken: bool = False
    """An error of the server as a whole, not a refusal of this question."""
    refused: bool = False
    """A 4xx that speaks of the request."""
    wait_s: float | None = None
    """The server asks for patience."""


NOT_ASKED = "not asked"
"""How the error begins of a question that a side was not asked any more."""
_NO_FORM = "the answer has another form than OpenAI's"


def read_answer(body: bytes) -> Given:
    """The body of a 200."""
    try:
        document = json.loads(body)
        choice = document["choices"][0]
        message = choice.get("message")
        text = _content(message) if isinstance(message, dict) else choice.get("text")
        found = choice.get("logprobs")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return Given(error=_NO_FORM, broken=True)
    given = Given(text=text if isinstance(text, str) else "")
    given.finish_reason, given.model = _text(choice.get("finish_reason")), _text(document.get("model"))
    _read_logprobs(given, found)
    return given


def _content(message: dict[str, Any]) -> str | None:
    """Text, or a list of text parts; of a reasoning model that got no further, its reasoning."""
    content = message.get("content")
    if isinstance(content, list):
        parts = [p.get("text") for p in content if isinstance(p, dict)]
        content = "".join(p for p in parts if isinstance(p, str))
    return _text(content) or _text(message.get("reasoning_content")) or _text(message.get("reasoning"))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _read_logprobs(given: Given, found: Any) -> None:
    """Chat's `content` list, or the lists of `/v1/completions`; all tokens, or none at all."""
    if not isinstance(found, dict):
        return
    content, lists = found.get("content"), (found.get("tokens"), found.get("token_logprobs"))
    tokens: list[Any]
    values: list[Any]
    if isinstance(content, list):
        rows = [e if isinstance(e, dict) else {} for e in content]
        tokens = [e.get("token") for e in rows]
        values = [e.get("logprob") for e in rows]
        tops = [_of_list(e.get("top_logprobs")) for e in rows]
    elif isinstance(lists[0], list) and isinstance(lists[1], list) and len(lists[0]) == len(lists[1]):
        tokens, values = lists[0], lists[1]
        given_tops = found.get("top_logprobs")
        stated = given_tops if isinstance(given_tops, list) and len(given_tops) == len(tokens) else None
        tops = [_of_pairs(t.items()) if isinstance(t, dict) else {} for t in stated or [None] * len(tokens)]
    else:
        return
    numbers = [_number(v) for v in values]
    if not all(isinstance(t, str) for t in tokens) or None in numbers or (given.text and not tokens):
        return
    given.tokens, given.logprobs = tokens, [n for n in numbers if n is not None]
    given.alternatives = tops if any(tops) else None


def _of_list(found: Any) -> dict[str, float]:
    entries = found if isinstance(found, list) else []
    return _of_pairs((e.get("token"), e.get("logprob")) for e in entries if isinstance(e, dict))


def _of_pairs(pairs: Iterable[tuple[Any, Any]]) -> dict[str, float]:
    """Of tokens that are written alike (parts of a character), the likeliest."""
    out: dict[str, float] = {}
    for token, value in pairs:
        number = _number(value)
        if isinstance(token, str) and number is not None:
            out[token] = max(number, out.get(token, -math.inf))
    return out


def _number(value: Any) -> float | None:
    """A log probability; null for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return min(number, 0.0) if math.isfinite(number) and number < 1e-3 else None
