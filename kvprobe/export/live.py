"""The metrics page of a run that is going on: `kvprobe run --serve-metrics PORT`, on 127.0.0.1 alone.

It reads what the workers and the sampler have written for keeps, at each scrape: a page costs the load
nothing while nobody asks for it. A series that was not read lately is left out, never repeated as if
it still held.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.registry import Collector

from kvprobe.errors import Problem, UsageError
from kvprobe.evidence.clocks import WORKER_CLOCK, shifts_ns
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.records import OpenedRequest, RequestRecord
from kvprobe.evidence.samples import Sample
from kvprobe.evidence.tail import SpoolTail
from kvprobe.export import families
from kvprobe.export.families import Family, Reading
from kvprobe.export.names import exported
from kvprobe.export.totals import Totals

HOST = "127.0.0.1"
STALE_S = 10.0
"""A series whose latest reading is so much older than the latest of all is gone."""
NS = 1e-9


class LivePage(Collector):
    """Collects from the spool of one run; safe to be scraped by several at once."""

    def __init__(self) -> None:
        self._tail: SpoolTail | None = None
        self._labels: dict[str, str] = {}
        self._totals = Totals()
        self._open: set[str] = set()
        self._latest: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[int, float]] = {}
        self._clocks: list[Fact] = []
        self._lock = threading.Lock()

    def follow(self, spool_dir: Path, labels: Mapping[str, str]) -> None:
        """From now on: the run that writes there. Before, the page is empty."""
        with self._lock:
            self._tail, self._labels = SpoolTail(spool_dir), dict(labels)

    def collect(self) -> Iterator[Family]:
        with self._lock:
            if self._tail is None:
                return
            for item in self._tail.items():
                self._take(item)
            readings = list(self._readings())
            made = [families.info(self._labels), *families.of_totals(self._totals, len(self._open))]
            made += [*families.loop_lag(readings), *families.of_readings(readings)]
        yield from made

    def _take(self, item: object) -> None:
        if isinstance(item, RequestRecord):
            self._open.discard(item.request_id)
            self._totals.take(item)
        elif isinstance(item, OpenedRequest):
            self._open.add(item.request_id)
        elif isinstance(item, Fact):
            if item.name == WORKER_CLOCK:
                self._clocks.append(item)
        elif isinstance(item, Sample) and exported(item.metric):
            key = (item.metric, tuple(sorted(item.labels.items())))
            if item.value is None:
                self._latest.pop(key, None)
            else:
                self._latest[key] = (item.t_ns, item.value)

    def _readings(self) -> Iterator[Reading]:
        shifts = shifts_ns(self._clocks)
        seen = [(key, self._on_our_clock(key, t_ns, shifts), v) for key, (t_ns, v) in self._latest.items()]
        now_ns = max((t_ns for _, t_ns, _ in seen), default=0)
        for (metric, labels), t_ns, value in seen:
            if (now_ns - t_ns) * NS <= STALE_S:
                yield metric, labels, value, None

    def _on_our_clock(
        self, key: tuple[str, tuple[tuple[str, str], ...]], t_ns: int, shifts: Mapping[str, int]
    ) -> int:
        """Workers of other machines stamp by their own clocks, which say nothing about ours."""
        metric, labels = key
        return t_ns + shifts.get(dict(labels).get("worker", ""), 0) if metric.startswith("client.") else t_ns


class PageServer:
    """Serves a page until it is closed. Raises `UsageError` when the port cannot be had."""

    def __init__(self, port: int) -> None:
        self.page = page = LivePage()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(page)
        try:
            self._server: Any
            self._server, self._thread = start_http_server(port, HOST, registry)
        except OSError as error:
            message = f"port {port} of {HOST} cannot be served on: {error.strerror or error}"
            fix = "choose another port with --serve-metrics, or 0 for any that is free"
            raise UsageError(Problem("port", message, fix)) from error
        self.url = f"http://{HOST}:{self._server.server_port}/metrics"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)

    def __enter__(self) -> PageServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def parse_port(text: str) -> int:
    """A port as written after --serve-metrics; raises `UsageError`."""
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        message = f"--serve-metrics: `{text[:40]}` is no port"
        raise UsageError(Problem("bad_value", message, "write a number from 0 (any that is free) to 65535"))
    return int(text)
