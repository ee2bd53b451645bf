"""llama.cpp beside its metrics: `GET /slots` and `GET /props`.

Since May 2025 its page has no KV gauge. /slots tells how far each busy slot has filled its context. It
does not tell whether the slots share one pool (`--kv-unified`) or each have their own, so there is no
share of "the pool" here: only how full the fullest slot is, which is true either way. What an idle slot
still keeps of its last prompt is not told.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.observe.dialects.model import Reading

SLOT_SERIES = (
    "engine.slots",
    "engine.slots_busy",
    "engine.slot_context_tokens",
    "engine.slot_usage_ratio_max",
    "engine.slot_tokens",
)


class _Slot(msgspec.Struct):
    n_ctx: int
    is_processing: bool
    n_prompt_tokens_processed: int = 0
    n_prompt_tokens_cache: int = 0
    next_token: Any = None

    def tokens(self) -> int:
        """Tokens in the slot's context: the prompt's part that is there, and what was generated."""
        steps = self.next_token if isinstance(self.next_token, list) else [self.next_token]
        decoded = 0
        for step in steps:
            if isinstance(step, dict) and isinstance(step.get("n_decoded"), int):
                decoded += step["n_decoded"]
        return max(0, self.n_prompt_tokens_processed + self.n_prompt_tokens_cache + decoded)


def read_slots(body: bytes) -> list[Reading]:
    """Readings out of an answer of /slots; empty for anything else than a list of slots."""
    try:
        slots = msgspec.json.decode(body, type=list[_Slot])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return []
    if not slots:
        return []
    busy = [slot for slot in slots if slot.is_processing]
    readings: list[Reading] = [
        ("engine.slots", {}, float(len(slots))),
        ("engine.slots_busy", {}, float(len(busy))),
        ("engine.slot_context_tokens", {}, float(max(slot.n_ctx for slot in slots))),
        ("engine.slot_tokens", {}, float(sum(slot.tokens() for slot in busy))),
    ]
    shares = [slot.tokens() / slot.n_ctx for slot in busy if slot.n_ctx > 0]
    readings.append(("engine.slot_usage_ratio_max", {}, max(shares, default=0.0)))
    return readings


def read_version(body: bytes) -> str | None:
    """The build that an answer of /props names, such as `b6123-a1b2c3d`."""
    try:
        props = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    build = props.get("build_info") if isinstance(props, dict) else None
    return build if isinstance(build, str) and 0 < len(build) <= 100 else None
