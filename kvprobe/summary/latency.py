"""Latencies of one run, from the raw instants of its requests (definitions: docs/measuring.md).

Two readings of each latency are kept. *Without failures*: the requests that ended well. *With
failures*: these, the tokens that failed streams still delivered, and the waits that a timeout or
the end of the run cut short. Such a wait is known only to be longer than what was seen of it, so it
is counted as censored (Kaplan & Meier), never dropped and never taken as a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

import msgspec
import numpy as np

from kvprobe.evidence.records import CANCELLED, RequestRecord
from kvprobe.summary.quantiles import Floats, Quantile, censored_quantile, quantiles

NS = 1e-9
SHOWN = {"p50": 0.50, "p95": 0.95, "p99": 0.99, "p999": 0.999}
CENSORING = frozenset({"timeout_first", "timeout_gap", "timeout_total", "cancelled_at_end"})
"""Failures that say: it would have taken longer than this. The others say nothing about time."""


class WithFailures(msgspec.Struct, kw_only=True):
    """The same latency when failed requests are let in; seconds, null where it cannot be known."""

    n: int
    censored: int
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    reasons: dict[str, str] = msgspec.field(default_factory=dict)


class Distribution(msgspec.Struct, kw_only=True):
    """One latency over the measured requests that ended well; seconds.

    `ci` maps a percentile to its 95 % interval `{"lo", "hi"}`; `lo` is null for a one-sided bound.
    `reasons` says why a value is null. `missing` counts requests that ended well but do not have
    this latency (no usage, a single token, ...).
    """

    n: int
    mean: float | None = None
    min: float | None = None
    max: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    p999: float | None = None
    ci: dict[str, dict[str, float | None]] = msgspec.field(default_factory=dict)
    reasons: dict[str, str] = msgspec.field(default_factory=dict)
    missing: int = 0
    requests: int | None = None
    """For pooled gaps: how many requests they come from."""
    with_failures: WithFailures | None = None


Instant = Callable[[RequestRecord], float | None]


def between(later_ns: int | None, earlier_ns: int | None) -> float | None:
    """Seconds from one instant to another; null when one did not happen or they are out of order."""
    if later_ns is None or earlier_ns is None or later_ns < earlier_ns:
        return None
    return (later_ns - earlier_ns) * NS


def ttft_s(r: RequestRecord) -> float | None:
    return between(r.first_token_ns, r.sent_ns)


def ttfo_s(r: RequestRecord) -> float | None:
    return between(r.first_visible_ns, r.sent_ns)


def e2e_s(r: RequestRecord) -> float | None:
    """Service latency: from sent to the last token, not to `[DONE]`. A request that we gave up has none."""
    return None if r.finish_reason == CANCELLED else between(r.last_token_ns, r.sent_ns)


def response_latency_s(r: RequestRecord) -> float | None:
    """From the instant the schedule wanted the request to its last token."""
    return None if r.finish_reason == CANCELLED else between(r.last_token_ns, r.intended_ns)


def response_ttft_s(r: RequestRecord) -> float | None:
    return between(r.first_token_ns, r.intended_ns)


def dispatch_delay_s(r: RequestRecord) -> float | None:
    return between(r.sent_ns, r.intended_ns)


def tpot_s(r: RequestRecord) -> float | None:
    """Time per output token after the first; null without usage or with fewer than two tokens."""
    decode = between(r.last_token_ns, r.first_token_ns)
    if decode is None or r.completion_tokens is None or r.completion_tokens < 2:
        return None
    return decode / (r.completion_tokens - 1)


def chunk_instants_ns(r: RequestRecord) -> list[int]:
    """When each content chunk came, from the first token and the gaps."""
    if r.first_token_ns is None:
        return []
    return list(accumulate(r.gaps_ns, initial=r.first_token_ns))


LATENCIES: dict[str, tuple[Instant, Callable[[RequestRecord], int | None]]] = {
    # name: (value, the instant that the wait counts from when it was cut short)
    "ttft_s": (ttft_s, lambda r: r.sent_ns),
    "ttfo_s": (ttfo_s, lambda r: r.sent_ns),
    "e2e_s": (e2e_s, lambda r: r.sent_ns),
    "response_latency_s": (response_latency_s, lambda r: r.intended_ns),
    "response_ttft_s": (response_ttft_s, lambda r: r.intended_ns),
}
_TO_LAST_TOKEN = frozenset({"e2e_s", "response_latency_s"})


def describe(
    values: Sequence[float] | Floats, *, missing: int = 0, clusters: Sequence[int] | None = None
) -> Distribution:
    """Mean and percentiles of a sample, each percentile with its interval or the reason for its absence."""
    data = np.asarray(values, dtype=np.float64)
    out = Distribution(n=int(data.size), missing=missing)
    if data.size:
        out.mean, out.min, out.max = float(data.mean()), float(data.min()), float(data.max())
    if clusters is not None:
        out.requests = len(set(clusters))
    for name, found in zip(SHOWN, quantiles(data, list(SHOWN.values()), clusters), strict=True):
        _put(out, name, found)
    return out


def _put(out: Distribution, name: str, found: Quantile) -> None:
    setattr(out, name, found.value)
    if found.value is None:
        out.reasons[name] = found.reason or "not known"
        return
    out.ci[name] = {"lo": found.lo, "hi": found.hi}


def latency(name: str, measured: Sequence[RequestRecord]) -> Distribution:
    """One of `LATENCIES` over the measured (not warm-up) requests."""
    value_of, start_of = LATENCIES[name]
    ok = [r for r in measured if r.failure is None]
    values = [v for r in ok if (v := value_of(r)) is not None]
    out = describe(values, missing=len(ok) - len(values))
    events, censored = list(values), []
    for record in (r for r in measured if r.failure is not None):
        value = value_of(record)
        # A stream that failed did not reach its last token, so it has no end-to-end time.
        if value is not None and name not in _TO_LAST_TOKEN:
            events.append(value)
        elif record.failure in CENSORING and (cut := between(record.end_ns, start_of(record))) is not None:
            censored.append(cut)
    out.with_failures = _with_failures(events, censored)
    return out


def _with_failures(events: Sequence[float], censored: Sequence[float]) -> WithFailures:
    seen, cut = np.asarray(events, dtype=np.float64), np.asarray(censored, dtype=np.float64)
    out = WithFailures(n=len(events) + len(censored), censored=len(censored))
    plain = quantiles(np.concatenate((seen, cut)), [SHOWN["p50"], SHOWN["p95"], SHOWN["p99"]])
    for name, found in zip(("p50", "p95", "p99"), plain, strict=True):
        if found.value is None:
            out.reasons[name] = found.reason or "not known"
            continue
        value = censored_quantile(seen, cut, found.q) if len(censored) else found.value
        setattr(out, name, value)
        if value is None:
            out.reasons[name] = f"censored: longer than {float(cut.max()):.3g} s, when the wait was cut short"
    return out


def gaps(measured: Sequence[RequestRecord]) -> Distribution:
    """All inter-chunk gaps, pooled; the gaps of one stream count as one cluster."""
    ok = [r for r in measured if r.failure is None]
    values, owners = _pool(ok)
    out = describe(values, missing=sum(1 for r in ok if not r.gaps_ns), clusters=owners)
    failed = [r for r in measured if r.failure is not None]
    events, _ = _pool(failed)
    cut = [
        v
        for r in failed
        if r.failure in CENSORING and (v := between(r.end_ns, r.last_token_ns)) is not None and v > 0
    ]
    out.with_failures = _with_failures(np.concatenate((values, events)).tolist(), cut)
    return out


def _pool(records: Iterable[RequestRecord]) -> tuple[Floats, list[int]]:
    pooled: list[int] = []
    owners: list[int] = []
    for i, record in enumerate(records):
        pooled.extend(record.gaps_ns)
        owners.extend([i] * len(record.gaps_ns))
    return np.asarray(pooled, dtype=np.float64) * NS, owners


def per_token(measured: Sequence[RequestRecord]) -> Distribution:
    """TPOT over the requests that ended well (a failed stream has no usage, hence no TPOT)."""
    ok = [r for r in measured if r.failure is None]
    values = [v for r in ok if (v := tpot_s(r)) is not None]
    out = describe(values, missing=len(ok) - len(values))
    if ok and not values:
        counted = any(r.completion_tokens is not None for r in ok)
        out.reasons = dict.fromkeys(out.reasons, "single tokens" if counted else "no usage")
    return out
