"""Pairs of prompts that share content: where they part, and where they meet again.

Method, linear in the number of tokens: prompts become rows of pieces (words); hashes of `K`
successive pieces, thinned to one in `THIN`, vote for the earlier prompt that had them first; the
pair is compared piece by piece; behind the parting point the first `K` pieces in a row that the
other prompt has too mark where they meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvprobe.load.shared_starts import SharedStarts

K = 8
"""Pieces in a row that make a match; fewer could meet by chance."""
THIN = 8
MIN_VOTES = 2
MIN_COMMON_SHARE = 0.1
"""A body shared behind the parting point counts from this share of the prompt on, ..."""
MIN_COMMON_BLOCKS = 2
"""... and from this many blocks on: less would not be reused anyway."""
MAX_MEETINGS = 64
"""Places at which two prompts may seem to meet again before we stop looking."""
_KEPT_TABLES = 32

Ids = npt.NDArray[np.int64]


@dataclass(slots=True)
class Prompt:
    """A prompt as pieces: `ids` number them, `ends` are token positions behind each."""

    pieces: list[str]
    ids: Ids
    ends: Ids
    asked_tokens: int
    warmup: bool = False
    partner: int | None = None
    common: int = 0
    """Pieces shared from the start with an earlier prompt, the one that shares most of them."""
    segment: tuple[int, int] | None = None
    """Pieces [from, to) that part this prompt from its relatives before they meet again."""

    def tokens_before(self, piece: int) -> int:
        return int(self.ends[piece - 1]) if piece > 0 else 0


@dataclass(slots=True)
class Pair:
    """Two prompts that part at piece `at` and meet again at `meet_a` / `meet_b`."""

    a: int
    b: int
    at: int
    meet_a: int
    meet_b: int
    common_after_tokens: int


@dataclass(slots=True)
class Analysis:
    prompts: list[Prompt] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    groups: int = 0


def find_pairs(prompts: list[Prompt], block: int) -> Analysis:
    analysis = Analysis(prompts)
    first_with: dict[int, int] = {}
    roots = list(range(len(prompts)))
    grams: dict[int, dict[int, int]] = {}
    starts = SharedStarts()
    for number, prompt in enumerate(prompts):
        shared = starts.admit(prompt.ids)
        hashes = _gram_hashes(prompt.ids)
        thinned = hashes[(hashes & (THIN - 1)) == 0].tolist() if len(hashes) > THIN else hashes.tolist()
        prompt.partner = _vote(thinned, first_with)
        for gram in thinned:
            first_with.setdefault(gram, number)
        if prompt.partner is None:
            continue
        roots[number] = roots[prompt.partner]
        _compare(analysis, number, hashes, grams, block)
        # The prompt that shares most need not be the one that shares the longest start.
        prompt.common = max(prompt.common, shared)
    _align(analysis)
    analysis.groups = sum(1 for count in Counter(roots).values() if count > 1)
    return analysis


def _gram_hashes(ids: Ids) -> Ids:
    """A hash of each `K` pieces in a row (wrapping 64-bit arithmetic, then mixed)."""
    if len(ids) < K:
        return np.empty(0, np.int64)
    count = len(ids) - K + 1
    values = ids.astype(np.uint64) + np.uint64(1)
    total = np.zeros(count, np.uint64)
    with np.errstate(over="ignore"):
        for offset in range(K):
            total = total * np.uint64(0x9E3779B97F4A7C15) + values[offset : offset + count]
        total ^= total >> np.uint64(31)
        total *= np.uint64(0xBF58476D1CE4E5B9)
        total ^= total >> np.uint64(27)
    return total.view(np.int64)


def _vote(grams: Sequence[int], first_with: dict[int, int]) -> int | None:
    """The earlier prompt that had most of these grams first."""
    votes = Counter(first_with[gram] for gram in grams if gram in first_with)
    if not votes:
        return None
    partner, count = votes.most_common(1)[0]
    return partner if count >= min(MIN_VOTES, len(grams)) else None


def _compare(
    analysis: Analysis, number: int, hashes: Ids, grams: dict[int, dict[int, int]], block: int
) -> None:
    """Finds where the prompt parts from its partner and where the two meet again."""
    prompt = analysis.prompts[number]
    assert prompt.partner is not None
    partner = analysis.prompts[prompt.partner]
    prompt.common = at = _common_length(partner.ids, prompt.ids)
    if at >= min(len(partner.ids), len(prompt.ids)):
        return
    places = grams.get(prompt.partner)
    if places is None:
        # Later places overwrite: the meeting place must lie behind the parting point.
        places = dict(zip(_gram_hashes(partner.ids).tolist(), range(len(partner.ids)), strict=False))
        if len(grams) >= _KEPT_TABLES:
            grams.clear()
        grams[prompt.partner] = places
    wanted = max(MIN_COMMON_SHARE * prompt.tokens_before(len(prompt.ids)), MIN_COMMON_BLOCKS * block)
    for meet_a, meet_b in _meetings(hashes, places, at):
        run = _common_length(partner.ids[meet_a:], prompt.ids[meet_b:])
        after = prompt.tokens_before(meet_b + run) - prompt.tokens_before(meet_b)
        if run >= K and after >= wanted:
            analysis.pairs.append(Pair(prompt.partner, number, at, meet_a, meet_b, after))
            return


def _meetings(hashes: Ids, places: dict[int, int], at: int) -> Iterator[tuple[int, int]]:
    """Where the two may meet again behind piece `at`; each match is tried at its start only."""
    tried, expected = 0, -1
    for meet_b, gram in enumerate(hashes[at:].tolist(), start=at):
        meet_a = places.get(gram)
        if meet_a is None or meet_a < at:
            continue
        if meet_a != expected:
            tried += 1
            if tried > MAX_MEETINGS:
                return
            yield meet_a, meet_b
        expected = meet_a + 1


def _common_length(a: Ids, b: Ids) -> int:
    length = min(len(a), len(b))
    different = np.flatnonzero(a[:length] != b[:length])
    return int(different[0]) if len(different) else length


def _align(analysis: Analysis) -> None:
    """One segment for all that share a partner: from the earliest parting to the latest meeting.

    Two clock readings may agree in their first digits or their last; the segment that changes is
    the whole reading, and it must be cut alike from every prompt for the rest to be the same.
    """
    by_partner: dict[int, list[Pair]] = {}
    for pair in analysis.pairs:
        by_partner.setdefault(pair.a, []).append(pair)
    for a, pairs in by_partner.items():
        start = min(pair.at for pair in pairs)
        end = max(pair.meet_a for pair in pairs)
        _extend(analysis.prompts[a], start, end)
        for pair in pairs:
            _extend(analysis.prompts[pair.b], start, pair.meet_b + end - pair.meet_a)


def _extend(prompt: Prompt, start: int, end: int) -> None:
    if prompt.segment is not None:
        start, end = min(start, prompt.segment[0]), max(end, prompt.segment[1])
    prompt.segment = (start, min(end, len(prompt.ids)))
