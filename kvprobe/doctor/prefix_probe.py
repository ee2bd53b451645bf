"""Is a prefix reused, and in what unit? Measured by byte-identical repeats of a few prompts.

A server that reuses whole blocks of b tokens, and always computes the last token, takes
floor((L - 1) / b) x b of a repeated prompt of L tokens from its cache. Each repeat rules out the block
sizes that would have given another number; what is left after prompts of several lengths is the unit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvprobe.doctor.asking import Answer, cached_tokens
from kvprobe.load.words import WORDS

WORD_COUNTS = (150, 263, 421)
"""Lengths without a common factor; the longest stays below the context of the smallest models."""
MAX_UNIT = 8_192


@dataclass(slots=True)
class Repeat:
    """One prompt, sent twice."""

    prompt_tokens: int
    first_cached: int | None
    cached: int | None


@dataclass(slots=True)
class Reuse:
    """What the repeats showed."""

    repeats: list[Repeat] = field(default_factory=list)
    units: tuple[int, ...] = ()
    """Block sizes that explain every repeat; empty when none does, or nothing was reused."""
    error: str | None = None

    @property
    def stated(self) -> bool:
        """Did the server state cached tokens for each repeat?"""
        return bool(self.repeats) and all(r.cached is not None for r in self.repeats)

    @property
    def reused_tokens(self) -> int:
        return sum(r.cached or 0 for r in self.repeats)


def prompt(seed: int, words: int) -> str:
    """Words that no earlier prompt began with: the seed decides from the first word on."""
    rng = random.Random(seed)
    return "".join(rng.choice(WORDS) for _ in range(words)).strip()


def probe(ask: Callable[[str], Answer], seed: int, word_counts: Sequence[int] = WORD_COUNTS) -> Reuse:
    """Send each prompt twice, one after the other."""
    found = Reuse()
    for number, words in enumerate(word_counts):
        text = prompt(seed + number, words)
        first, second = ask(text), ask(text)
        for answer in (first, second):
            if answer.error is not None or answer.status != 200:
                if not found.repeats:
                    found.error = answer.error or f"status {answer.status}"
                return _with_units(found)  # a longer prompt may be over the context: what is there counts
        if second.usage is None or second.usage.prompt_tokens is None:
            found.error = "no usage block, so that prompt tokens are not known"
            return found
        found.repeats.append(
            Repeat(
                prompt_tokens=second.usage.prompt_tokens,
                first_cached=cached_tokens(first.usage),
                cached=cached_tokens(second.usage),
            )
        )
    return _with_units(found)


def _with_units(found: Reuse) -> Reuse:
    known = [(r.prompt_tokens, r.cached) for r in found.repeats if r.cached is not None]
    if any(cached for _, cached in known):
        found.units = tuple(possible_units(known))
    return found


def possible_units(repeats: Iterable[tuple[int, int]]) -> list[int]:
    """Block sizes b with floor((L - 1) / b) x b cached tokens for every (L, cached) pair."""
    pairs = list(repeats)
    return [
        b for b in range(1, MAX_UNIT + 1) if all((length - 1) // b * b == cached for length, cached in pairs)
    ]
