"""A finished run as an OpenMetrics file: every series with its instants, for a database of your own.

    promtool tsdb create-blocks-from openmetrics run.om data/

Instants are UTC: the run keeps one mapping from its monotonic clock, so a wall clock that jumped in
mid-run moves nothing. The client's rows become running totals at every whole second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from prometheus_client.core import Metric
from prometheus_client.openmetrics.exposition import generate_latest

from kvprobe.errors import Problem, UsageError
from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.rundata import RunData
from kvprobe.export import families
from kvprobe.export.families import Family, Reading
from kvprobe.export.names import exported
from kvprobe.export.totals import Totals

STEP_NS = 1_000_000_000
MAX_STEPS = 20_000
NS = 1e-9


class _Fixed:
    """Stands where the writer of prometheus-client expects a registry."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterator[Metric]:
        yield from self._found


def openmetrics(run: RunData) -> str:
    """The text of the file. Raises `UsageError` when the run does not map its clock to UTC."""
    offset_ns = _utc_offset_ns(run)
    made = [*_of_rows(run, offset_ns), *families.of_readings(_readings(run, offset_ns))]
    written: bytes = generate_latest(_Fixed(made))  # type: ignore[no-untyped-call]
    return written.decode()


def _utc_offset_ns(run: RunData) -> int:
    """UTC minus CLOCK_MONOTONIC of the process that led the run."""
    clock = run.environment.get("clock")
    stated = [clock.get(name) if isinstance(clock, dict) else None for name in ("utc_ns", "monotonic_ns")]
    utc_ns, monotonic_ns = stated
    if not isinstance(utc_ns, int) or not isinstance(monotonic_ns, int):
        message = "the run does not say how its clock maps to UTC: environment.json is missing or damaged"
        raise UsageError(Problem("run_damaged", message, "export another run", str(run.path)))
    return utc_ns - monotonic_ns


def _readings(run: RunData, offset_ns: int) -> Iterator[Reading]:
    seen: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}
    for sample in run.samples:  # in order of time
        labels = tuple(sorted(sample.labels.items()))
        if sample.value is None or not exported(sample.metric):
            continue
        if seen.get((sample.metric, labels)) == sample.t_ns:
            continue  # a mark and a tick of one instant
        seen[sample.metric, labels] = sample.t_ns
        yield sample.metric, labels, sample.value, (sample.t_ns + offset_ns) * NS


def _of_rows(run: RunData, offset_ns: int) -> Iterator[Family]:
    """Running totals, family by family: OpenMetrics wants all points of a series together."""
    merged: dict[str, Family] = {}
    points: dict[str, dict[tuple[str, ...], list[object]]] = defaultdict(lambda: defaultdict(list))
    for timestamp, totals, active in _steps(run.records, offset_ns):
        for family in families.of_totals(totals, active, timestamp):
            merged.setdefault(family.name, family)
            for sample in family.samples:
                # Of a histogram each instant's points stay together; of a counter each label's points do.
                key = () if family.type == "histogram" else tuple(sorted(sample.labels.values()))
                points[family.name][key].append(sample)
    for name, family in merged.items():
        family.samples = [sample for group in points[name].values() for sample in group]  # type: ignore[misc]
        yield family


def _steps(records: Iterable[RequestRecord], offset_ns: int) -> Iterator[tuple[float, Totals, int]]:
    """(seconds UTC, totals so far, requests in flight) at whole steps of the run."""
    ended = sorted((r for r in records if r.end_ns is not None), key=lambda r: r.end_ns or 0)
    if not ended:
        return
    starts = sorted(r.sent_ns for r in ended if r.sent_ns is not None)
    first, last = min(r.intended_ns for r in ended), ended[-1].end_ns or 0
    step_ns = max(STEP_NS, -(-(last - first) // MAX_STEPS))
    totals, at, begun, finished = Totals(), 0, 0, 0
    for t_ns in range(first, last + step_ns, step_ns):
        while at < len(ended) and (ended[at].end_ns or 0) <= t_ns:
            totals.take(ended[at])
            finished += ended[at].sent_ns is not None
            at += 1
        while begun < len(starts) and starts[begun] <= t_ns:
            begun += 1
        yield (t_ns + offset_ns) * NS, totals, max(0, begun - finished)
