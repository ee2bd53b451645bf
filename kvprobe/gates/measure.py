"""The value of a gate's metric in a finished run: from the raw rows and readings, never from rounded ones.

A latency is judged *with* the waits that a timeout or the end of the run cut short: a server that hangs
must not pass a threshold because the requests that hung have no latency.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec
import numpy as np

from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.rundata import RunData
from kvprobe.gates import gauges
from kvprobe.gates.expressions import Gate
from kvprobe.gates.intervals import mean_interval, wilson
from kvprobe.gates.slo import attainment, read_slo
from kvprobe.summary import latency
from kvprobe.summary.build import Summary, measured_rows
from kvprobe.summary.quantiles import censored_quantile, needed, quantile

Lack = Literal["n_too_small", "not_measured"]


class Measured(msgspec.Struct, kw_only=True):
    """A value with its interval, or why there is none. `at_least` marks a lower bound: some of what
    goes into it was cut short."""

    value: float | None = None
    lo: float | None = None
    hi: float | None = None
    n: int = 0
    lack: Lack | None = None
    why: str | None = None
    at_least: bool = False


def measure(gate: Gate, summary: Summary, run: RunData) -> Measured:
    """What the run says about the gate's metric. Where nothing was measured, a zero is no result."""
    if not summary.requests.sent:
        return _missing("no request was measured")
    if gate.of.form == "gauge":
        return _gauge(gate, summary, run)
    if gate.of.form == "distribution":
        return _latency(gate, measured_rows(run))
    return _scalar(gate, summary, run)


def _missing(why: str, n: int = 0, lack: Lack = "not_measured") -> Measured:
    return Measured(n=n, lack=lack, why=why)


# -- latencies -------------------------------------------------------------------------------


class Values(msgspec.Struct):
    """Values in order of time, the waits that were cut short, and whose values they are (gaps)."""

    seen: list[float]
    cut: list[float]
    owners: list[int] | None
    missing: int
    failed: int


def _latency(gate: Gate, rows: Sequence[RequestRecord]) -> Measured:
    values = values_of(gate.metric, sorted(rows, key=lambda r: r.sent_ns or r.intended_ns))
    if not values.seen and not values.cut:
        return _missing(_why_empty(values, rows))
    found = _statistic(gate, values)
    if found.why is None and values.missing:
        found.why = f"{values.missing} requests that ended well do not have it"
    return found


def values_of(metric: str, rows: Sequence[RequestRecord]) -> Values:
    ok = [r for r in rows if r.failure is None]
    failed = [r for r in rows if r.failure is not None]
    cut = [r for r in failed if r.failure in latency.CENSORING]
    if metric == "gap":
        pairs = [(g * latency.NS, i) for i, r in enumerate(ok) for g in r.gaps_ns]
        waits = [w for r in cut if (w := latency.between(r.end_ns, r.last_token_ns))]
        return Values(
            [v for v, _ in pairs],
            waits,
            [i for _, i in pairs],
            sum(1 for r in ok if not r.gaps_ns),
            len(failed),
        )
    if metric in ("tpot", "dispatch_delay"):
        of = latency.tpot_s if metric == "tpot" else latency.dispatch_delay_s
        seen = [v for r in (ok if metric == "tpot" else rows) if (v := of(r)) is not None]
        missing = len(ok) - len(seen) if metric == "tpot" else 0
        return Values(seen, [], None, missing, len(failed))
    value_of, start_of = latency.LATENCIES[f"{metric}_s"]
    whole = metric in ("e2e", "response_latency")
    done = rows if not whole else ok
    seen = [v for r in done if (v := value_of(r)) is not None]
    waits = [
        w
        for r in cut
        if (whole or value_of(r) is None) and (w := latency.between(r.end_ns, start_of(r))) is not None
    ]
    return Values(seen, waits, None, sum(1 for r in ok if value_of(r) is None), len(failed))


def _why_empty(values: Values, rows: Sequence[RequestRecord]) -> str:
    if not rows:
        return "no request was measured"
    if values.failed == len(rows):
        return "no request ended well"
    return "no request that ended well has it (no usage from the server, or answers of one token)"


def _statistic(gate: Gate, values: Values) -> Measured:
    n, cut = len(values.seen) + len(values.cut), len(values.cut)
    word = gate.statistic or "mean"
    told = f"{cut} waits that were cut short count as at least that long" if cut else None
    if word == "mean":
        both = [*values.seen, *values.cut]
        bounds = mean_interval(values.seen) if not cut else None
        found = Measured(value=float(np.mean(both)), n=n, why=told, at_least=bool(cut))
        found.lo, found.hi = bounds or (None, None)
        return found
    if word == "max":
        return Measured(value=max([*values.seen, *values.cut]), n=n, why=told, at_least=bool(cut))
    if word == "min" or gate.q == 0.0:
        return Measured(value=min([*values.seen, *values.cut]), n=n, why=told, at_least=bool(cut))
    return _percentile(gate, values, n, told)


def _percentile(gate: Gate, values: Values, n: int, told: str | None) -> Measured:
    q = gate.q
    assert q is not None
    found = quantile([*values.seen, *values.cut], q, _clusters(values))
    if found.value is None:
        return _missing(found.reason or "n too small", n, "n_too_small")
    if not values.cut:
        return Measured(value=found.value, lo=found.lo, hi=found.hi, n=n)
    seen, cut = np.asarray(values.seen, dtype=np.float64), np.asarray(values.cut, dtype=np.float64)
    value = censored_quantile(seen, cut, q)
    if value is not None:
        return Measured(value=value, n=n, why=told)
    why = f"{gate.name} is longer than {float(cut.max()):.3g} s, when the wait was cut short"
    return Measured(value=float(cut.max()), n=n, why=why, at_least=True)


def _clusters(values: Values) -> list[int] | None:
    """Whose value each is; a wait that was cut short stands for itself."""
    if values.owners is None:
        return None
    first = max(values.owners, default=0) + 1
    return [*values.owners, *range(first, first + len(values.cut))]


# -- gauges ----------------------------------------------------------------------------------


def _gauge(gate: Gate, summary: Summary, run: RunData) -> Measured:
    points, why = gauges.during_load(run, summary, gate.metric)
    if not points:
        return _missing(why)
    n, word = len(points), gate.statistic or "mean"
    if word == "max":
        largest = summary.metrics.kv_usage_max if gate.metric == "kv_usage" else None
        return Measured(value=largest if largest is not None else max(points), n=n, why=_SAMPLED)
    if word == "min" or gate.q == 0.0:
        return Measured(value=min(points), n=n, why=_SAMPLED)
    if word == "mean":
        bounds = mean_interval(points)
        return Measured(
            value=float(np.mean(points)),
            lo=bounds[0] if bounds else None,
            hi=bounds[1] if bounds else None,
            n=n,
        )
    q = gate.q
    assert q is not None
    if n < needed(q):
        why = f"n too small: {n} readings, {gate.statistic} needs {needed(q)}"
        return _missing(why, n, "n_too_small")
    return Measured(value=float(np.quantile(points, q)), n=n, why="readings follow one another: no interval")


_SAMPLED = "of the readings: a peak between two of them is not seen"


# -- plain numbers ---------------------------------------------------------------------------


def _scalar(gate: Gate, summary: Summary, run: RunData) -> Measured:
    return _SCALARS[gate.metric](summary, run)


def _error_rate(summary: Summary, run: RunData) -> Measured:
    counted = summary.requests
    n = counted.ok + counted.failed
    if not n:
        return _missing("no request ended")
    lo, hi = wilson(counted.failed, n) or (None, None)
    kinds = ", ".join(f"{count} {kind}" for kind, count in counted.by_failure.items())
    return Measured(value=counted.failed / n, lo=lo, hi=hi, n=n, why=kinds or None)


def _hit_rate(summary: Summary, run: RunData) -> Measured:
    rate = summary.metrics.prefix_hit_rate
    if rate.got is None:
        return _missing(rate.reason or "not exported")
    return Measured(value=rate.got, n=summary.requests.ok, why=f"from {rate.got_source}")


def _preemptions(summary: Summary, run: RunData) -> Measured:
    value = summary.metrics.preemptions
    if value is None:
        return _missing(summary.metrics.reasons.get("preemptions", "not exported"))
    return Measured(value=value, n=summary.requests.sent)


def _output_rate(summary: Summary, run: RunData) -> Measured:
    value = summary.metrics.output_tokens_per_s
    if value is None:
        return _missing(summary.metrics.reasons.get("output_tokens_per_s", "not known"))
    return Measured(value=value, n=summary.requests.ok)


def _request_rate(summary: Summary, run: RunData) -> Measured:
    value = summary.metrics.rates.completed_per_s
    if value is None:
        return _missing("the window has no length")
    return Measured(value=value, n=summary.requests.ok)


def _goodput(summary: Summary, run: RunData) -> Measured:
    """Good requests over the measured window; the interval is that of their share."""
    share, seconds = _attainment(summary, run), summary.window.seconds
    if share.value is None or not seconds:
        return share if share.value is None else _missing("the window has no length")
    rate = share.n / seconds
    lo = share.lo * rate if share.lo is not None else None
    hi = share.hi * rate if share.hi is not None else None
    return Measured(value=share.value * rate, lo=lo, hi=hi, n=share.n, why=share.why)


def _attainment(summary: Summary, run: RunData) -> Measured:
    slo = read_slo(run.workload)
    if not slo:
        return _missing("the workload states no `slo`")
    found = attainment(measured_rows(run), slo)
    if found.reason is not None:
        return _missing(found.reason)
    lo, hi = wilson(found.good, found.sent) or (None, None)
    said = ", ".join(f"{name} <= {limit:g} s" for name, limit in slo.items())
    return Measured(
        value=found.good / found.sent,
        lo=lo,
        hi=hi,
        n=found.sent,
        why=f"{found.good} of {found.sent}: {said}",
    )


def _count(of: Callable[[Summary], int | None]) -> Callable[[Summary, RunData], Measured]:
    def count(summary: Summary, run: RunData) -> Measured:
        value = of(summary)
        if value is None:
            return _missing("no request was sent")
        return Measured(value=float(value), n=summary.requests.intended)

    return count


_SCALARS: dict[str, Callable[[Summary, RunData], Measured]] = {
    "error_rate": _error_rate,
    "prefix_hit_rate": _hit_rate,
    "preemptions": _preemptions,
    "output_tokens_per_s": _output_rate,
    "requests_per_s": _request_rate,
    "goodput": _goodput,
    "slo_attainment": _attainment,
    "requests_ok": _count(lambda s: s.requests.ok),
    "requests_failed": _count(lambda s: s.requests.failed),
    "requests_unsent": _count(lambda s: s.requests.unsent),
    "max_active": _count(lambda s: s.metrics.max_active),
}
