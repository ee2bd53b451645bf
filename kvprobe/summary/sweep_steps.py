"""From the runs of a sweep to its steps."""

from __future__ import annotations

from collections.abc import Iterable

from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.rundata import RunData
from kvprobe.observe.aggregate import Quantile, bucket_growth, quantile
from kvprobe.summary import activity
from kvprobe.summary.backlog import Backlog, backlog
from kvprobe.summary.build import Summary, measured_rows
from kvprobe.summary.latency import NS, Distribution
from kvprobe.summary.sweep import Bound, Step

SKIPPED_SHARE = 0.2
"""Of the step: at its start the requests in flight rise to their level, whatever the rate."""
PERCENTILES = ("p50", "p95", "p99")
QUEUE = "engine.queue_seconds"


def step_of(run: RunData, summary: Summary, load: float, *, valid: bool, because: str | None) -> Step:
    """The numbers of one step; its verdict is for `sweep.judge`."""
    measured = measured_rows(run)
    start, end = _issuing(measured, summary)
    middle = queue_p50(run)
    return Step(
        load=load,
        served_per_s=_served(run, start, end),
        output_tokens_per_s=summary.metrics.output_tokens_per_s,
        requests=summary.requests.sent,
        failed_share=_failed_share(summary),
        ttft_s=bounds(summary.metrics.ttft_s),
        tpot_s=bounds(summary.metrics.tpot_s),
        queue_s=queue_s(run),
        queue_p50_s=middle.value if middle is not None else None,
        queue_p50_at_least=middle is not None and middle.at_least,
        max_active=summary.metrics.max_active,
        backlog=_backlog(run, start, end),
        valid=valid,
        invalid_because=because,
        run_dir=run.path.name,
    )


def bounds(found: Distribution) -> dict[str, Bound]:
    """Mean and percentiles; what n cannot carry says so."""
    out = {"mean": Bound(value=found.mean, reason=None if found.mean is not None else "no values")}
    for name in PERCENTILES:
        ci = found.ci.get(name, {})
        out[name] = Bound(
            value=getattr(found, name), lo=ci.get("lo"), hi=ci.get("hi"), reason=found.reasons.get(name)
        )
    return out


def queue_s(run: RunData) -> float | None:
    """Mean time in the server's queue over the load; null where it exports none."""
    total = activity.increase(run.samples, f"{QUEUE}_sum")
    count = activity.increase(run.samples, f"{QUEUE}_count")
    return total.value / count.value if total is not None and count is not None and count.value > 0 else None


def queue_p50(run: RunData) -> Quantile | None:
    """Median time in the server's queue of what left it during the load; null where it exports no buckets."""
    at: dict[int, dict[float, float]] = {}
    for sample, value in activity.readings(run.samples, f"{QUEUE}_bucket"):
        edge = _edge(sample.labels.get("le"))
        if edge is not None:
            here = at.setdefault(sample.t_ns, {})
            here[edge] = here.get(edge, 0.0) + value
    if len(at) < 2:
        return None
    start, end = (activity.mark_ns(run.samples, mark) for mark in (activity.LOAD_START, activity.LOAD_END))
    first = min(at) if start is None else _nearest(at, start)
    last = max(at) if end is None else _nearest(at, end)
    grown = bucket_growth(at[first], at[last]) if first < last else None
    return quantile(grown, 0.5) if grown is not None else None


def _nearest(instants: Iterable[int], wanted: int) -> int:
    return min(instants, key=lambda t: abs(t - wanted))


def _edge(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _issuing(measured: list[RequestRecord], summary: Summary) -> tuple[int | None, int | None]:
    """From the first to the last measured instant of the schedule, or to when issuing stopped."""
    wanted = [r.intended_ns for r in measured]
    if not wanted:
        return None, None
    return min(wanted), max(max(wanted), summary.window.issue_end_ns or 0)


def _served(run: RunData, start: int | None, end: int | None) -> float | None:
    """Requests that ended well while others were issued, warm-up ones that ended then included."""
    if start is None or end is None or end <= start:
        return None
    start += int(SKIPPED_SHARE * (end - start))
    done = [e for r in run.records if r.failure is None and (e := r.end_ns or r.last_token_ns) is not None]
    return sum(1 for e in done if start <= e <= end) / ((end - start) * NS)


def _backlog(run: RunData, start: int | None, end: int | None) -> Backlog | None:
    if start is None or end is None:
        return None
    waiting = activity.series(run.samples, "engine.requests_waiting", start, end)
    return backlog(run.records, start + int(SKIPPED_SHARE * (end - start)), end, waiting)


def _failed_share(summary: Summary) -> float | None:
    counted = summary.requests
    if not counted.intended:
        return None
    return (counted.failed_before_end + counted.unsent) / counted.intended
