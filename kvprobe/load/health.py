"""How well the client itself is: a client that is late measures itself, not the server."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import gevent
import psutil

from kvprobe.evidence.samples import Sample

try:  # here, not where it is used: with no descriptor left, nothing can be imported
    import resource
except ImportError:  # pragma: no cover - not on this system
    resource = None  # type: ignore[assignment]

NS = 1_000_000_000
NAP_S = 0.02
WINDOW_S = 0.25
SLOW_EVERY = 4
"""Descriptors are counted in every fourth window only: it reads a directory of /proc."""


class HealthMonitor:
    """A greenlet that naps and notes how late it was woken; a window's worst and p99 are written.

    A lag is what a chunk that landed meanwhile may have waited for its stamp. The event loop's
    timer has a grain of about a millisecond, which is part of every lag.
    """

    def __init__(self, worker: str, write: Callable[[Sample], None]) -> None:
        self._labels = {"worker": worker}
        self._write = write
        self._process = psutil.Process()
        self._greenlet: gevent.Greenlet | None = None
        self._windows = 0
        self._cpu_s = time.process_time()
        self._window_start_ns = time.monotonic_ns()

    def start(self) -> None:
        """Begin; `stop` ends it."""
        self._cpu_s = time.process_time()
        self._window_start_ns = time.monotonic_ns()
        self._greenlet = gevent.spawn(self._watch)

    def stop(self) -> None:
        """Safe to call twice."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None

    def _watch(self) -> None:
        lags: list[float] = []
        nap_ns = int(NAP_S * NS)
        while True:
            due_ns = time.monotonic_ns() + nap_ns
            gevent.sleep(NAP_S)
            now_ns = time.monotonic_ns()
            lags.append(max(now_ns - due_ns, 0) / NS)
            if now_ns - self._window_start_ns >= WINDOW_S * NS:
                self._close_window(now_ns, lags)
                lags = []

    def _close_window(self, now_ns: int, lags: list[float]) -> None:
        lags.sort()
        self._put(now_ns, "client.loop_lag_s", lags[-1], window="max")
        self._put(now_ns, "client.loop_lag_p99_s", lags[math.ceil(0.99 * len(lags)) - 1])
        cpu_s = time.process_time()
        self._put(now_ns, "client.cpu_s_total", cpu_s)
        elapsed_s = (now_ns - self._window_start_ns) / NS
        self._put(now_ns, "client.cpu_ratio", (cpu_s - self._cpu_s) / elapsed_s)
        self._put(now_ns, "client.rss_bytes", self._read(lambda: self._process.memory_info().rss))
        if self._windows % SLOW_EVERY == 0:
            self._put_descriptors(now_ns)
        self._windows += 1
        self._cpu_s, self._window_start_ns = cpu_s, now_ns

    def _put_descriptors(self, now_ns: int) -> None:
        if resource is not None:
            # The limit first: with no descriptor left, the open ones cannot be counted.
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            self._put(now_ns, "client.fd_limit", float(limit))
        self._put(now_ns, "client.open_fds", self._read(self._process.num_fds))

    def _read(self, of: Callable[[], int]) -> float | None:
        """A reading of /proc. Not on this system, or no descriptor left to look with: it is null, and
        the watch over the loop goes on."""
        try:
            return float(of())
        except (AttributeError, OSError, psutil.Error):
            return None

    def _put(self, t_ns: int, metric: str, value: float | None, **labels: str) -> None:
        self._write(Sample(t_ns=t_ns, metric=metric, labels=self._labels | labels, value=value))
