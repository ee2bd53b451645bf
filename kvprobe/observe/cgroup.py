"""What the kernel allows and how hard it is pressed: cgroup limits, out-of-memory kills, PSI.

A container's memory limit kills a server whose machine has plenty left, and the server's log says nothing:
only the counters here do. Files that do not exist give no reading (an old kernel, a container that
hides them), never 0.
Formats: the kernel's admin-guide/cgroup-v2, cgroup-v1/memory and accounting/psi.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HostReading = tuple[str, float | None]

_UNLIMITED_BYTES = 2**60
"""cgroup v1 writes "no limit" as the largest page-aligned number."""
_FILE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class _Files:
    """Names of the files of one cgroup version."""

    version: int
    limit: str
    used: str
    peak: str
    events: str


_V2 = _Files(2, "memory.max", "memory.current", "memory.peak", "memory.events")
_V1 = _Files(
    1,
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
)


class CgroupProbe:
    """The memory cgroup of a process (null: of this one). `root` is where /proc and /sys stand."""

    def __init__(self, pid: int | None = None, root: Path = Path("/")) -> None:
        self._files, self._folders = _find(pid, root)

    def describe(self) -> dict[str, Any] | None:
        """Version, limit in bytes (null without a limit) and the cgroup that sets it; null without one."""
        if self._files is None:
            return None
        limits = [(limit, str(folder)) for folder, limit in self._limits()]
        limit, where = min(limits, default=(None, None))
        return {"version": self._files.version, "memory_limit_bytes": limit, "set_by": where}

    def read(self) -> list[HostReading]:
        """`cgroup.memory_used_bytes`, `.memory_peak_bytes`, `.memory_limit_bytes` (only with a limit) and
        `.oom_kills_total` of the process's own cgroup; the limit is the lowest of those above it."""
        if self._files is None or not self._folders:
            return []
        own, files = self._folders[0], self._files
        events = _pairs(_text(own / files.events))
        kills = events.get("oom_kill")
        readings: list[HostReading] = [
            ("cgroup.memory_used_bytes", _number(_text(own / files.used))),
            ("cgroup.memory_peak_bytes", _number(_text(own / files.peak))),
        ]
        limits = [limit for _, limit in self._limits()]
        if limits:
            readings.append(("cgroup.memory_limit_bytes", min(limits)))
        if kills is not None:
            readings.append(("cgroup.oom_kills_total", kills))
        if files.version == 2:
            readings += _pressure("cgroup.pressure_memory", own / "memory.pressure")
        return [(name, value) for name, value in readings if value is not None]

    def _limits(self) -> Iterator[tuple[Path, float]]:
        for folder in self._folders if self._files is not None else ():
            limit = _number(_text(folder / self._files.limit)) if self._files is not None else None
            if limit is not None and limit < _UNLIMITED_BYTES:
                yield folder, limit


class PressureProbe:
    """PSI of the machine: seconds in which some (or all) tasks waited for memory, CPU or a disk."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._folder = root / "proc" / "pressure"

    def read(self) -> list[HostReading]:
        """`host.pressure_<what>_some_s_total` and `_full_s_total`: counters; none on kernels without PSI."""
        readings: list[HostReading] = []
        for what in ("memory", "cpu", "io"):
            readings += _pressure(f"host.pressure_{what}", self._folder / what)
        return readings


def _find(pid: int | None, root: Path) -> tuple[_Files | None, list[Path]]:
    """The cgroup's folder and those above it, the own first."""
    text = _text(root / "proc" / ("self" if pid is None else str(pid)) / "cgroup") or ""
    lines = [line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2]
    mount = root / "sys" / "fs" / "cgroup"
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):
            return _V1, _with_parents(mount / "memory", path)
    for number, controllers, path in lines:
        if number == "0" and not controllers:
            return _V2, _with_parents(mount, path)
    return None, []


def cpu_quota_cores(root: Path = Path("/")) -> float | None:
    """How many cores' time this process may take (a container's `--cpus`); null without a limit."""
    text = _text(root / "proc" / "self" / "cgroup") or ""
    mount, found = root / "sys" / "fs" / "cgroup", []
    for _, controllers, path in (line.split(":", 2) for line in text.splitlines() if line.count(":") >= 2):
        if "cpu" in controllers.split(","):
            for folder in _with_parents(mount / "cpu", path):
                pair = (_text(folder / "cpu.cfs_quota_us"), _text(folder / "cpu.cfs_period_us"))
                found.append((_number(pair[0]), _number(pair[1])))
        elif not controllers:
            for folder in _with_parents(mount, path):
                quota, _, period = (_text(folder / "cpu.max") or "").strip().partition(" ")
                found.append((_number(quota), _number(period)))
    return min((quota / period for quota, period in found if quota and period), default=None)


def _with_parents(mount: Path, path: str) -> list[Path]:
    """In a container the path may be the host's while the mount shows the container's cgroup as its top."""
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    folders = [mount.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]
    return [folder for folder in folders if folder.is_dir()]


def _pressure(prefix: str, path: Path) -> Iterator[HostReading]:
    for line in (_text(path) or "").splitlines():
        kind, _, fields_text = line.partition(" ")
        fields = fields_text.split()
        total = next((f.partition("=")[2] for f in fields if f.startswith("total=")), None)
        micros = _number(total)
        if kind in ("some", "full") and micros is not None:
            yield f"{prefix}_{kind}_s_total", micros / 1e6


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(_FILE_BYTES).decode("ascii", "replace")
    except OSError:
        return None


def _number(text: str | None) -> float | None:
    word = (text or "").strip()
    return float(word) if word.isascii() and word.isdecimal() else None


def _pairs(text: str | None) -> dict[str, float]:
    """Lines of `name number`."""
    found = {}
    for line in (text or "").splitlines():
        name, _, number = line.partition(" ")
        value = _number(number)
        if value is not None:
            found[name] = value
    return found
