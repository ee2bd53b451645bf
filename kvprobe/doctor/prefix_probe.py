"""Is a prefix reused, and in what unit? Measured by byte-identical repeats of a few prompts.

A server that reuses whole blocks of b tokens, and always computes the last token, takes
floor((L - 1) / b) x b of a repeated prompt of L tokens from its cache. Each repeat rules out the block
sizes that would have given another number. Where several are left after prompts of several lengths (32 and 64
agree on half of all lengths), further prompts are made as long as tells them apart.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from kvprobe.doctor.asking import Answer, cached_tokens
from kvprobe.load.words import WORDS

WORD_COUNTS = (150, 263, 421)
"""Lengths without a common factor; the longest stays below the context of the smallest models."""
MAX_UNIT = 8_192
BUDGET_S = 120.0
"""After so long no further prompt is sent: what is known by then has to do."""
MOST_MORE = 6
"""Further prompts at most. Each is aimed at a length on which about half of the candidates differ."""


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
    def fullest(self) -> Repeat | None:
        """The repeat that took most from the cache, the longest of several; null where the server states
        cached tokens for none. (vLLM leaves the detail out where it would be 0.)"""
        stated = [r for r in self.repeats if r.cached is not None]
        return max(stated, key=lambda r: (r.cached or 0, r.prompt_tokens), default=None)

    @property
    def doubt(self) -> str | None:
        """Why the counts cannot be what they say; null where they can."""
        for r in self.repeats:
            if (r.cached or 0) > r.prompt_tokens:
                return f"it states {r.cached:,} cached tokens of a prompt of {r.prompt_tokens:,}"
        firsts = [r for r in self.repeats if r.cached and r.first_cached is not None]
        if firsts and all((r.first_cached or 0) >= (r.cached or 0) for r in firsts):
            return "it states as many cached tokens for a prompt that it never saw as for the repeat"
        return None


def prompt(seed: int, words: int) -> str:
    """Words that no earlier prompt began with: the seed decides from the first word on."""
    rng = random.Random(seed)
    return "".join(rng.choice(WORDS) for _ in range(words)).strip()


def probe(ask: Callable[[str], Answer], seed: int, word_counts: Sequence[int] = WORD_COUNTS) -> Reuse:
    """Send each prompt twice, one after the other; then some more, while several units explain them all."""
    found = Reuse()
    end = time.monotonic() + BUDGET_S
    for number, words in enumerate(word_counts):
        if number and time.monotonic() > end:
            return _with_units(found)
        if not _sent_twice(ask, prompt(seed + number, words), found):
            return _with_units(found)  # a longer prompt may be over the context: what is there counts
    sent = list(word_counts)
    for _ in range(MOST_MORE):
        longer = _words_that_tell(_with_units(found).units, found.repeats[0].prompt_tokens, sent)
        if longer is None or time.monotonic() > end or not _sent_twice(ask, prompt(seed, longer), found):
            break
        sent.append(longer)
    return _with_units(found)


def _sent_twice(ask: Callable[[str], Answer], text: str, found: Reuse) -> bool:
    """Did both come, with their counts?"""
    first, second = ask(text), ask(text)
    for answer in (first, second):
        if answer.error is not None or answer.status != 200:
            if not found.repeats:
                found.error = answer.error or f"status {answer.status}"
            return False
    if second.usage is None or not second.usage.prompt_tokens:
        found.error = "no usage block with a count of prompt tokens"
        return False
    found.repeats.append(
        Repeat(
            prompt_tokens=second.usage.prompt_tokens,
            first_cached=cached_tokens(first.usage),
            cached=cached_tokens(second.usage),
        )
    )
    return True


def _words_that_tell(units: Sequence[int], base_tokens: int, sent: Sequence[int]) -> int | None:
    """How many words make a prompt for which the candidates foretell different hits; None: nothing to tell.

    The first prompt, whose tokens are known, is made longer by some words (never beyond the longest one
    sent: a longer one may be over the context). How many tokens those words are is known nearly.
    """
    if len(units) < 2:
        return None
    base = sent[0]
    each = base_tokens / base

    def left(words: int) -> float:
        more = words - base
        return _left(units, round(base_tokens + more * each), spread=1 + round(2 * math.sqrt(more)))

    return min((words for words in range(base + 1, max(sent) + 1) if words not in sent), key=left)


def _left(units: Sequence[int], length: int, spread: int) -> float:
    """How many candidates a prompt of about that many tokens is expected to leave."""
    left = 0.0
    for near in range(length - spread, length + spread + 1):
        hits = [(near - 1) // unit * unit for unit in units]
        left += sum(hits.count(hit) ** 2 for hit in set(hits)) / len(units)
    return left / (2 * spread + 1)


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
