"""Gauges of the server over the load: one value an instant over all replicas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from kvprobe.evidence.rundata import RunData
from kvprobe.evidence.samples import Sample
from kvprobe.summary import activity
from kvprobe.summary.build import Summary

SERIES = {
    "kv_usage": activity.KV_USAGE,
    "running": activity.RUNNING,
    "waiting": "engine.requests_waiting",
}
_SUMMED = ("running", "waiting")
"""Requests of several replicas add up; shares of their pools are averaged."""


def combine(metric: str, samples: Iterable[Sample]) -> dict[int, float]:
    """t_ns -> value of a gate's gauge."""
    at: dict[int, list[float]] = defaultdict(list)
    for sample, value in activity.readings(samples, SERIES[metric]):
        at[sample.t_ns].append(value)
    summed = metric in _SUMMED
    return {t: sum(v) if summed else sum(v) / len(v) for t, v in at.items()}


def during_load(run: RunData, summary: Summary, metric: str) -> tuple[list[float], str]:
    """Readings while the load ran, in order of time; and why there are none."""
    start = activity.mark_ns(run.samples, activity.LOAD_START) or summary.window.start_ns
    end = activity.mark_ns(run.samples, activity.LOAD_END) or summary.window.end_ns
    found = combine(metric, run.samples)
    points = [
        value
        for t, value in sorted(found.items())
        if (start is None or t >= start) and (end is None or t <= end)
    ]
    return points, activity.why_absent(run.samples)
