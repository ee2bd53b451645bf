"""Cold requests against warm ones: what a prefix hit changed, from the rows alone.

*Warm* is a request whose prefix was served from the cache, *cold* one whose prefix was not, although
others of its family were. Where the server says how many tokens it took from the cache, that
decides; where it does not, the first request of a prefix is cold, and those sent after its first
token came are warm. Requests that are neither (a part was cached, or the prefix was still being
computed) are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from kvprobe.diagnose.decode import Decode, decode_contrast
from kvprobe.evidence.records import RequestRecord
from kvprobe.summary.latency import tpot_s, ttft_s
from kvprobe.summary.quantiles import Quantile, Ratio, median_ratio, quantile

COLD_SHARE, WARM_SHARE = 0.2, 0.8
"""Of what a family shares: less from the cache is cold, more is warm."""
SUBSTANTIAL_SHARE = 0.25
"""A shared part below this share of the prompt (a template, one block) makes no contrast."""
MIN_EACH = 20
MIN_FAMILIES = 10
LENGTH_TOLERANCE = 0.15
"""Cold and warm prompts may differ by this much in median length; beyond it length is compared."""


@dataclass(slots=True)
class Contrast:
    """The two groups and what was measured on them."""

    basis: Literal["cached_tokens", "send_order"]
    cold: list[RequestRecord]
    warm: list[RequestRecord]
    families: int
    """Prefixes (or single prompts) that the cold requests stand for."""
    ttft_cold: Quantile | None = None
    ttft_warm: Quantile | None = None
    ttft_ratio: Ratio | None = None
    """cold / warm: above 1 means that a hit was faster."""
    tpot_ratio: Ratio | None = None
    """TPOT, warm / cold, as it stands"""
    decode: Decode | None = None
    """warm / cold with the company of each request taken out; see `decode`"""
    too_small: str | None = None
    notes: list[str] = field(default_factory=list)


def contrast(ok: Sequence[RequestRecord], everyone: Sequence[RequestRecord] = ()) -> Contrast | None:
    """`ok` are the requests to compare, `everyone` all that the server worked on beside them.

    Null when nothing in these requests was, or could have been, served from the cache."""
    server_says = any(r.cached_tokens is not None for r in ok)
    found = _by_cached_tokens(ok) if server_says else _by_send_order(ok)
    if found is None:
        return None
    found.too_small = _too_small(found)
    if found.too_small is None:
        _measure(found, everyone or ok)
    return found


def _families(ok: Sequence[RequestRecord]) -> dict[str, list[RequestRecord]]:
    groups: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in sorted(ok, key=lambda r: r.sent_ns or 0):
        groups[record.prefix_id or ""].append(record)
    return groups


def _by_cached_tokens(ok: Sequence[RequestRecord]) -> Contrast | None:
    cold: list[RequestRecord] = []
    warm: list[RequestRecord] = []
    groups = _families(ok)
    for rows in groups.values():
        known = [r for r in rows if r.cached_tokens is not None and r.prompt_tokens]
        shared = max((r.cached_tokens or 0 for r in known), default=0)
        # A family of which nothing was ever served from the cache shows no contrast; its
        # requests are cold for reasons that this comparison is not about.
        if not known or shared < SUBSTANTIAL_SHARE * float(np.median([r.prompt_tokens or 0 for r in known])):
            continue
        cold += [r for r in known if (r.cached_tokens or 0) < COLD_SHARE * shared]
        warm += [r for r in known if (r.cached_tokens or 0) >= WARM_SHARE * shared]
    if not warm:
        return None
    named = {r.prefix_id for r in cold if r.prefix_id is not None}
    families = len(named) + (1 if any(r.prefix_id is None for r in cold) else 0)
    return Contrast(basis="cached_tokens", cold=cold, warm=warm, families=families)


def _by_send_order(ok: Sequence[RequestRecord]) -> Contrast | None:
    cold: list[RequestRecord] = []
    warm: list[RequestRecord] = []
    for prefix, rows in _families(ok).items():
        if not prefix or len(rows) < 2 or rows[0].first_token_ns is None:
            continue
        ready_ns = rows[0].first_token_ns
        cold.append(rows[0])
        warm += [r for r in rows[1:] if (r.sent_ns or 0) > ready_ns]
    if not warm:
        return None
    return Contrast(basis="send_order", cold=cold, warm=warm, families=len(cold))


def _too_small(c: Contrast) -> str | None:
    if len(c.cold) >= MIN_EACH and len(c.warm) >= MIN_EACH and c.families >= MIN_FAMILIES:
        return None
    return (
        f"n too small: {len(c.cold)} cold requests over {c.families} prefixes and {len(c.warm)} warm ones; "
        f"a comparison needs {MIN_EACH} cold over {MIN_FAMILIES} prefixes and {MIN_EACH} warm"
    )


def _measure(c: Contrast, everyone: Sequence[RequestRecord]) -> None:
    cold, warm = _values(c.cold, ttft_s), _values(c.warm, ttft_s)
    c.ttft_cold, c.ttft_warm = quantile(cold, 0.5), quantile(warm, 0.5)
    c.ttft_ratio = median_ratio(cold, warm, seed=1)
    _note_lengths(c)
    c.tpot_ratio = median_ratio(_values(c.warm, tpot_s), _values(c.cold, tpot_s), seed=2)
    c.decode = decode_contrast(c.cold, c.warm, everyone, c.tpot_ratio)


def _values(rows: Sequence[RequestRecord], of: Callable[[RequestRecord], float | None]) -> list[float]:
    return [v for r in rows if (v := of(r)) is not None]


def _note_lengths(c: Contrast) -> None:
    lengths = [
        float(np.median([r.prompt_tokens for r in rows if r.prompt_tokens] or [0]))
        for rows in (c.cold, c.warm)
    ]
    if min(lengths) > 0 and max(lengths) / min(lengths) > 1.0 + LENGTH_TOLERANCE:
        c.notes.append(
            f"cold prompts are {lengths[0]:,.0f} tokens long and warm ones {lengths[1]:,.0f}: not alike"
        )
