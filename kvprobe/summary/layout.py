"""What the prompts that were sent share, as far as it was analysed (`prompt_layout` facts).

The analysis itself is `kvprobe.load.prompt_layout`; here its facts are read back, tolerant of a run
directory that an older version wrote: what is absent is null.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import msgspec

from kvprobe.evidence.facts import Fact


class PromptLayout(msgspec.Struct, kw_only=True):
    """Shared prefixes of the prompts, in tokens; ratios are of all prompt tokens."""

    known: bool = False
    ceiling_as_sent: float | None = None
    """Best hit rate that these prompts allow in the order sent, with unlimited cache."""
    ceiling_if_moved: float | None = None
    """The same if the changing segment stood behind the shared body."""
    ceiling_if_ordered: float | None = None
    """The same if lines that prompts share always came in one order."""
    reordered_prompts: int | None = None
    """How many prompts have them in another order; null where one order would not help."""
    reordered_lines: int | None = None
    """How many lines of such a prompt are not where they were first (median)."""
    reordered_from_token: int | None = None
    """Index of the token from which on they differ (median)."""
    diverge_token: int | None = None
    """Index of the first token at which prompts that share a body part."""
    diverge_before: str | None = None
    """The text that both still share, up to the first character that differs; foreign text."""
    diverge_texts: list[str] = msgspec.field(default_factory=list)
    """How two prompts go on from there; foreign text."""
    shared_body_tokens: int | None = None
    """Tokens of the body that is the same behind the changing segment."""
    changing_tokens: int | None = None
    shared_prefix_tokens: int | None = None
    """Typical (median) length of the longest prefix that a prompt shares with an earlier one."""
    reuse_distance_tokens: list[int] = msgspec.field(default_factory=list)
    """Quantiles, evenly spaced up to the largest: tokens of other blocks that were used between two
    uses of a block. A cache that holds fewer has dropped it by then. Empty when not known."""
    block_size_tokens: int | None = None
    """Null when the analysis had to assume one."""
    source: str = "prompt_layout"


def read_layout(facts: Iterable[Fact]) -> PromptLayout:
    """The layout out of the facts; `known` is false when nothing was analysed."""
    found: dict[str, Any] = {}
    for fact in facts:
        if fact.name == "prompt_layout" and isinstance(fact.value, dict):
            found.update(fact.value)
    if not found:
        return PromptLayout()
    return PromptLayout(
        known=True,
        ceiling_as_sent=_ratio(found.get("ceiling_as_sent")),
        ceiling_if_moved=_ratio(found.get("ceiling_if_moved")),
        ceiling_if_ordered=_ratio(found.get("ceiling_if_ordered")),
        reordered_prompts=_whole(found.get("reordered_prompts")),
        reordered_lines=_whole(found.get("reordered_lines")),
        reordered_from_token=_whole(found.get("reordered_from_token")),
        diverge_token=_whole(found.get("diverge_token")),
        diverge_before=before if isinstance(before := found.get("diverge_before"), str) else None,
        diverge_texts=[t for t in found.get("diverge_texts") or [] if isinstance(t, str)],
        shared_body_tokens=_whole(found.get("shared_body_tokens")),
        changing_tokens=_whole(found.get("changing_tokens")),
        shared_prefix_tokens=_whole(found.get("shared_prefix_tokens")),
        reuse_distance_tokens=_distances(found.get("reuse_distance_tokens")),
        block_size_tokens=None if found.get("block_size_assumed") else _whole(found.get("block_size")),
    )


def _distances(value: Any) -> list[int]:
    found = [_whole(v) for v in value] if isinstance(value, list) else []
    return [v for v in found if v is not None] if None not in found else []


def _ratio(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if 0.0 <= value <= 1.0 else None


def _whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return int(value) if value >= 0 else None
