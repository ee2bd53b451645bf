"""Samples beside the load, on a clock of its own.

The ticks stand at start + k x interval whatever the ticks themselves cost, so the period does not
drift; a tick that comes late says how late (`sampler.late_s`), one that cannot be held is left out
and counted (`sampler.missed_ticks`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from kvprobe.evidence.facts import Fact
from kvprobe.evidence.samples import Sample
from kvprobe.evidence.spool import SpoolWriter
from kvprobe.observe.cgroup import CgroupProbe, PressureProbe
from kvprobe.observe.dialects import Page
from kvprobe.observe.gpu import GpuProbe
from kvprobe.observe.host import HostProbe, ProcessProbe
from kvprobe.observe.metrics import MetricsClient, Scrape

DEFAULT_INTERVAL_S = 0.5
STOP_TIMEOUT_S = 5.0
_FAILURES_BEFORE_STATEMENT = 3


class Sampler:
    """Scrapes, reads the GPUs and the host, and spools what it saw. One thread.

    `failure` is set when the thread had to give up (a StorageError when the disk refuses); the load
    goes on without samples, and whoever owns the run looks at it.
    """

    def __init__(
        self,
        metrics_url: str | None,
        interval_s: float,
        spool: SpoolWriter,
        server_pid: int | None = None,
        headers: Mapping[str, str] | None = None,
        insecure: bool = False,
    ) -> None:
        """Opens nothing yet: a sampler that is never started has nothing to close."""
        self.failure: Exception | None = None
        self._metrics_url = metrics_url
        self._interval_s = interval_s
        self._spool = spool
        self._server_pid = server_pid
        self._headers = dict(headers or {})
        self._insecure = insecure
        self._facts = _ScrapeFacts(spool, metrics_url)
        self._metrics: MetricsClient | None = None
        self._process: ProcessProbe | None = None
        self._gpu: GpuProbe | None = None
        self._host, self._pressure = HostProbe(), PressureProbe()
        self._cgroup: CgroupProbe | None = None
        self._ticks, self._missed, self._late_max_s = 0, 0, 0.0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to sample, once. Raises StorageError when not even the first facts can be stored."""
        self._gpu = GpuProbe()
        self._spool.write(Fact(name="nvml", value=self._gpu.statement, source="nvml", text=self._gpu.reason))
        if self._metrics_url is None:
            self._facts.unavailable("no metrics URL is known for this target")
        else:
            self._metrics = MetricsClient(self._metrics_url, self._headers, insecure=self._insecure)
        if self._server_pid is not None:
            self._process = ProcessProbe(self._server_pid)
        # Of a server on another machine nothing here is told; its load generator is limited all the same.
        self._cgroup = CgroupProbe(self._server_pid)
        whose = "server" if self._server_pid is not None else "kvprobe"
        if (described := self._cgroup.describe()) is not None:
            self._spool.write(Fact(name="cgroup", value={"of": whose, **described}, source="cgroup"))
        self._thread = threading.Thread(target=self._run, name="kvprobe-sampler", daemon=True)
        self._thread.start()

    def mark(self, name: str) -> None:
        """Sample at once, with full histogram buckets, and note the instant as `mark.<name>`.

        Returns when that is done: within the scrape's timeouts. Raises StorageError.
        """
        t_ns = self._sample(buckets=True)
        self._write(t_ns, [(f"mark.{name}", {}, 1.0)])

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the thread; after `timeout_s` it is left to its own timeouts. Never raises."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._tick_until_stopped()
            self._facts.finish()
            self._spool.write(self._kept_period())
        except Exception as exc:  # the thread has no caller: kept for whoever owns the run
            self.failure = exc
        finally:
            self._close()

    def _tick_until_stopped(self) -> None:
        interval_ns = max(1, round(self._interval_s * 1e9))
        begin_ns = time.monotonic_ns()
        tick = 0
        while not self._stopping.wait(max(0, begin_ns + tick * interval_ns - time.monotonic_ns()) / 1e9):
            now_ns = time.monotonic_ns()
            late_ns = max(0, now_ns - begin_ns - tick * interval_ns)
            self._sample(buckets=False)
            following = max(tick, (time.monotonic_ns() - begin_ns) // interval_ns) + 1
            missed, tick = following - tick - 1, following
            self._ticks, self._missed = self._ticks + 1, self._missed + missed
            self._late_max_s = max(self._late_max_s, late_ns / 1e9)
            self._write(
                now_ns, [("sampler.late_s", {}, late_ns / 1e9), ("sampler.missed_ticks", {}, float(missed))]
            )

    def _kept_period(self) -> Fact:
        """Whether the samples came as often as was asked, and in words when not."""
        value = {
            "interval_s": self._interval_s,
            "ticks": self._ticks,
            "missed_ticks": self._missed,
            "late_max_s": self._late_max_s,
        }
        text = None
        if self._missed:
            of = self._ticks + self._missed
            text = f"{self._missed} of {of} samples were left out: a look took longer than its interval"
        return Fact(name="sampler_period", value=value, source="sampler", text=text)

    def _sample(self, *, buckets: bool) -> int:
        """One look at everything; returns the instant that it is stamped with."""
        with self._lock:
            t_ns = time.monotonic_ns()
            if self._metrics is not None:
                scrape = self._metrics.scrape(buckets=buckets)
                t_ns = scrape.t_ns
                self._facts.note(scrape)
                self._write(t_ns, _scrape_readings(scrape))
            own_ns = time.monotonic_ns()
            if self._process is not None:
                self._write(own_ns, [(name, {}, value) for name, value in self._process.read()])
            host = [*self._host.read(), *self._pressure.read()]
            host += self._cgroup.read() if self._cgroup is not None else []
            self._write(own_ns, [(name, {}, value) for name, value in host])
            if self._gpu is not None:
                self._write(own_ns, self._gpu.read(self._process.pids() if self._process else ()))
            return t_ns

    def _write(self, t_ns: int, readings: Iterable[tuple[str, dict[str, str], float | None]]) -> None:
        for metric, labels, value in readings:
            self._spool.write(Sample(t_ns=t_ns, metric=metric, labels=labels, value=value))

    def _close(self) -> None:
        # A mark may be under way in another thread, or come later: it finds neither.
        with self._lock:
            if self._gpu is not None:
                self._gpu.close()
            if self._metrics is not None:
                self._metrics.close()
            self._gpu, self._metrics = None, None


class _ScrapeFacts:
    """What is said once about a metrics page: engine, cache, names, what is missing, or why none."""

    def __init__(self, spool: SpoolWriter, url: str | None) -> None:
        self._spool = spool
        self._source = "metrics" if url is None else _shown(url)
        self._told: set[str] = set()
        self._failures = 0
        self._last_failure: str | None = None

    def note(self, scrape: Scrape) -> None:
        """Take in one scrape."""
        if scrape.page is not None:
            self._describe(scrape.page)
        elif scrape.failure is not None and "engine" not in self._told:
            # A server that is busy may miss one scrape; the series scrape.ok keeps each of them.
            self._failures += 1
            self._last_failure = f"{scrape.failure.kind}: {scrape.failure.text}"
            if self._failures == _FAILURES_BEFORE_STATEMENT:
                self.unavailable(self._last_failure)

    def finish(self) -> None:
        """At the end: a page that never came is said, however few attempts there were."""
        if "engine" not in self._told and self._last_failure is not None:
            self.unavailable(self._last_failure)

    def unavailable(self, why: str) -> None:
        """State that there are no metrics, once."""
        self._once("metrics_unavailable", why, text=why)

    def _describe(self, page: Page) -> None:
        if page.cache_config is not None:
            self._once("cache_config", page.cache_config)
        for metric, why in page.doubts.items():
            self._once(f"metric_doubtful {metric}", metric, why, name="metric_doubtful")
        if "engine" in self._told:
            return
        value = {"name": page.engine, "version": page.version}
        if page.version_range is not None:
            value["version_range"] = page.version_range
        self._once("engine", value)
        self._once("metric_names", page.names)
        if page.renames:
            self._once("metric_renames", page.renames)
        for metric in page.not_exported:
            self._spool.write(Fact(name="metric_not_exported", value=metric, source=self._source))

    def _once(self, key: str, value: Any, text: str | None = None, *, name: str | None = None) -> None:
        if key not in self._told:
            self._told.add(key)
            self._spool.write(Fact(name=name or key, value=value, source=self._source, text=text))


def _scrape_readings(scrape: Scrape) -> list[tuple[str, dict[str, str], float | None]]:
    readings: list[tuple[str, dict[str, str], float | None]] = [
        ("scrape.ok", {}, 0.0 if scrape.page is None else 1.0),
        ("scrape.duration_s", {}, scrape.duration_s),
    ]
    if scrape.page is not None:
        readings += scrape.page.readings
        # By engine under names of their own: whoever reads the whole must not count its parts too.
        readings += [
            (metric.replace("engine.", "engines.", 1), labels, value)
            for metric, labels, value in scrape.page.parts
        ]
        readings.append(("scrape.damaged_lines", {}, float(scrape.page.damaged)))
    return readings


def _shown(url: str) -> str:
    """The URL without user name and password, query and fragment: it stands in the run's files."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path.split('?')[0].split('#')[0]}"
