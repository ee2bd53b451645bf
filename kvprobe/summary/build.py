"""The evidence of a run directory in numbers: `summarise(run)`.

No judgement here: what the numbers mean is `kvprobe.diagnose`. Every value that cannot be known is
null, with the reason beside it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvprobe.evidence.facts import Fact
from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.rundata import RunData
from kvprobe.summary import activity, latency, rates
from kvprobe.summary.arrival import Arrival, read_arrival
from kvprobe.summary.jsonable import jsonable
from kvprobe.summary.layout import PromptLayout, read_layout
from kvprobe.summary.memory import Memory, memory
from kvprobe.summary.prefix import PrefixHitRate, prefix_hit_rate


class KvUsage(msgspec.Struct, kw_only=True):
    """Share of the KV pool in use while the load ran, as the server's gauge showed it."""

    max: float | None = None
    mean: float | None = None
    samples: int = 0
    points: list[tuple[float, float]] = msgspec.field(default_factory=list)
    """(seconds since the load started, ratio)"""
    reason: str | None = None


class Metrics(msgspec.Struct, kw_only=True):
    """The `metrics` of a `kvprobe.run/1` document; seconds, tokens a second, ratios."""

    ttft_s: latency.Distribution
    ttfo_s: latency.Distribution
    tpot_s: latency.Distribution
    gap_s: latency.Distribution
    e2e_s: latency.Distribution
    response_latency_s: latency.Distribution
    response_ttft_s: latency.Distribution
    dispatch_delay_s: latency.Distribution
    output_tokens_per_s: float | None
    max_active: int | None
    active: activity.MaxActive
    kv_usage_max: float | None
    kv_usage: KvUsage
    prefix_hit_rate: PrefixHitRate
    preemptions: float | None
    prompt_tokens: rates.Asked
    completion_tokens: rates.Asked
    memory: Memory
    rates: rates.Rates
    reasons: dict[str, str] = msgspec.field(default_factory=dict)
    """Why a plain number above is null."""


class Summary(msgspec.Struct, kw_only=True):
    """All numbers of one run."""

    run_dir: str
    status: str
    workload: str | None
    workload_hash: str | None
    target: str | None
    model: str | None
    engine: str | None
    engine_version: str | None
    arrival: Arrival
    requests: rates.Requests
    failures: list[rates.FailureGroup]
    window: rates.Window
    metrics: Metrics
    layout: PromptLayout
    bad_lines: int = 0

    def to_json(self) -> dict[str, Any]:
        """The summary's part of a `kvprobe.run/1` document: JSON types only, never NaN."""
        document = jsonable(self)
        del document["layout"]
        return {"schema": "kvprobe.run/1", **document}


def measured_rows(run: RunData) -> list[RequestRecord]:
    """The requests that count: all but the warm-up."""
    return [r for r in run.records if not r.warmup]


def last_known_ns(run: RunData) -> int | None:
    """The latest instant that the evidence mentions: until then an unfinished request was in flight."""
    instants = [t for r in run.records if (t := r.end_ns or r.last_token_ns or r.sent_ns) is not None]
    instants += [o.sent_ns for o in run.opened]
    instants += [s.t_ns for s in run.samples]
    return max(instants, default=None)


def facts_named(run: RunData, name: str) -> list[Fact]:
    return [f for f in run.facts if f.name == name]


def summarise(run: RunData) -> Summary:
    """Every number of the run; works for a killed run and for one without a single request."""
    measured = measured_rows(run)
    span = rates.window(measured, run.facts)
    counted = rates.count(measured, [r for r in run.records if r.warmup], run.opened, run.facts)
    target, engine = _value(run, "target"), _value(run, "engine")
    return Summary(
        run_dir=str(run.path),
        status=run.status,
        workload=_text(run.workload.get("name")),
        workload_hash=_workload_hash(run),
        target=_text(target.get("base_url") or target.get("url")),
        model=_text(target.get("model")),
        engine=_text(engine.get("name")),
        engine_version=_text(engine.get("version")),
        arrival=read_arrival(run),
        requests=counted,
        failures=rates.failure_groups(measured),
        window=span,
        metrics=_metrics(run, measured, counted, span),
        layout=read_layout(run.facts),
        bad_lines=run.bad_lines,
    )


def _value(run: RunData, name: str) -> dict[str, Any]:
    """The value of the last fact of this name, when it is a mapping."""
    values = [f.value for f in run.facts if f.name == name and isinstance(f.value, dict)]
    return values[-1] if values else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _workload_hash(run: RunData) -> str | None:
    for fact in reversed(facts_named(run, "workload_hash")):
        return _text(fact.value)
    return None


def _metrics(
    run: RunData, measured: list[RequestRecord], counted: rates.Requests, span: rates.Window
) -> Metrics:
    ok = [r for r in measured if r.failure is None and r.sent_ns is not None]
    tokens, why = rates.output_tokens_per_s(run.records, span)
    usage = _kv_usage(run, span)
    active = activity.max_active(run.records, run.opened, run.samples, last_known_ns(run))
    preemptions = activity.increase(run.samples, "engine.preemptions_total")
    delays = [v for r in measured if (v := latency.dispatch_delay_s(r)) is not None]
    reasons = {"output_tokens_per_s": why, "kv_usage_max": usage.reason}
    if preemptions is None:
        reasons["preemptions"] = activity.why_absent(run.samples)
    return Metrics(
        **{name: latency.latency(name, measured) for name in latency.LATENCIES},
        tpot_s=latency.per_token(measured),
        gap_s=latency.gaps(measured),
        dispatch_delay_s=latency.describe(delays),
        output_tokens_per_s=tokens,
        max_active=active.client,
        active=active,
        kv_usage_max=usage.max,
        kv_usage=usage,
        prefix_hit_rate=prefix_hit_rate(run, measured),
        preemptions=preemptions.value if preemptions else None,
        prompt_tokens=rates.asked_and_got((r.asked_prompt_tokens, r.prompt_tokens) for r in ok),
        completion_tokens=rates.asked_and_got((r.asked_completion_tokens, r.completion_tokens) for r in ok),
        memory=memory(run),
        rates=rates.rates(measured, counted, span),
        reasons={name: reason for name, reason in reasons.items() if reason is not None},
    )


def _kv_usage(run: RunData, span: rates.Window) -> KvUsage:
    marks = (
        activity.mark_ns(run.samples, activity.LOAD_START),
        activity.mark_ns(run.samples, activity.LOAD_END),
    )
    start, end = marks[0] or span.start_ns, marks[1] or span.end_ns
    points = activity.series(run.samples, activity.KV_USAGE, start, end)
    if not points:
        return KvUsage(reason=activity.why_absent(run.samples))
    origin = start if start is not None else points[0][0]
    values = [v for _, v in points]
    inside = [
        value
        for s, value in activity.readings(run.samples, activity.KV_USAGE)
        if points[0][0] <= s.t_ns <= points[-1][0]
    ]
    return KvUsage(
        max=max(inside),
        mean=sum(values) / len(values),
        samples=len(points),
        points=[((t - origin) * latency.NS, v) for t, v in points],
    )
