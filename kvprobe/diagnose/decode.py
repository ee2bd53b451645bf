"""Did decode itself differ between cold and warm requests?

TPOT as it stands cannot answer that. Cold requests come together, at the start of a run or of a
round, and the engine computes their prefill in the same steps in which others decode; so a cold
request decodes in slower company. That company is taken out, in one of two ways:

- `together`: each cold request is compared with the warm ones that decoded at the same time, and so
  in the same steps. Needs many requests in flight.
- `undisturbed`: only chunk gaps during which nobody else waited for a first token are compared, and
  each cold request with the warm ones nearest in time (machines drift). Needs few in flight.

Where neither finds enough requests the plain TPOT ratio is given, and said to be plain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvprobe.evidence.records import RequestRecord
from kvprobe.summary.latency import chunk_instants_ns, tpot_s
from kvprobe.summary.quantiles import Ratio, median_ratio

MIN_COLD = 20
UNCHANGED = 0.15
OVERLAP_SHARE = 0.5
"""A warm request decoded together with a cold one if it did so for half of the cold one's decode."""
MIN_GAPS = 5
NEIGHBOURS = 5

Verdict = Literal["unchanged", "differs", "cannot_tell"]
Method = Literal["together", "undisturbed", "plain"]


@dataclass(frozen=True, slots=True)
class Decode:
    """Decode time of warm requests over that of cold ones."""

    ratio: Ratio
    verdict: Verdict
    method: Method
    pairs: int
    """Cold requests that had warm ones to stand beside."""


def decode_contrast(
    cold: Sequence[RequestRecord],
    warm: Sequence[RequestRecord],
    everyone: Sequence[RequestRecord],
    plain: Ratio,
) -> Decode:
    """The first of the methods that finds at least `MIN_COLD` cold requests with company."""
    methods: tuple[tuple[Method, list[float]], ...] = (
        ("together", together_ratios(cold, warm)),
        ("undisturbed", undisturbed_ratios(cold, warm, everyone)),
    )
    for method, ratios in methods:
        if len(ratios) >= MIN_COLD:
            ratio = median_ratio(ratios, [1.0] * len(ratios), seed=3)
            return Decode(ratio, judge_ratio(ratio), method, len(ratios))
    # Others' prefill is in the plain ratio: a difference may be all theirs, so it proves none of decode.
    verdict = judge_ratio(plain)
    return Decode(plain, "cannot_tell" if verdict == "differs" else verdict, "plain", 0)


def judge_ratio(ratio: Ratio) -> Verdict:
    """`unchanged` only if the whole interval lies close to 1; `differs` if it leaves 1 out."""
    if ratio.lo is None or ratio.hi is None:
        return "cannot_tell"
    if ratio.lo >= 1.0 - UNCHANGED and ratio.hi <= 1.0 + UNCHANGED:
        return "unchanged"
    return "differs" if ratio.lo > 1.0 or ratio.hi < 1.0 else "cannot_tell"


def together_ratios(cold: Sequence[RequestRecord], warm: Sequence[RequestRecord]) -> list[float]:
    """For each cold request: median TPOT of the warm ones that decoded beside it, over its own."""
    known = [(r, v) for r in warm if (v := tpot_s(r)) is not None]
    starts = np.array([r.first_token_ns or 0 for r, _ in known], dtype=np.int64)
    ends = np.array([r.last_token_ns or 0 for r, _ in known], dtype=np.int64)
    speeds = np.array([v for _, v in known], dtype=np.float64)
    ratios: list[float] = []
    for record in cold:
        own = tpot_s(record)
        if not own or record.first_token_ns is None or record.last_token_ns is None:
            continue
        overlap = np.minimum(ends, record.last_token_ns) - np.maximum(starts, record.first_token_ns)
        beside = overlap >= OVERLAP_SHARE * (record.last_token_ns - record.first_token_ns)
        if beside.any():
            ratios.append(float(np.median(speeds[beside])) / own)
    return ratios


def undisturbed_ratios(
    cold: Sequence[RequestRecord], warm: Sequence[RequestRecord], everyone: Sequence[RequestRecord]
) -> list[float]:
    """For each cold request: undisturbed chunk gap of the warm ones nearest in time, over its own."""
    waits = [
        (r.sent_ns, until)
        for r in everyone
        if r.sent_ns is not None and (until := r.first_token_ns or r.end_ns)
    ]
    starts = np.sort(np.array([a for a, _ in waits], dtype=np.int64))
    ends = np.sort(np.array([b for _, b in waits], dtype=np.int64))
    known = [(r.first_token_ns or 0, v) for r in warm if (v := _undisturbed_gap(r, starts, ends)) is not None]
    known.sort(key=lambda pair: pair[0])
    when = np.array([t for t, _ in known], dtype=np.float64)
    gaps = np.array([v for _, v in known], dtype=np.float64)
    ratios: list[float] = []
    for record in cold:
        own = _undisturbed_gap(record, starts, ends)
        if not own or len(known) < NEIGHBOURS:
            continue
        at = float(record.first_token_ns or 0)
        place = int(np.searchsorted(when, at))
        close = slice(max(0, place - NEIGHBOURS), place + NEIGHBOURS)  # the nearest are among these
        nearest = np.argsort(np.abs(when[close] - at), kind="stable")[:NEIGHBOURS]
        ratios.append(float(np.median(gaps[close][nearest])) / own)
    return ratios


def undisturbed_gaps(rows: Sequence[RequestRecord], everyone: Sequence[RequestRecord]) -> list[float]:
    """The median undisturbed chunk gap of each request that has enough of them, in ns."""
    waits = [
        (r.sent_ns, t) for r in everyone if r.sent_ns is not None and (t := r.first_token_ns or r.end_ns)
    ]
    starts = np.sort(np.array([a for a, _ in waits], dtype=np.int64))
    ends = np.sort(np.array([b for _, b in waits], dtype=np.int64))
    return [gap for r in rows if (gap := _undisturbed_gap(r, starts, ends)) is not None]


def _undisturbed_gap(
    record: RequestRecord, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> float | None:
    """Median gap (ns) among those in which no request waited for its first token; null for too few."""
    instants = np.asarray(chunk_instants_ns(record), dtype=np.int64)
    if instants.size < MIN_GAPS + 1:
        return None
    begin, end = instants[:-1], instants[1:]
    # Waits that began before the gap's end, less those that were over at its begin.
    waiting = np.searchsorted(starts, end, side="left") - np.searchsorted(ends, begin, side="right")
    free = (end - begin)[waiting <= 0]
    return float(np.median(free)) if free.size >= MIN_GAPS else None
