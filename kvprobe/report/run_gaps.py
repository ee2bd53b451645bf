"""Gaps between chunks of a run, told apart by what else the server was computing meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvprobe.evidence.records import RequestRecord
from kvprobe.summary.latency import NS

Floats = NDArray[np.float64]
PREFILL_TOKENS = (512, 2_048, 8_192)
"""Borders of the classes: one batch of a small engine, of a large one, several of them."""
MIN_CLASS = 50
"""Gaps below which a class of its own says nothing; it joins the class below."""


@dataclass(frozen=True, slots=True)
class GapClass:
    """Gaps during which other requests' prompts of `low` to `high` tokens (null: no end) were on their way
    to a first token."""

    low: int
    high: int | None
    seconds: Floats


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps between chunks, seconds, sorted: those in which no other request was being prefilled, those
    that another request's prefill (sent, no token yet) overlapped, and the latter by prompt tokens (empty
    where a prompt's size is not known)."""

    alone: Floats
    beside_prefill: Floats
    by_tokens: tuple[GapClass, ...] = ()


def gaps(records: Sequence[RequestRecord]) -> Gaps:
    """Of the measured requests that ended well; every request's prefill counts, warm-up too."""
    prefilled = [r for r in records if r.first_token_ns and r.sent_ns]
    sent = np.array([r.sent_ns for r in prefilled], dtype=np.int64)
    first = np.array([r.first_token_ns for r in prefilled], dtype=np.int64)
    by_sent, by_first = np.argsort(sent, kind="stable"), np.argsort(first, kind="stable")
    kept = [r for r in records if not r.warmup and r.failure is None and r.first_token_ns and r.gaps_ns]
    lengths = np.array([g for r in kept for g in r.gaps_ns], dtype=np.int64)
    ends = chunk_ends(kept, lengths)
    # Requests sent before the gap ended, less those that had their first token before it began.
    began = np.searchsorted(sent[by_sent], ends, "left")
    over = np.searchsorted(first[by_first], ends - lengths, "right")
    beside, seconds = began > over, lengths.astype(np.float64) * NS
    classes: tuple[GapClass, ...] = ()
    if all(r.prompt_tokens is not None for r in prefilled):
        asked = np.array([max(0, (r.prompt_tokens or 0) - (r.cached_tokens or 0)) for r in prefilled])
        tokens = _running(asked[by_sent])[began] - _running(asked[by_first])[over]
        classes = _classes(seconds[beside], tokens[beside])
    return Gaps(np.sort(seconds[~beside]), np.sort(seconds[beside]), classes)


def _running(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sums of the first 0, 1, 2 ... values."""
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)))


def _classes(seconds: Floats, tokens: NDArray[np.int64]) -> tuple[GapClass, ...]:
    """By prompt tokens in prefill; neighbours are joined until each has enough gaps."""
    which = np.searchsorted(np.array(PREFILL_TOKENS), tokens, "left")
    borders = (0, *PREFILL_TOKENS, None)
    joined: list[GapClass] = []
    for i in range(len(PREFILL_TOKENS) + 1):
        part = GapClass(borders[i] or 0, borders[i + 1], seconds[which == i])
        if not part.seconds.size:
            continue
        if joined and (joined[-1].seconds.size < MIN_CLASS or part.seconds.size < MIN_CLASS):
            last = joined.pop()
            part = GapClass(last.low, part.high, np.concatenate((last.seconds, part.seconds)))
        joined.append(part)
    return tuple(GapClass(c.low, c.high, np.sort(c.seconds)) for c in joined)


def chunk_ends(kept: Sequence[RequestRecord], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The instant at which each gap ended, ns: the first token and the gaps up to it."""
    counts = np.array([len(r.gaps_ns) for r in kept], dtype=np.int64)
    firsts = np.array([r.first_token_ns or 0 for r in kept], dtype=np.int64)
    summed = np.cumsum(lengths)
    before = np.concatenate(([0], summed))[np.cumsum(counts) - counts]
    ends: NDArray[np.int64] = np.repeat(firsts - before, counts) + summed
    return ends
