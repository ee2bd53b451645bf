"""The requests of a run as columns: when each was sent, when its tokens came, what it found in the cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvprobe.evidence.records import OpenedRequest, RequestRecord

Floats = NDArray[np.float64]
NS = 1e9
SAME_STEP = 0.3
"""Of a median step."""
SAME_RECEIVE_NS = 50_000
"""Chunks that came no further apart were handed over together: no step is that short."""
MOST_TOKENS_AT_ONCE = 32
"""An answer that came in larger pieces was held back on its way, and does not show the steps it took."""
MOST_TOKENS, MOST_NS = 1 << 24, 1 << 62
"""Of one prompt, and of any stamp: more is no measurement."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Requests that ended well; seconds from the first one that was sent. `clouded`: spans of the others.

    A request that failed or was cut off, whose prompt was not counted, or whose figures contradict one
    another (`odd`), took part in steps too, with tokens that nobody knows: what was measured in its span does
    not tell the time of a step.

    A request that was preempted is two rows: up to the preemption, and from its return. The second one's
    `prompt` is all that the request was by then; what of it was computed again is not known (`cached`: NaN).
    """

    sent: Floats
    first: Floats
    last: Floats
    prompt: Floats
    cached: Floats
    stamps: list[Floats]
    """Instants at which tokens came, and how many came at each."""
    tokens: list[Floats]
    requests: int
    """Those that were measured and are told of; `odd` are those left out for what they say."""
    odd: int
    warmup_until: float
    clouded: list[tuple[float, float]]

    def __len__(self) -> int:
        return len(self.sent)


class _Row(NamedTuple):
    sent: float
    prompt: float
    cached: float
    stamps: Floats
    tokens: Floats


def seen(records: Iterable[RequestRecord], opened: Iterable[OpenedRequest] = ()) -> Seen:
    """Columns of a run's requests; those that were not sent are left out. `opened`: in flight at its end."""
    sent = [r for r in records if r.sent_ns is not None and abs(r.sent_ns) < MOST_NS]
    start = min((r.sent_ns or 0 for r in sent), default=0)
    found = [(r, _row(r, start)) for r in sent]
    good = [row for _, row in found if row is not None]
    rows = _divided(good)
    measured = [r.sent_ns or 0 for r in sent if not r.warmup]
    cut = [((one.sent_ns - start) / NS, np.inf) for one in opened if abs(one.sent_ns) < MOST_NS]
    return Seen(
        sent=np.array([row.sent for row in rows]),
        first=np.array([row.stamps[0] for row in rows]),
        last=np.array([row.stamps[-1] for row in rows]),
        prompt=np.array([row.prompt for row in rows]),
        cached=np.array([row.cached for row in rows]),
        stamps=[row.stamps for row in rows],
        tokens=[row.tokens for row in rows],
        requests=sum(row is not None and not r.warmup for r, row in found),
        odd=sum(row is None and r.failure is None and not r.warmup for r, row in found),
        warmup_until=(min(measured) - start) / NS if measured else np.inf,
        clouded=[_span(r, start) for r, row in found if row is None] + cut,
    )


def _row(record: RequestRecord, start: int) -> _Row | None:
    """None where it does not tell which steps it took part in."""
    if not _told(record):
        return None
    gaps = np.array([2 * SAME_RECEIVE_NS, *record.gaps_ns], dtype=float)
    begins = np.flatnonzero(gaps > SAME_RECEIVE_NS)
    stamps = (record.first_token_ns or 0) - start + (np.cumsum(gaps) - gaps[0])[begins]
    tokens = _tokens(record.completion_tokens, np.diff(np.append(begins, len(gaps))))
    if tokens.mean() > MOST_TOKENS_AT_ONCE:
        return None
    return _Row(
        sent=((record.sent_ns or 0) - start) / NS,
        prompt=float(record.prompt_tokens or 0),
        cached=float(record.cached_tokens or 0),
        stamps=stamps / NS,
        tokens=tokens,
    )


def _tokens(counted: int | None, chunks: NDArray[np.int64]) -> Floats:
    """Tokens that came at each instant. One each, unless more were counted: the last one often has no text.

    A server that speculates, or sends every n-th step, has several tokens in a chunk; a proxy may send
    several chunks at once.
    """
    counted = int(chunks.sum()) if counted is None else counted
    if counted <= len(chunks) + 1:
        return np.ones(len(chunks))
    spread: Floats = chunks.astype(np.float64) * (float(counted) / float(chunks.sum()))
    return spread


def _divided(rows: list[_Row]) -> list[_Row]:
    """Each row, or its parts where it had no tokens while another request had two or more.

    A request that decodes has a token of every step: one that misses a whole step was preempted.
    """
    begin = np.concatenate([row.stamps[:-1] for row in rows] or [np.zeros(0)])
    end = np.concatenate([row.stamps[1:] for row in rows] or [np.zeros(0)])
    if not len(begin):
        return rows
    near = near_s(end - begin)
    order = np.argsort(begin)
    # The earliest end of the gaps that begin at this place of the order or later.
    earliest = np.append(np.minimum.accumulate(end[order][::-1])[::-1], np.inf)
    inside = earliest[np.searchsorted(begin[order], begin + near, side="right")]
    away = inside < end - near
    parts, at = [], 0
    for row in rows:
        gaps = len(row.stamps) - 1
        parts += _parts(row, np.flatnonzero(away[at : at + gaps]) + 1)
        at += gaps
    return parts


def _parts(row: _Row, cuts: NDArray[np.int64]) -> list[_Row]:
    pieces = np.split(row.stamps, cuts)
    parts = [row._replace(stamps=pieces[0], tokens=row.tokens[: len(pieces[0])])]
    for cut, piece in zip(cuts, pieces[1:], strict=True):
        prompt = row.prompt + float(row.tokens[:cut].sum())
        tokens = row.tokens[cut : cut + len(piece)]
        parts.append(_Row(float(row.stamps[cut - 1]), prompt, np.nan, piece, tokens))
    return parts


def near_s(gaps: Floats) -> float:
    """Tokens of one step reach their clients within so many seconds."""
    return SAME_STEP * float(np.median(gaps)) if len(gaps) else 0.0


def _told(record: RequestRecord) -> bool:
    """Did it end well, is it known what it computed, and can that be?"""
    first, sent = record.first_token_ns, record.sent_ns
    if record.failure is not None or first is None or sent is None or not record.prompt_tokens:
        return False
    counts = 0 <= (record.cached_tokens or 0) <= record.prompt_tokens <= MOST_TOKENS
    counts = counts and 0 <= (record.completion_tokens or 0) <= MOST_TOKENS
    in_order = sent < first < MOST_NS and min(record.gaps_ns, default=0) >= 0
    return counts and in_order and sum(record.gaps_ns) < MOST_NS


def _span(record: RequestRecord, start: int) -> tuple[float, float]:
    sent = record.sent_ns or 0
    end = record.end_ns or record.last_token_ns or record.first_token_ns
    known = end is not None and sent <= end < MOST_NS
    return (sent - start) / NS, ((end or 0) - start) / NS if known else np.inf


def under_way(begin: Floats, end: Floats, at: Floats) -> NDArray[np.int64]:
    """How many of the intervals hold each instant."""
    return np.searchsorted(np.sort(begin), at, side="right") - np.searchsorted(np.sort(end), at, side="right")


def contexts(of: Seen, at: Floats) -> Floats:
    """Tokens of KV that all decoding requests hold at each instant.

    A request has its prompt at its first token and grows evenly to its last one: two sums over those that
    have begun, less the same over those that have ended.
    """
    length = np.maximum(of.last - of.first, 1e-9)
    speed = np.array([one[1:].sum() for one in of.tokens]) / length
    base = of.prompt - speed * of.first

    def total(edges: Floats) -> Floats:
        order = np.argsort(edges)
        place = np.searchsorted(edges[order], at, side="right")
        bases = np.concatenate(([0.0], np.cumsum(base[order])))
        speeds = np.concatenate(([0.0], np.cumsum(speed[order])))
        found: Floats = bases[place] + speeds[place] * at
        return found

    return np.maximum(total(of.first) - total(of.last), 0.0)
