"""Decode of one part against another's, where only decode was going on.

A step of an engine is as long as all that is in it: the prefill of others, and one token for each
sequence that decodes. So two parts are compared only by chunk gaps during which nobody waited for a
first token, and among those only gaps with as many sequences decoding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvprobe.diagnose.part_ratio import widened
from kvprobe.evidence.records import RequestRecord
from kvprobe.summary.latency import chunk_instants_ns
from kvprobe.summary.quantiles import Ratio, median_ratio

if TYPE_CHECKING:
    from kvprobe.diagnose.suite_answer import RunView

MIN_GAPS = 3
"""Of one request at one number of sequences."""
MIN_AT_LEVEL = 5
"""Requests of each part with such gaps, for a number of sequences to be compared."""
MIN_REQUESTS = 20

Levels = dict[int, list[float]]
"""Median calm gap of each request (ns), by the number of sequences decoding."""


def calm_gaps(rows: Sequence[RequestRecord], everyone: Sequence[RequestRecord]) -> Levels:
    """The calm gaps of `rows`; `everyone` are all requests that the server worked on beside them."""
    waits = [
        (r.sent_ns, until)
        for r in everyone
        if r.sent_ns is not None and (until := r.first_token_ns or r.end_ns) is not None
    ]
    decodes = [
        (r.first_token_ns, r.last_token_ns)
        for r in everyone
        if r.first_token_ns is not None and r.last_token_ns is not None
    ]
    wait_starts, wait_ends = _edges(waits)
    decode_starts, decode_ends = _edges(decodes)
    found: Levels = defaultdict(list)
    for record in rows:
        instants = np.asarray(chunk_instants_ns(record), dtype=np.int64)
        if instants.size < MIN_GAPS + 1:
            continue
        begin, end = instants[:-1], instants[1:]
        # Waits that began before the gap's end, less those that were over at its begin.
        waiting = np.searchsorted(wait_starts, end, "left") - np.searchsorted(wait_ends, begin, "right")
        decoding = np.searchsorted(decode_starts, begin, "right") - np.searchsorted(decode_ends, end, "left")
        for level in np.unique(decoding[waiting <= 0]):
            at = (end - begin)[(waiting <= 0) & (decoding == level)]
            if at.size >= MIN_GAPS:
                found[int(level)].append(float(np.median(at)))
    return found


def calm_ratio(above: Sequence[RunView], below: Sequence[RunView]) -> Ratio | None:
    """Time per token of one part over another's; null where too few gaps can be laid side by side.

    Values of a level are divided by the median of `below` there, then all are compared at once. The
    interval also covers the ratio of each round by itself.
    """
    pooled = _scaled([_of(run) for run in above], [_of(run) for run in below])
    if pooled is None or min(map(len, pooled)) < MIN_REQUESTS:
        return None
    rounds = []
    for a in above:
        for b in below:
            if a.round == b.round and (pair := _scaled([_of(a)], [_of(b)])) is not None:
                rounds.append(float(np.median(pair[0]) / np.median(pair[1])))
    return widened(median_ratio(*pooled, seed=14), rounds)


def _of(run: RunView) -> Levels:
    return calm_gaps(run.ok, run.data.records)


def _scaled(above: Sequence[Levels], below: Sequence[Levels]) -> tuple[list[float], list[float]] | None:
    tops: list[float] = []
    bottoms: list[float] = []
    for level in {n for levels in above for n in levels}:
        first = [v for levels in above for v in levels.get(level, [])]
        second = [v for levels in below for v in levels.get(level, [])]
        if min(len(first), len(second)) < MIN_AT_LEVEL:
            continue
        middle = float(np.median(second))
        if middle > 0.0:
            tops += [v / middle for v in first]
            bottoms += [v / middle for v in second]
    return (tops, bottoms) if tops else None


def _edges(spans: Sequence[tuple[int, int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    starts = np.sort(np.array([a for a, _ in spans], dtype=np.int64))
    ends = np.sort(np.array([b for _, b in spans], dtype=np.int64))
    return starts, ends
