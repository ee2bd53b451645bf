"""Totals and samples as metric families of prometheus-client: one home of the names on our pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from kvprobe.export.names import page_name, type_of
from kvprobe.export.totals import Totals

Family = Metric
_COUNTERS = {
    "sent": "Measured requests that were sent and have ended.",
    "ok": "Measured requests that ended well.",
    "warmup": "Warm-up requests that have ended; in no other number.",
}
_TOKENS = {
    "prompt_tokens": "Prompt tokens by the server's usage.",
    "completion_tokens": "Generated tokens by the server's usage.",
    "cached_tokens": "Prompt tokens from the prefix cache by the server's usage.",
}
_HELP = "As the load generator's clock saw it, from sending."


def of_totals(totals: Totals, active: int | None, timestamp: float | None = None) -> Iterator[Family]:
    """The run's own numbers; `timestamp` in seconds UTC for a file, none for a page."""
    for name, told in {**_COUNTERS, **_TOKENS}.items():
        if (value := getattr(totals, name)) is None:
            continue
        prefix = "requests_" if name in _COUNTERS else ""
        counter = CounterMetricFamily(f"kvprobe_run_{prefix}{name}", told)
        counter.add_metric([], float(value), timestamp=timestamp)
        yield counter
    failed = CounterMetricFamily(
        "kvprobe_run_requests_failed", "Measured requests that failed, by kind.", labels=["kind"]
    )
    for kind, count in sorted(totals.failed.items()):
        failed.add_metric([kind], float(count), timestamp=timestamp)
    yield failed
    if active is not None:
        gauge = GaugeMetricFamily("kvprobe_run_requests_active", "Requests in flight at the client.")
        gauge.add_metric([], float(active), timestamp=timestamp)
        yield gauge
    for name, histogram in totals.histograms.items():
        family = HistogramMetricFamily(f"kvprobe_run_{name}", _HELP)
        family.add_metric([], histogram.cumulative(), histogram.total_s, timestamp=timestamp)
        yield family


def info(labels: Mapping[str, str]) -> Family:
    """What runs, as labels of a constant 1."""
    names = sorted(labels)
    family = GaugeMetricFamily("kvprobe_run_info", "The run that is served here.", labels=names)
    family.add_metric([labels[name] for name in names], 1.0)
    return family


Reading = tuple[str, tuple[tuple[str, str], ...], float, float | None]
"""Canonical name, labels in order of their names, value, seconds UTC or null."""


def of_readings(readings: Iterable[Reading]) -> Iterator[Family]:
    """Samples by canonical name; label names of one series are made equal, with empty values."""
    grouped: dict[str, list[Reading]] = {}
    for reading in readings:
        grouped.setdefault(reading[0], []).append(reading)
    for metric, items in sorted(grouped.items()):
        labels = sorted({name for _, pairs, _, _ in items for name, _ in pairs})
        name, told = page_name(metric), f"{metric}, as it was last read."
        made: CounterMetricFamily | GaugeMetricFamily
        if type_of(metric) == "counter":
            made = CounterMetricFamily(name.removesuffix("_total"), told, labels=labels)
        else:
            made = GaugeMetricFamily(name, told, labels=labels)
        for _, pairs, value, timestamp in sorted(items, key=lambda item: (item[1], item[3] or 0.0)):
            known = dict(pairs)
            made.add_metric([known.get(label, "") for label in labels], value, timestamp=timestamp)
        yield made


def loop_lag(readings: Iterable[Reading]) -> Iterator[Family]:
    """The client's own lateness, worst of its workers, under the name that the alert uses."""
    worst = [value for metric, _, value, _ in readings if metric == "client.loop_lag_p99_s"]
    if worst:
        family = GaugeMetricFamily(
            "kvprobe_run_loop_lag_seconds", "p99 lateness of the load workers' event loops; the worst one."
        )
        family.add_metric([], max(worst))
        yield family
