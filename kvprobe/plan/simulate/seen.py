"""The requests of a run as columns: when each was sent, when its tokens came, what it found in the cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvprobe.evidence.records import RequestRecord

Floats = NDArray[np.float64]
NS = 1e9
SAME_STEP = 0.3
"""Of a median step."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Requests that ended well; seconds from the first one that was sent. `clouded`: spans of the others.

    A request that failed, or whose prompt was not counted, took part in steps too, with tokens that nobody
    knows: what was measured in its span does not tell the time of a step.

    A request that was preempted is two rows: up to the preemption, and from its return. The second one's
    `prompt` is all that the request was by then; what of it was computed again is not known (`cached`: NaN).
    """

    sent: Floats
    first: Floats
    last: Floats
    prompt: Floats
    cached: Floats
    tokens_a_chunk: Floats
    stamps: list[Floats]
    requests: int
    warmup_until: float
    clouded: list[tuple[float, float]]

    def __len__(self) -> int:
        return len(self.sent)


class _Row(NamedTuple):
    sent: float
    prompt: float
    cached: float
    tokens_a_chunk: float
    stamps: Floats


def seen(records: Iterable[RequestRecord]) -> Seen:
    """Columns of a run's requests; those that were not sent are left out."""
    sent = [r for r in records if r.sent_ns is not None]
    start = min((r.sent_ns or 0 for r in sent), default=0)
    good = [_row(r, start) for r in sent if _told(r)]
    rows = _divided(good)
    measured = [r.sent_ns or 0 for r in sent if not r.warmup]
    return Seen(
        sent=np.array([row.sent for row in rows]),
        first=np.array([row.stamps[0] for row in rows]),
        last=np.array([row.stamps[-1] for row in rows]),
        prompt=np.array([row.prompt for row in rows]),
        cached=np.array([row.cached for row in rows]),
        tokens_a_chunk=np.array([row.tokens_a_chunk for row in rows]),
        stamps=[row.stamps for row in rows],
        requests=len(good),
        warmup_until=(min(measured, default=start) - start) / NS,
        clouded=[_span(r, start) for r in sent if not _told(r)],
    )


def _row(record: RequestRecord, start: int) -> _Row:
    stamps = np.cumsum([(record.first_token_ns or 0) - start, *record.gaps_ns]) / NS
    return _Row(
        sent=((record.sent_ns or 0) - start) / NS,
        prompt=float(record.prompt_tokens or 0),
        cached=float(record.cached_tokens or 0),
        tokens_a_chunk=(record.completion_tokens or len(stamps)) / len(stamps),
        stamps=stamps,
    )


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
    parts = [row._replace(stamps=pieces[0])]
    for cut, piece in zip(cuts, pieces[1:], strict=True):
        prompt = row.prompt + cut * row.tokens_a_chunk
        parts.append(_Row(float(row.stamps[cut - 1]), prompt, np.nan, row.tokens_a_chunk, piece))
    return parts


def near_s(gaps: Floats) -> float:
    """Tokens of one step reach their clients within so many seconds."""
    return SAME_STEP * float(np.median(gaps)) if len(gaps) else 0.0


def _told(record: RequestRecord) -> bool:
    """Did it end well, and is it known what it computed?"""
    return record.failure is None and record.first_token_ns is not None and bool(record.prompt_tokens)


def _span(record: RequestRecord, start: int) -> tuple[float, float]:
    begin = ((record.sent_ns or 0) - start) / NS
    end = record.end_ns or record.last_token_ns or record.first_token_ns
    return begin, float("inf") if end is None else (end - start) / NS


def under_way(begin: Floats, end: Floats, at: Floats) -> NDArray[np.int64]:
    """How many of the intervals hold each instant."""
    return np.searchsorted(np.sort(begin), at, side="right") - np.searchsorted(np.sort(end), at, side="right")


def contexts(of: Seen, at: Floats) -> Floats:
    """Tokens of KV that all decoding requests hold at each instant.

    A request has its prompt at its first token and grows evenly to its last one: two sums over those that
    have begun, less the same over those that have ended.
    """
    length = np.maximum(of.last - of.first, 1e-9)
    gaps = np.array([len(one) - 1 for one in of.stamps], dtype=float)
    speed = gaps * of.tokens_a_chunk / length
    base = of.prompt - speed * of.first

    def total(edges: Floats) -> Floats:
        order = np.argsort(edges)
        place = np.searchsorted(edges[order], at, side="right")
        bases = np.concatenate(([0.0], np.cumsum(base[order])))
        speeds = np.concatenate(([0.0], np.cumsum(speed[order])))
        found: Floats = bases[place] + speeds[place] * at
        return found

    return np.maximum(total(of.first) - total(of.last), 0.0)
