"""Secrets of this process that must stand in nothing that is kept or shown.

A server can send back what it was sent: in an error body, a redirect, an id. So the key is masked
where evidence is encoded and where messages are printed, not where each of them might arise.
"""

from __future__ import annotations

import json
from typing import Any

MASK = "[key]"
MIN_CHARS = 6
"""What is shorter (`x`, `none`) protects nothing, and would be found in ordinary words."""

_hidden: set[str] = set()


def hide(secret: str | None) -> None:
    """From here on `masked` leaves `secret` out."""
    if secret is not None and len(secret) >= MIN_CHARS:
        _hidden.add(secret)


def masked(text: str) -> str:
    """`text` with each secret replaced."""
    for secret in _hidden:
        text = text.replace(secret, MASK)
    return text


def occur_in(encoded: bytes) -> bool:
    """Whether a JSON text may hold a secret."""
    return any(json.dumps(secret)[1:-1].encode() in encoded for secret in _hidden)


def masked_value(value: Any) -> Any:
    """A JSON value with the secrets replaced in all its strings; numbers stay what they are."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, dict):
        return {masked_value(key): masked_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked_value(item) for item in value]
    return value
