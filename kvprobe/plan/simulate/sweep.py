"""The same trace under several settings: a table, its knee, and the smallest pool that keeps a limit."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvprobe.errors import Problem, UsageError
from kvprobe.plan.simulate.outcome import Rows, concurrency, pool_use, preemptions, prefixes, spread
from kvprobe.plan.simulate.replay import Smallest, Sweep, SweepRow
from kvprobe.plan.simulate.server import Server

NEAR_BEST = 1.1
WIDEST = 64
"""The search for the smallest pool goes up to so many times the pool that was given."""
_LIMIT = re.compile(r"([a-z0-9_.]{1,30}) ?(<=|<) ?([0-9]{1,12}(?:\.[0-9]{1,6})?) ?(%|ms|s)?")
_METRICS = ("preempted", "preemptions", "refused", "ttft.p50", "ttft.p95", "ttft.p99", "queue.p95", "e2e.p95")
_UNITS = {"%": 0.01, "ms": 1e-3}
_KINDS = {"preempted": ("%", ""), "refused": ("%", ""), "preemptions": ("",)}
"""Units of metrics that are no times."""


def sweep_row(value: str, server: Server, bytes_per_token: float | None, *, named: bool) -> SweepRow:
    """What one value gave."""
    rows = Rows(server)
    pool, seats = pool_use(server, bytes_per_token), concurrency(server, rows)
    lost = preemptions(server, rows)
    queue, ttft, e2e = (spread(column[rows.ok]) for column in (rows.queue_s, rows.ttft_s, rows.e2e_s))
    return SweepRow(
        value=value,
        usable_blocks=pool.usable_blocks,
        pool_bytes=pool.bytes,
        refused=server.refused,
        failed=int((rows.status == 3).sum()),
        running_mean=seats.mean,
        running_peak=seats.peak,
        peak_ratio=pool.peak_ratio,
        hit_rate=prefixes(server, named=named).hit_rate,
        preemptions=lost.events,
        preempted_share=lost.share,
        queue_p95_s=queue.p95 if queue else None,
        ttft_p50_s=ttft.p50 if ttft else None,
        ttft_p95_s=ttft.p95 if ttft else None,
        e2e_p95_s=e2e.p95 if e2e else None,
        physical_over_logical=pool.physical_over_logical,
    )


def sweep_of(name: str, rows: list[SweepRow]) -> Sweep:
    """The table and its knee. Values that refuse more than others are not compared by their latency."""
    least = min(row.refused for row in rows)
    usable = [row for row in rows if row.refused == least and row.e2e_p95_s is not None]
    if not usable:
        return Sweep(name=name, rows=rows, knee=None, why="nothing was served")
    best = min(row.e2e_p95_s for row in usable if row.e2e_p95_s is not None)
    knee = next(row for row in usable if row.e2e_p95_s is not None and row.e2e_p95_s <= NEAR_BEST * best)
    why = f"the first value whose end-to-end p95 is within 10 % of the best ({best:.3g})"
    if least != max(row.refused for row in rows):
        why += f", among those that refuse only {least:,}"
    return Sweep(name=name, rows=rows, knee=knee.value, why=why)


@dataclass(frozen=True, slots=True)
class Limit:
    """`metric op value`; seconds and shares, whatever they were written in."""

    text: str
    metric: str
    strict: bool
    value: float

    def kept(self, measured: float) -> bool:
        return measured < self.value if self.strict else measured <= self.value

    def measure(self, server: Server) -> float:
        """The metric of a simulation; infinite where nothing was served."""
        rows = Rows(server)
        if self.metric == "preemptions":
            return float(preemptions(server, rows).events)
        if self.metric == "preempted":
            return preemptions(server, rows).share
        if self.metric == "refused":
            return server.refused / max(server.rows, 1)
        name, _, q = self.metric.partition(".p")
        column = {"ttft": rows.ttft_s, "queue": rows.queue_s, "e2e": rows.e2e_s}[name]
        found = column[rows.ok]
        if not len(found):
            return float("inf")
        return float(np.quantile(found, int(q) / 100, method="inverted_cdf"))


def parse_limit(text: str) -> Limit:
    """`preempted <= 1%`, `ttft.p95 < 2s`. Raises UsageError with what can be written."""
    found = _LIMIT.fullmatch(text.strip())
    if found is None or found[1] not in _METRICS:
        fix = f"write METRIC <= VALUE, METRIC one of: {', '.join(_METRICS)}"
        raise UsageError(Problem("bad_limit", f"--find-pool: `{text[:60]}` is no limit", fix))
    unit = found[4] or ""
    known = _KINDS.get(found[1], ("s", "ms"))
    if unit not in known:
        fix = f"write it {' or '.join(f'in {u}' if u else 'without a unit' for u in known)}"
        raise UsageError(Problem("bad_limit", f"--find-pool: `{text[:60]}` has the wrong unit", fix))
    return Limit(text.strip(), found[1], found[2] == "<", float(found[3]) * _UNITS.get(unit, 1.0))


def smallest_pool(
    limit: Limit, first_blocks: int, least_blocks: int, run: Callable[[int], Server], most_blocks: int
) -> tuple[int | None, float | None, int]:
    """Blocks of the smallest pool that keeps the limit to within 1 %, what was measured, pools tried.

    By doubling from `first_blocks`, then bisection: what is limited is taken to fall as the pool grows.
    """
    tried: dict[int, float] = {}
    high_first = max(first_blocks, least_blocks)

    refused: dict[int, int] = {}

    def kept(blocks: int) -> bool:
        if blocks not in tried:
            server = run(blocks)
            tried[blocks], refused[blocks] = limit.measure(server), server.refused
        # A pool that refuses what the first one serves is no answer.
        return limit.kept(tried[blocks]) and refused[blocks] <= refused[high_first]

    high = high_first
    while not kept(high):
        if high >= most_blocks:
            return None, tried[high], len(tried)
        high = min(2 * high, most_blocks)
    low = least_blocks - 1
    while high - low > max(1, high // 100):
        middle = (low + high) // 2 if low >= high // 4 else max(high // 2, low + 1)
        low, high = (low, middle) if kept(middle) else (middle, high)
    return high, tried[high], len(tried)


def smallest_part(
    limit: Limit, found: tuple[int | None, float | None, int], slot: int, bytes_per_token: float | None
) -> Smallest:
    """As the document says it."""
    blocks, measured, tried = found
    tokens = None if blocks is None else blocks * slot
    if blocks is None:
        why = f"no pool up to {WIDEST} times the given one keeps it: the pool is not what decides it"
    else:
        why = "to within 1 % of the pool, where what is limited falls as the pool grows"
    return Smallest(
        limit=limit.text,
        usable_blocks=blocks,
        tokens=tokens,
        bytes=None if tokens is None or bytes_per_token is None else round(tokens * bytes_per_token),
        measured=None if measured is None or measured == float("inf") else measured,
        tried=tried,
        why=why,
    )
