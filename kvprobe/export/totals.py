"""The client's rows as running totals: what a scrape at this instant would see."""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass, field

from kvprobe.evidence.records import RequestRecord
from kvprobe.summary import latency

BUCKETS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
"""Upper bounds, from a cached first token on a laptop to a queue that has given up."""


@dataclass(slots=True)
class Histogram:
    """Counts by bucket, not cumulative; the last is beyond all bounds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total_s: float = 0.0

    def add(self, value_s: float) -> None:
        self.counts[bisect.bisect_left(BUCKETS_S, value_s)] += 1
        self.total_s += value_s

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound as text, how many are at or below it)"""
        out, running = [], 0
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), self.counts, strict=True):
            running += count
            out.append((bound, float(running)))
        return out


LATENCIES = {
    "ttft_seconds": latency.ttft_s,
    "time_per_output_token_seconds": latency.tpot_s,
    "e2e_seconds": latency.e2e_s,
    "response_latency_seconds": latency.response_latency_s,
}


@dataclass(slots=True)
class Totals:
    """Measured requests only; warm-up counts apart."""

    sent: int = 0
    """Ended requests that were sent."""
    ok: int = 0
    warmup: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    # By the server's usage; null until one answer has told it: a server without usage has no such series.
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    histograms: dict[str, Histogram] = field(
        default_factory=lambda: {name: Histogram() for name in LATENCIES}
    )

    def take(self, row: RequestRecord) -> None:
        """One request that has ended."""
        if row.warmup:
            self.warmup += 1
            return
        if row.sent_ns is not None:
            self.sent += 1
        if row.failure is not None:
            self.failed[row.failure] += 1
            return
        self.ok += 1
        self.prompt_tokens = _plus(self.prompt_tokens, row.prompt_tokens)
        self.completion_tokens = _plus(self.completion_tokens, row.completion_tokens)
        self.cached_tokens = _plus(self.cached_tokens, row.cached_tokens)
        for name, value_of in LATENCIES.items():
            if (value := value_of(row)) is not None:
                self.histograms[name].add(value)


def _plus(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more
