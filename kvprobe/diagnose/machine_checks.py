"""Checks of the machine that client and server may share."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from kvprobe.diagnose.issues import Issue
from kvprobe.diagnose.model import Quantity
from kvprobe.diagnose.view import View
from kvprobe.summary.latency import NS
from kvprobe.summary.units import percent

CPU_FULL_RATIO = 0.9
OTHERS_SHARE = 0.25
"""Of all cores: from here on what other processes take is told, if the machine was full."""


def others_on_machine(view: View) -> Iterator[Issue]:
    """A full machine on which neither the server nor the client took the cores (both were watched)."""
    busy = [v for _, v in view.load_series("host.cpu_ratio")]
    cores = view.run.environment.get("cpu_count") or view.run.environment.get("cpu_usable")
    server, client = _cores(view, "server.cpu_s_total"), _cores(view, "client.cpu_s_total")
    if not busy or not isinstance(cores, int) or server is None or client is None:
        return
    mean = sum(busy) / len(busy)
    others = mean * cores - server - client
    if mean < CPU_FULL_RATIO or others < OTHERS_SHARE * cores:
        return
    yield Issue(
        "warning",
        "warning",
        f"other processes took {others:.1f} of this machine's {cores} cores, which were {percent(mean)} "
        "busy: the server would be faster without them",
        {"others_cores": Quantity(others, "cores"), "host_cpu": Quantity(mean, "ratio")},
    )


def _cores(view: View, metric: str) -> float | None:
    """CPU seconds a second over the load, summed over label sets; null without two readings."""
    grown, points = view.increase(metric), view.load_series(metric)
    if grown is None or len(points) < 2:
        return None
    seconds = (points[-1][0] - points[0][0]) * NS
    return grown.value / seconds if seconds > 0 else None


def shared_cores(view: View) -> Iterator[Issue]:
    if _on_this_machine(view):
        cores = view.run.environment.get("cpu_usable") or view.run.environment.get("cpu_count")
        told = f"this machine's {cores} cores" if isinstance(cores, int) else "the cores of this machine"
        yield Issue("warning", "warning", f"client and server share {told}: each takes time from the other")


def _on_this_machine(view: View) -> bool:
    """The bundled server, a process that could be watched, or a loopback address."""
    target = view.fact("target")
    if isinstance(target, dict) and target.get("bundled") is True:
        return True
    try:
        host = urlsplit(view.summary.target or "").hostname or ""
    except ValueError:  # no URL at all, in a run directory that something else wrote
        host = ""
    local = host in ("localhost", "::1") or host.startswith("127.")
    return local or any(s.metric == "server.cpu_s_total" for s in view.run.samples)
