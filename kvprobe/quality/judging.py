"""Is an answer right? Lenient in form, strict in content: what is judged is the cache, not manners."""

from __future__ import annotations

import json
import re

from kvprobe.quality.items import Item

_PIECES = re.compile(r"\d+|[^\W\d_]+")
_NUMBER = re.compile(r"(?:(?<![\w)])[-\u2212])?\d(?:[\d ]{0,40}\d)?(?:,\d{3}(?!\d))*(?:\.\d{1,40})?")
"""Digits may stand apart (`4 8 2 1`): some tokenizers write them so. A minus behind a word or a digit is a
dash."""
MAX_ANSWER_CHARS = 20_000


def right(item: Item, answer: str) -> bool:
    """By the item's method; an answer is cut at a length that no right one has."""
    text = answer[:MAX_ANSWER_CHARS]
    match item.method:
        case "exact":
            return text.strip() == item.answer.strip()
        case "contains":
            return item.answer.casefold() in text.casefold()
        case "number":
            return bool(wanted := numbers(item.answer)) and numbers(text)[:1] == wanted[:1]
        case "last_number":
            return bool(wanted := numbers(item.answer)) and numbers(text)[-1:] == wanted[-1:]
        case "words":
            told = words(item.answer)
            return bool(told) and words(text)[: len(told)] == told
        case "json":
            return valid_json(text) and _same(_loads(text), _loads(item.answer))


def valid_json(answer: str) -> bool:
    """Does the answer hold one JSON object? What a model puts around it is let pass."""
    return isinstance(_loads(answer), dict)


def _loads(answer: str) -> object:
    begin, end = answer.find("{"), answer.rfind("}")
    if begin < 0 or end < begin:
        return None
    try:
        return json.loads(answer[begin : end + 1])
    except (ValueError, RecursionError):
        return None


def _same(a: object, b: object) -> bool:
    """Equal but for spaces inside texts and keys, which tokenizers of words put there."""
    if isinstance(a, dict) and isinstance(b, dict):
        left, right_ = ({_plain(k): _plain(v) for k, v in d.items()} for d in (a, b))
        return left == right_
    return False


def _plain(value: object) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value)
    except RecursionError:
        return ""
    return "".join(text.split()).casefold()


def numbers(text: str) -> list[str]:
    """All numbers of a text, written in one way: `1,234.50` is `1234.5`; leading zeros are part of it."""
    return [_plain_number(found) for found in _NUMBER.findall(text)]


def _plain_number(found: str) -> str:
    text = found.replace(" ", "").replace(",", "").replace("\u2212", "-")
    return text.rstrip("0").rstrip(".") if "." in text else text


def words(text: str) -> list[str]:
    return [piece.casefold() for piece in _PIECES.findall(text)]
