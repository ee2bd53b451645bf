"""Where prompts that share content part, and what that costs in prefix reuse.

A prefix cache can reuse a prompt only up to the first token that differs. This looks at the prompts
that were sent, whatever made them, and asks of each: which earlier prompt shares the most content
with it, where do the two part, and do they meet again soon after? Two questions after one system
prompt part and never meet again: that is ordinary. A changing line before or inside a long shared
body parts the prompts and they meet again right behind it: that segment is unstable, and moved to
the end it would let the body be reused.

Method, linear in the number of tokens: prompts become rows of pieces (words); hashes of `K`
successive pieces, thinned to one in `THIN`, vote for the earlier prompt that had them first; the
pair is compared piece by piece; behind the parting point the first `K` pieces in a row that the
other prompt has too mark where they meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low
from typing import Any

import numpy as np
import numpy.typing as npt

from kvprobe.evidence.facts import Fact
from kvprobe.load.job import PlannedRequest
from kvprobe.load.token_view import DEFAULT_BLOCK_TOKENS, InfinitePrefixCache, TokenView, split_pieces

MAX_PROMPTS = 2_000
MAX_BYTES = 64 << 20
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
MIN_GAIN = 0.05
"""A segment is called unstable when moving it raises the reachable hit rate by this much."""
EXCERPT_BEFORE_CHARS = 24
EXCERPT_CHARS = 96

Ids = npt.NDArray[np.int64]


@dataclass(slots=True)
class _Prompt:
    """A prompt as pieces: `ids` number them, `ends` are token positions behind each."""

    pieces: list[str]
    ids: Ids
    ends: Ids
    asked_tokens: int
    partner: int | None = None
    common: int = 0
    """Pieces shared with the partner from the start."""
    segment: tuple[int, int] | None = None
    """Pieces [from, to) that part this prompt from its relatives before they meet again."""

    def tokens_before(self, piece: int) -> int:
        return int(self.ends[piece - 1]) if piece > 0 else 0


@dataclass(slots=True)
class _Pair:
    """Two prompts that part at piece `at` and meet again at `meet_a` / `meet_b`."""

    a: int
    b: int
    at: int
    meet_a: int
    meet_b: int
    common_after_tokens: int


@dataclass(slots=True)
class _Analysis:
    prompts: list[_Prompt] = field(default_factory=list)
    pairs: list[_Pair] = field(default_factory=list)
    groups: int = 0


def analyse_prompts(
    planned: Sequence[PlannedRequest],
    tokens_of: Callable[[str], int],
    block_size: int | None,
    template_prefix_tokens: int,
) -> list[Fact]:
    """One Fact `prompt_layout` about prompts in the order in which they were sent; [] for none.

    `tokens_of` estimates the tokens of a text; `block_size` is the server's block in tokens (null:
    16 is assumed, and `block_size_assumed` says so); `template_prefix_tokens` stand before every
    prompt. Token indices count from the start of the templated prompt.
    """
    chosen = _capped(planned)
    if not chosen:
        return []
    block = block_size or DEFAULT_BLOCK_TOKENS
    view = _View(tokens_of, template_prefix_tokens)
    analysis = _analyse([view.prompt(request) for request in chosen], block)
    as_sent = view.hit_rate(analysis.prompts, block, moved=False)
    if_moved = view.hit_rate(analysis.prompts, block, moved=True) if analysis.pairs else as_sent
    unstable = bool(analysis.pairs) and if_moved - as_sent >= MIN_GAIN
    value = _common_value(analysis, view, len(planned), block, block_size is None)
    value["ceiling_hit_rate_as_sent"] = value["ceiling_as_sent"] = as_sent
    value["ceiling_hit_rate_if_moved"] = value["ceiling_if_moved"] = if_moved if unstable else as_sent
    value["divergence"] = divergence = _divergence(analysis, view) if unstable else None
    if divergence is not None:
        value["diverge_token"] = divergence["token_index"]
        value["diverge_texts"] = [divergence["text_a"], divergence["text_b"]]
        value["shared_body_tokens"] = divergence["common_after_tokens"]
        value["changing_tokens"] = divergence["unstable_segment_tokens"]
    return [Fact(name="prompt_layout", value=value, source="prompt_layout")]


def _capped(planned: Sequence[PlannedRequest]) -> list[PlannedRequest]:
    chosen: list[PlannedRequest] = []
    size = 0
    for request in planned[:MAX_PROMPTS]:
        size += len(request.text().encode("utf-8", "replace"))
        if size > MAX_BYTES:
            break
        chosen.append(request)
    return chosen


def _common_value(analysis: _Analysis, view: _View, given: int, block: int, assumed: bool) -> dict[str, Any]:
    shared = [p.tokens_before(p.common) for p in analysis.prompts if p.partner is not None]
    common = round(median(shared) * view.scale) + view.template_tokens if shared else None
    return {
        "prompts": given,
        "analysed": len(analysis.prompts),
        "max_prompts": MAX_PROMPTS,
        "max_bytes": MAX_BYTES,
        "groups": analysis.groups,
        "block_size": block,
        "block_size_assumed": assumed,
        "common_prefix_tokens": common,
        "shared_prefix_tokens": common,
    }


# -- prompts as pieces and as tokens ---------------------------------------------------------------


class _View:
    """Prompts as rows of pieces, and of stand-in tokens for the cache."""

    def __init__(self, tokens_of: Callable[[str], int], template_tokens: int) -> None:
        self.template_tokens = template_tokens
        self._tokens_of = tokens_of
        self._view = TokenView(tokens_of)
        self._numbers: dict[str, int] = {}
        self._sizes: dict[str, int] = {}
        self._known = self._estimated = 0

    @property
    def scale(self) -> float:
        """Tokens per stand-in: 1 unless sizes of single pieces are only assumed."""
        return self._known / self._estimated if self._estimated else 1.0

    def prompt(self, request: PlannedRequest) -> _Prompt:
        pieces = split_pieces(request.text())
        numbers = self._numbers
        ids = np.fromiter((numbers.setdefault(p, len(numbers)) for p in pieces), np.int64, len(pieces))
        sizes = np.fromiter((self._size(p) for p in pieces), np.int64, len(pieces))
        ends = np.cumsum(sizes)
        self._known += self._tokens_of(request.text())
        self._estimated += int(ends[-1]) if len(ends) else 0
        return _Prompt(pieces, ids, ends, request.asked_prompt_tokens)

    def _size(self, piece: str) -> int:
        size = self._sizes.get(piece)
        if size is None:
            size = self._sizes[piece] = len(self._view.piece(piece))
        return size

    def hit_rate(self, prompts: Sequence[_Prompt], block: int, *, moved: bool) -> float:
        """Reuse by a cache of unlimited size; with `moved`, unstable segments stand at the end."""
        cache = InfinitePrefixCache(max(round(block / self.scale), 1))
        reused = total = 0
        for prompt in prompts:
            row = self._view.marker("before", round(self.template_tokens / self.scale))
            for piece in _moved(prompt) if moved else prompt.pieces:
                row.extend(self._view.piece(piece))
            row += self._view.marker("after", round(prompt.asked_tokens / self.scale) - len(row))
            reused += cache.admit(row)
            total += len(row)
        return reused / total if total else 0.0

    def common_tokens(self, a: str, b: str) -> int:
        """Stand-ins that two pieces share from their start."""
        pairs = zip(self._view.piece(a), self._view.piece(b), strict=False)
        return next((n for n, (x, y) in enumerate(pairs) if x != y), 0)


def _moved(prompt: _Prompt) -> list[str]:
    if prompt.segment is None:
        return prompt.pieces
    start, end = prompt.segment
    return prompt.pieces[:start] + prompt.pieces[end:] + prompt.pieces[start:end]


# -- who shares content with whom --------------------------------------------------------------------


def _analyse(prompts: list[_Prompt], block: int) -> _Analysis:
    analysis = _Analysis(prompts)
    first_with: dict[int, int] = {}
    roots = list(range(len(prompts)))
    grams: dict[int, dict[int, int]] = {}
    for number, prompt in enumerate(prompts):
        hashes = _gram_hashes(prompt.ids)
        thinned = hashes[(hashes & (THIN - 1)) == 0].tolist() if len(hashes) > THIN else hashes.tolist()
        prompt.partner = _vote(thinned, first_with)
        for gram in thinned:
            first_with.setdefault(gram, number)
        if prompt.partner is None:
            continue
        roots[number] = roots[prompt.partner]
        _compare(analysis, number, hashes, grams, block)
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
    analysis: _Analysis, number: int, hashes: Ids, grams: dict[int, dict[int, int]], block: int
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
            analysis.pairs.append(_Pair(prompt.partner, number, at, meet_a, meet_b, after))
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


def _align(analysis: _Analysis) -> None:
    """One segment for all that share a partner: from the earliest parting to the latest meeting.

    Two clock readings may agree in their first digits or their last; the segment that changes is
    the whole reading, and it must be cut alike from every prompt for the rest to be the same.
    """
    by_partner: dict[int, list[_Pair]] = {}
    for pair in analysis.pairs:
        by_partner.setdefault(pair.a, []).append(pair)
    for a, pairs in by_partner.items():
        start = min(pair.at for pair in pairs)
        end = max(pair.meet_a for pair in pairs)
        _extend(analysis.prompts[a], start, end)
        for pair in pairs:
            _extend(analysis.prompts[pair.b], start, pair.meet_b + end - pair.meet_a)


def _extend(prompt: _Prompt, start: int, end: int) -> None:
    if prompt.segment is not None:
        start, end = min(start, prompt.segment[0]), max(end, prompt.segment[1])
    prompt.segment = (start, min(end, len(prompt.ids)))


# -- what is shown -----------------------------------------------------------------------------------


def _divergence(analysis: _Analysis, view: _View) -> dict[str, Any]:
    """The typical pair: the one that parts at the median token."""
    found = sorted(((_token_index(analysis, view, pair), n) for n, pair in enumerate(analysis.pairs)))
    index, number = found[(len(found) - 1) // 2]
    pair = analysis.pairs[number]
    a, b = analysis.prompts[pair.a], analysis.prompts[pair.b]
    lengths = [_segment_tokens(p) for p in _parted(analysis)]
    return {
        "token_index": index,
        "text_a": _excerpt(a, pair.at),
        "text_b": _excerpt(b, pair.at),
        "unstable_segment_tokens": round(median_low(lengths) * view.scale),
        "common_after_tokens": round(
            median_low([p.common_after_tokens for p in analysis.pairs]) * view.scale
        ),
    }


def _parted(analysis: _Analysis) -> Iterator[_Prompt]:
    return (analysis.prompts[pair.b] for pair in analysis.pairs)


def _segment_tokens(prompt: _Prompt) -> int:
    start, end = prompt.segment or (0, 0)
    return prompt.tokens_before(end) - prompt.tokens_before(start)


def _token_index(analysis: _Analysis, view: _View, pair: _Pair) -> int:
    a, b = analysis.prompts[pair.a], analysis.prompts[pair.b]
    inside = view.common_tokens(a.pieces[pair.at], b.pieces[pair.at])
    return view.template_tokens + round((b.tokens_before(pair.at) + inside) * view.scale)


def _excerpt(prompt: _Prompt, at: int) -> str:
    """Text around the parting point; foreign text, to be cleaned by whoever shows it."""
    before = "".join(prompt.pieces[max(at - EXCERPT_BEFORE_CHARS, 0) : at])[-EXCERPT_BEFORE_CHARS:]
    after = "".join(prompt.pieces[at : at + EXCERPT_CHARS])
    return (before + after)[:EXCERPT_CHARS]
