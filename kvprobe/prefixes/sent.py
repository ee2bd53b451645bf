"""A prompt that was sent, with what else decides about a hit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sent:
    """One prompt, in the order in which it was sent.

    Each model has a cache of its own. `key` is what the engine adds to its cache key (a salt, an adapter):
    prompts with other keys never share. `bypass` names a request option that leaves the cache out altogether.
    """

    text: str
    tokens: int | None = None
    """As the server counted it; null where it did not say."""
    cached: int | None = None
    model: str = ""
    key: tuple[str, ...] = ()
    bypass: str | None = None
    replica: str | None = None
    line: int | None = None
    warmup: bool = False
