"""The machine and the processes on it: memory, CPU, descriptors, and the clocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psutil

from kvprobe.evidence.environment import read_clocks

HostReading = tuple[str, float | None]

_FAMILY_EVERY = 10
"""Readings between two looks for children: finding them walks all of /proc."""


class ProcessProbe:
    """One process with its descendants: resident bytes, CPU seconds and descriptors, summed.

    Shared pages count once per process, as in the kernel's own RSS. A process that is gone, or whose
    number another process took over, reads null.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._readings = 0
        self._children: list[psutil.Process] = []
        try:
            self._process: psutil.Process | None = psutil.Process(pid)
        except (psutil.Error, ValueError, OverflowError):
            self._process = None

    def read(self, prefix: str = "server") -> list[HostReading]:
        """`<prefix>.rss_bytes`, `.cpu_s_total` and `.open_fds`; every tenth time `.pss_bytes` too, where the
        kernel allows it: shared pages count there once, but the kernel walks all of a process's pages."""
        rss: float | None = None
        pss: float | None = None
        # Before the family is asked for, which counts the reading.
        with_pss = self._readings % _FAMILY_EVERY == 0
        cpu: float | None = None
        fds: float | None = None
        for process in self._family():
            try:
                with process.oneshot():
                    times = process.cpu_times()
                    rss = (rss or 0.0) + process.memory_info().rss
                    cpu = (cpu or 0.0) + _cpu_seconds(times)
                    fds = (fds or 0.0) + process.num_fds()
                if with_pss:
                    pss = _added(pss, _pss_bytes(process.pid))
            except psutil.Error:
                # It ended between two calls, or is not ours to look at: what was read stands.
                continue
        told = [(f"{prefix}.rss_bytes", rss), (f"{prefix}.cpu_s_total", cpu), (f"{prefix}.open_fds", fds)]
        return [*told, (f"{prefix}.pss_bytes", pss)] if pss is not None else told

    def pids(self) -> list[int]:
        """The process and those of its descendants that are known."""
        return [self.pid, *(child.pid for child in self._children)]

    def _family(self) -> Iterator[psutil.Process]:
        if self._process is None or not self._process.is_running():
            return
        if self._readings % _FAMILY_EVERY == 0:
            try:
                self._children = self._process.children(recursive=True)
            except psutil.Error:
                self._children = []
        self._readings += 1
        yield self._process
        yield from self._children


class HostProbe:
    """CPU and memory of the whole machine, and how its clocks stand to each other."""

    def __init__(self) -> None:
        self._before: Any = psutil.cpu_times()

    def read(self) -> list[HostReading]:
        """`host.cpu_ratio` since the last call (null when no time passed), memory and clocks.

        A jump of `clock.realtime_minus_monotonic_s` is a clock that was set; one of
        `clock.boottime_minus_monotonic_s` is a machine that slept.
        """
        now = psutil.cpu_times()
        before, self._before = self._before, now
        clocks = read_clocks()
        return [
            ("host.cpu_ratio", _busy_ratio(before, now)),
            ("host.memory_available_bytes", float(psutil.virtual_memory().available)),
            ("clock.realtime_minus_monotonic_s", _difference_s(clocks["utc_ns"], clocks["monotonic_ns"])),
            (
                "clock.boottime_minus_monotonic_s",
                _difference_s(clocks["boottime_ns"], clocks["monotonic_ns"]),
            ),
        ]


def _pss_bytes(pid: int) -> float | None:
    """Proportional set size; null where /proc does not tell (another user's process, no such kernel)."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            words = next((line.split() for line in file if line.startswith(b"Pss:")), [])
    except OSError:
        return None
    return float(words[1]) * 1024 if len(words) > 1 and words[1].isdigit() else None


def _added(total: float | None, value: float | None) -> float | None:
    return total if value is None else (total or 0.0) + value


def _cpu_seconds(times: Any) -> float:
    """Own CPU and that of children that ended and were waited for, so that the sum never falls."""
    ended = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
    return float(times.user + times.system + ended)


def _busy_ratio(before: Any, now: Any) -> float | None:
    """Busy share of all CPUs. Time in guests is part of user time already; waiting is not busy."""
    spent = {name: getattr(now, name) - getattr(before, name) for name in now._fields if "guest" not in name}
    total = sum(spent.values())
    idle = spent.get("idle", 0.0) + spent.get("iowait", 0.0)
    return None if total <= 0 else min(1.0, max(0.0, 1.0 - idle / total))


def _difference_s(clock_ns: int | None, monotonic_ns: int | None) -> float | None:
    return None if clock_ns is None or monotonic_ns is None else (clock_ns - monotonic_ns) / 1e9
