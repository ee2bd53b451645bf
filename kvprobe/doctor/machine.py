"""Checks of this machine: what a load test needs before it meets any target."""

from __future__ import annotations

import os
import resource
import shutil
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from kvprobe.doctor.model import Check
from kvprobe.observe.cgroup import cpu_quota_cores
from kvprobe.summary.units import plural, size

BASE_DESCRIPTORS = 64
"""Beside one socket a stream: spool files, pipes, libraries, the metrics connection."""
BYTES_PER_ROW = 4_096
"""Of a run directory, a request: a spool row with some 200 gaps and its share of the samples."""
LOW_DISK_BYTES = 256 * 2**20
ROWS_PLANNED = 100_000


def descriptors(streams: int) -> Check:
    """Sockets for so many streams under the limit that holds for this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = streams + BASE_DESCRIPTORS
    facts = {"needed": needed, "soft_limit": _limit(soft), "hard_limit": _limit(hard), "streams": streams}
    if soft == resource.RLIM_INFINITY or needed <= soft:
        text = f"{plural(streams, 'stream')} need {needed:,} descriptors of {_shown(soft)}"
        return Check(id="descriptors", status="ok", text=text, facts=facts)
    text = f"{plural(streams, 'stream')} need {needed:,} descriptors and the limit is {_shown(soft)}"
    fix = f"ulimit -n {needed}"
    if hard != resource.RLIM_INFINITY and needed > hard:
        fix = f"raise the hard limit ({hard:,}) to {needed:,}: limits.conf, or the unit's LimitNOFILE"
    return Check(id="descriptors", status="fail", text=text, fix=fix, facts=facts)


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _shown(value: int) -> str:
    return "no limit" if value == resource.RLIM_INFINITY else f"{value:,}"


def disk(out: Path) -> Check:
    """Room for run directories, and the right to write them."""
    place = out.absolute()
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        text = f"run directories cannot be written to {out}"
        return Check(id="disk", status="fail", text=text, fix="name another folder with --out")
    free = shutil.disk_usage(place).free
    facts = {"free_bytes": free, "bytes_per_request": BYTES_PER_ROW}
    text = f"{size(free)} free for run directories in {out}"
    if free < LOW_DISK_BYTES:
        need = f"{ROWS_PLANNED:,} requests take some {size(ROWS_PLANNED * BYTES_PER_ROW)}"
        fix = f"free space, or name another disk with --out: {need}"
        return Check(id="disk", status="fail", text=f"only {text}", fix=fix, facts=facts)
    return Check(id="disk", status="ok", text=text, facts=facts)


def gpu() -> Check:
    """Can GPU memory be sampled here? Without a GPU that is a statement, no fault."""
    from kvprobe.observe.gpu import GpuProbe

    probe = GpuProbe()
    try:
        if isinstance(probe.statement, str):
            text = f"{probe.statement}: GPU memory will not be sampled ({probe.reason or 'no reason given'})"
            fix = "run kvprobe on the machine with the GPU, or go by the server's own metrics"
            return Check(id="nvml", status="unknown", text=text, fix=fix)
        text = f"NVML sees {plural(len(probe.statement), 'device')}"
        return Check(id="nvml", status="ok", text=text, facts={"devices": len(probe.statement)})
    finally:
        probe.close()


def proxies(target: str | None) -> Check:
    """Proxy variables are not obeyed on the way to the target; a person may expect that they are."""
    found = {
        name: url for name, url in urllib.request.getproxies().items() if name in ("http", "https", "all")
    }
    if not found:
        return Check(id="proxies", status="ok", text="no proxy is set")
    hosts = {
        name: urlsplit(url if "://" in url else f"//{url}").hostname for name, url in sorted(found.items())
    }
    shown = ", ".join(f"{name} via {host or 'an unreadable address'}" for name, host in hosts.items())
    text = f"proxy variables are set ({shown}); kvprobe goes straight to the target and does not use them"
    fix = "if the target can only be reached by the proxy, run kvprobe where it can be reached directly"
    return Check(id="proxies", status="warn", text=text, fix=fix, facts={"proxies": hosts})


def cores(target: str | None, *, local: bool) -> Check:
    """Client and server on one machine take each other's processor."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota = cpu_quota_cores()
    facts = {"usable": usable, "cgroup_quota_cores": quota, "shared_with_server": local}
    limit = f" (a cgroup allows the time of {quota:g})" if quota is not None and quota < (usable or 0) else ""
    if target is None or not local:
        where = "the target is another machine" if target is not None else "no target was named"
        return Check(
            id="cores", status="ok", text=f"{usable} cores{limit} for the client; {where}", facts=facts
        )
    text = f"the server runs on this machine and shares its {usable} cores{limit} with the client"
    fix = "give each its own cores (taskset), or send from another machine, before the numbers matter"
    return Check(id="cores", status="warn", text=text, fix=fix, facts=facts)
