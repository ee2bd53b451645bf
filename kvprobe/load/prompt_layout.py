"""Where prompts that share content part, and what that costs in prefix reuse.

A prefix cache can reuse a prompt only up to the first token that differs. This looks at the prompts
that were sent, whatever made them, and asks of each: which earlier prompt shares the most content
with it, where do the two part, and do they meet again soon after? Two questions after one system
prompt part and never meet again: that is ordinary. A changing line before or inside a long shared
body parts the prompts and they meet again right behind it: that segment is unstable, and moved to
the end it would let the body be reused. The same lines in another order (tools, examples, retrieved
documents) part prompts too; kept in one order they would not (`prompt_order`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from statistics import median, median_low
from typing import Any

import numpy as np

from kvprobe.evidence.facts import Fact
from kvprobe.load.job import PlannedRequest
from kvprobe.load.prompt_order import FirstOrder
from kvprobe.load.prompt_pairs import Analysis, Pair, Prompt, find_pairs
from kvprobe.load.reuse_distance import ReuseDistances
from kvprobe.load.token_view import DEFAULT_BLOCK_TOKENS, InfinitePrefixCache, TokenView, split_pieces

MAX_PROMPTS = 2_000
MAX_BYTES = 64 << 20
MIN_GAIN = 0.05
"""A segment is called unstable when moving it raises the reachable hit rate by this much."""
EXCERPT_BEFORE_CHARS = 40
EXCERPT_CHARS = 72
_REORDERED = ("ceiling_if_ordered", "reordered_prompts", "reordered_from_token", "reordered_lines")
_DIVERGENCE = ("diverge_token", "diverge_before", "diverge_texts", "changing_tokens", "shared_body_tokens")


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
    analysis = find_pairs([view.prompt(request) for request in chosen], block)
    as_sent = view.hit_rate(analysis.prompts, block, moved=False)
    if_moved = view.hit_rate(analysis.prompts, block, moved=True) if analysis.pairs else as_sent
    unstable = bool(analysis.pairs) and if_moved - as_sent >= MIN_GAIN
    reordered = _reordered(analysis, view, block, as_sent)
    value = _common_value(analysis, view, len(planned), block, block_size is None)
    value["ceiling_as_sent"] = as_sent
    value["reuse_distance_tokens"] = view.reuse_distances(analysis.prompts, block)
    value["ceiling_if_moved"] = if_moved if unstable else as_sent
    value |= _divergence(analysis, view) if unstable else dict.fromkeys(_DIVERGENCE)
    value |= reordered
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


def _common_value(analysis: Analysis, view: _View, given: int, block: int, assumed: bool) -> dict[str, Any]:
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
        "shared_prefix_tokens": common,
    }


def _reordered(analysis: Analysis, view: _View, block: int, as_sent: float) -> dict[str, Any]:
    """What one fixed order of lines would give, where the same lines come in another order."""
    order = FirstOrder()
    ordered = [order.admit(prompt) for prompt in analysis.prompts]
    found: dict[str, Any] = dict.fromkeys(_REORDERED)
    changed = [n for n, each in enumerate(ordered) if each.start is not None]
    found["ceiling_if_ordered"] = as_sent
    if not changed:
        return found
    ceiling = view.hit_rate_of(analysis.prompts, [each.pieces for each in ordered], block)
    if ceiling - as_sent < MIN_GAIN:
        return found
    starts = [analysis.prompts[n].tokens_before(ordered[n].start or 0) for n in changed]
    return {
        "ceiling_if_ordered": ceiling,
        "reordered_prompts": len(changed),
        "reordered_from_token": view.template_tokens + round(median_low(starts) * view.scale),
        "reordered_lines": median_low([ordered[n].lines for n in changed]),
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

    def prompt(self, request: PlannedRequest) -> Prompt:
        pieces = split_pieces(request.text())
        numbers = self._numbers
        ids = np.fromiter((numbers.setdefault(p, len(numbers)) for p in pieces), np.int64, len(pieces))
        sizes = np.fromiter((self._size(p) for p in pieces), np.int64, len(pieces))
        ends = np.cumsum(sizes)
        self._known += self._tokens_of(request.text())
        self._estimated += int(ends[-1]) if len(ends) else 0
        return Prompt(pieces, ids, ends, request.asked_prompt_tokens, warmup=request.warmup)

    def _size(self, piece: str) -> int:
        size = self._sizes.get(piece)
        if size is None:
            size = self._sizes[piece] = len(self._view.piece(piece))
        return size

    def hit_rate(self, prompts: Sequence[Prompt], block: int, *, moved: bool) -> float:
        """Reuse by a cache of unlimited size; with `moved`, unstable segments stand at the end."""
        return self.hit_rate_of(prompts, [_moved(p) if moved else p.pieces for p in prompts], block)

    def hit_rate_of(self, prompts: Sequence[Prompt], pieces: Sequence[Sequence[str]], block: int) -> float:
        """The same for prompts whose pieces are these.

        Warm-up prompts enter the cache and are not counted.
        """
        cache = InfinitePrefixCache(max(round(block / self.scale), 1))
        reused = total = 0
        for prompt, made in zip(prompts, pieces, strict=True):
            row = self._row(prompt, made)
            hits = cache.admit(row)
            if not prompt.warmup:
                reused += hits
                total += len(row)
        return reused / total if total else 0.0

    def reuse_distances(self, prompts: Sequence[Prompt], block: int) -> list[int] | None:
        """How many tokens of other blocks are used between two uses of a block; null without reuse."""
        distances = ReuseDistances(max(round(block / self.scale), 1), len(prompts))
        for prompt in prompts:
            distances.admit(self._row(prompt, prompt.pieces), counted=not prompt.warmup)
        found = distances.quantiles()
        return None if found is None else [round(d * self.scale) for d in found]

    def _row(self, prompt: Prompt, pieces: Sequence[str]) -> array[int]:
        """Stand-ins of a whole prompt, the template's around the text."""
        row = self._view.marker("before", round(self.template_tokens / self.scale))
        for piece in pieces:
            row.extend(self._view.piece(piece))
        row += self._view.marker("after", round(prompt.asked_tokens / self.scale) - len(row))
        return row

    def common_tokens(self, a: str, b: str) -> int:
        """Stand-ins that two pieces share from their start."""
        pairs = zip(self._view.piece(a), self._view.piece(b), strict=False)
        return next((n for n, (x, y) in enumerate(pairs) if x != y), 0)


def _moved(prompt: Prompt) -> list[str]:
    if prompt.segment is None:
        return prompt.pieces
    start, end = prompt.segment
    return prompt.pieces[:start] + prompt.pieces[end:] + prompt.pieces[start:end]


# -- what is shown -----------------------------------------------------------------------------------


def _divergence(analysis: Analysis, view: _View) -> dict[str, Any]:
    """The typical pair: the one that parts at the median token."""
    found = sorted(((_token_index(analysis, view, pair), n) for n, pair in enumerate(analysis.pairs)))
    index, number = found[(len(found) - 1) // 2]
    pair = analysis.pairs[number]
    a, b = analysis.prompts[pair.a], analysis.prompts[pair.b]
    lengths = [_segment_tokens(p) for p in _parted(analysis)]
    common_after = median_low([p.common_after_tokens for p in analysis.pairs])
    before, texts = _excerpts(a, b, pair)
    return {
        "diverge_token": index,
        "diverge_before": before,
        "diverge_texts": texts,
        "changing_tokens": round(median_low(lengths) * view.scale),
        "shared_body_tokens": round(common_after * view.scale),
    }


def _parted(analysis: Analysis) -> Iterator[Prompt]:
    return (analysis.prompts[pair.b] for pair in analysis.pairs)


def _segment_tokens(prompt: Prompt) -> int:
    start, end = prompt.segment or (0, 0)
    return prompt.tokens_before(end) - prompt.tokens_before(start)


def _token_index(analysis: Analysis, view: _View, pair: Pair) -> int:
    a, b = analysis.prompts[pair.a], analysis.prompts[pair.b]
    inside = view.common_tokens(a.pieces[pair.at], b.pieces[pair.at])
    return view.template_tokens + round((b.tokens_before(pair.at) + inside) * view.scale)


def _excerpts(a: Prompt, b: Prompt, pair: Pair) -> tuple[str, list[str]]:
    """The text up to the first character that differs, and how each of the two goes on from there.

    Foreign text, to be cleaned by whoever shows it.
    """
    one, other = "".join(a.pieces[pair.at :][:EXCERPT_CHARS]), "".join(b.pieces[pair.at :][:EXCERPT_CHARS])
    ends = min(len(one), len(other))
    same = next((at for at in range(ends) if one[at] != other[at]), ends)
    before = "".join(b.pieces[max(pair.at - EXCERPT_BEFORE_CHARS, 0) : pair.at]) + other[:same]
    return before[-EXCERPT_BEFORE_CHARS:], [text[same:][:EXCERPT_CHARS] for text in (one, other)]
