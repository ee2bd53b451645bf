"""Requests in flight at one instant: how many tokens each of them can hold, and for how long it has.

From the client's rows alone: the prompt's tokens (as the server counted them, else as asked) and the
chunks that had come by then. A request that has no first token yet may be waiting, or be in its prefill;
where the server says how many run, so many are taken, those that already stream first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from kvprobe.evidence.records import RequestRecord
from kvprobe.summary.latency import NS, chunk_instants_ns


@dataclass(frozen=True, slots=True)
class Flight:
    """One request at that instant; `streams` once its first token had come."""

    record: RequestRecord
    tokens: int
    age_s: float
    streams: bool


def in_flight(records: Iterable[RequestRecord], t_ns: int) -> list[Flight]:
    """All that were sent and not yet over, the oldest first."""
    found = []
    for r in records:
        end = r.end_ns or r.last_token_ns
        if r.sent_ns is None or r.sent_ns > t_ns or end is None or end < t_ns:
            continue
        chunks = bisect_right(chunk_instants_ns(r), t_ns)
        prompt = r.prompt_tokens if r.prompt_tokens is not None else r.asked_prompt_tokens or 0
        found.append(Flight(r, prompt + chunks, (t_ns - r.sent_ns) * NS, chunks > 0))
    return sorted(found, key=lambda f: -f.age_s)


def holders(records: Iterable[RequestRecord], t_ns: int, running: float | None) -> list[Flight]:
    """Of those in flight, the ones that held the cache: `running` of them where the server says so."""
    flying = sorted(in_flight(records, t_ns), key=lambda f: (not f.streams, -f.age_s))
    return flying if running is None else flying[: max(round(running), 0)]


def fewest_holding(flights: Iterable[Flight], share: float) -> tuple[int, int]:
    """(so many requests hold `share` of the tokens, the least that one of these holds)."""
    sizes = sorted((f.tokens for f in flights), reverse=True)
    wanted, held = share * sum(sizes), 0
    for n, size in enumerate(sizes, start=1):
        held += size
        if held >= wanted:
            return n, size
    return 0, 0
