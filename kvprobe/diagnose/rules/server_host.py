"""The server's process on its host: memory that grows with every request, and a death without a word."""

from __future__ import annotations

from bisect import bisect_right

import msgspec
import numpy as np

from kvprobe.diagnose.rules.base import Candidate, Outcome, evidence, finding
from kvprobe.diagnose.run_logs import SERVER_LOG
from kvprobe.diagnose.view import View
from kvprobe.summary import activity
from kvprobe.summary.memory import whole as label_number
from kvprobe.summary.quantiles import Floats
from kvprobe.summary.units import plural, size

RSS = ("server.rss_bytes", "engine.process_rss_bytes")
SETTLED = 0.2
"""Of the requests: until then buffers and caches of a young process fill up."""
MIN_READINGS = 5
MIN_REQUESTS = 20
MIN_NET_BYTES = 48 * 2**20
MIN_NET_SHARE = 0.05
MIN_EACH_BYTES = 256 * 2**10
FIT = 0.9
LATE = 0.5
"""Growth of the last third, as a share of the mean: less, and it is coming to an end."""
SIGKILL = -9
CUT = frozenset({"connect", "truncated", "reset_mid_stream", "reset_before_headers", "empty_stream"})


def server_host(view: View) -> Outcome:
    found = [c for c in (host_leak(view), killed(view)) if c is not None]
    return Outcome(candidates=found)


# -- host memory grows with every request ---------------------------------------------------------


def host_leak(view: View) -> Candidate | None:
    """Needs: resident memory that rises in step with finished requests to the end of the load, by more than
    the KV pool can account for (a pool in host memory is filled page by page). Refuted by a level that
    it comes to rest at."""
    source, points = _rss(view)
    ends = sorted(e for r in view.run.records if (e := r.end_ns) is not None)
    if len(points) < MIN_READINGS or len(ends) < MIN_REQUESTS:
        return None
    done = np.array([bisect_right(ends, t) for t, _ in points], dtype=np.float64)
    held = np.array([v for _, v in points], dtype=np.float64)
    young = done < SETTLED * len(ends)
    done, held = done[~young], held[~young]
    if done.size < MIN_READINGS or done[-1] - done[0] < MIN_REQUESTS / 2:
        return None
    slope, fit = _line(done, held)
    late = done >= done[0] + 2 * (done[-1] - done[0]) / 3
    growth = float(held[-1] - held[0])
    if fit < FIT or slope <= 0 or not _goes_on(done[late], held[late], slope):
        return None
    touched = _pool_touched(view)
    net, each = growth - touched, (growth - touched) / float(done[-1] - done[0])
    if net < max(MIN_NET_BYTES, MIN_NET_SHARE * float(held[0])) or each < MIN_EACH_BYTES:
        return None
    found = _leaks(source, growth, touched, each, float(done[-1] - done[0]), float(held[-1]))
    if view.summary.metrics.memory.kv_pool_bytes is None:
        # A pool of unknown size may lie in host memory and be touched page by page for the first time.
        found.finding = msgspec.structs.replace(found.finding, confidence="suspected")
    return found


def _rss(view: View) -> tuple[str, list[activity.Point]]:
    for name in RSS:
        if points := view.load_series(name):
            return name, points
    return RSS[0], []


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """Slope, and the share of the variance that the line explains."""
    spread, rise = x - x.mean(), y - y.mean()
    square = float(np.sum(spread**2))
    if square == 0.0 or float(np.sum(rise**2)) == 0.0:
        return 0.0, 0.0
    slope = float(np.sum(spread * rise)) / square
    return slope, 1.0 - float(np.sum((rise - slope * spread) ** 2)) / float(np.sum(rise**2))


def _goes_on(x: Floats, y: Floats, slope: float) -> bool:
    span = float(x[-1] - x[0]) if x.size > 1 else 0.0
    return span > 0 and float(y[-1] - y[0]) / span >= LATE * slope


def _pool_touched(view: View) -> float:
    """Host memory that the KV pool may have come to use meanwhile: at most what was computed, and at most
    the pool (bytes). What is not known counts as the whole pool, and no pool at all as 0."""
    pool = view.summary.metrics.memory.kv_pool_bytes or 0
    per_token = label_number(view.config.get("kv_bytes_per_token"))
    told = [view.increase(f"engine.{name}_tokens_total") for name in ("prompt", "generation")]
    tokens = sum(t.value for t in told if t is not None)
    swapped = activity.largest(view.run.samples, "engine.kv_swapped_blocks") or 0.0
    block = label_number(view.config.get("block_size")) or 0
    computed = tokens * per_token if per_token and None not in told else float(pool)
    return min(computed, float(pool)) + swapped * block * (per_token or 0)


def _leaks(
    source: str, growth: float, touched: float, each: float, requests: float, last: float
) -> Candidate:
    found = finding(
        "host_memory_leak",
        "likely",
        f"The server's resident memory grew by {size(growth)} over {plural(round(requests), 'request')}, in "
        f"step with them and to the end; the KV pool explains at most {size(touched)} of it, which leaves "
        f"{size(each)} for each request.",
        [
            evidence(
                source,
                f"{size(last)} at the end, {size(growth)} more than after the first requests",
                growth=(growth, "B"),
                pool_touched_max=(touched, "B"),
                per_request=(each, "B"),
                requests=(requests, "count"),
            )
        ],
        check_first=["resident memory over a longer run: does it come to rest?"],
        remedy=[
            "restart before the host's memory is used up; a memory limit with a restart policy bounds it",
            "upgrade, and report the kind of request after which memory stays",
        ],
        would_change_my_mind=["a level that it comes to rest at (caches that fill up)"],
    )
    return Candidate(finding=found, timing_free=True)


# -- a death without a word -----------------------------------------------------------------------


def killed(view: View) -> Candidate | None:
    """Needs: the server's process ended by SIGKILL during the load, which its parent saw. Who sent it no
    evidence of a run can prove, so it is only suspected. Refuted by a word of an end in its log."""
    if view.fact("server_exit_code") != SIGKILL:
        return None
    free = min((v for _, v in view.load_series("host.memory_available_bytes")), default=None)
    held = max((v for _, v in view.load_series(RSS[0])), default=None)
    room = f" The host had at least {size(free)} available" if free is not None else ""
    room += f", and the process held up to {size(held)}." if free is not None and held is not None else ""
    log = view.log
    ends = [e for e in (log.events if log else []) if e.source.endswith(SERVER_LOG)]
    cut = sum(g.count for g in view.summary.failures if g.kind in CUT)
    found = finding(
        "host_oom_kill",
        "suspected",
        "The server's process was ended by SIGKILL in the middle of the load, without a word of its own, "
        "as when the host or a container's limit runs out of memory; the signal does not say who sent "
        f"it.{room}",
        [
            evidence("server process", "ended by signal 9 (exit code 137 in a container)", signal=(9, None)),
            evidence(
                "requests.failure",
                f"{plural(cut, 'request')} cut off or refused by it",
                cut_off=(cut, "count"),
                host_available_min=(free, "B"),
                rss_max=(held, "B"),
            ),
            *([evidence(SERVER_LOG, f"its last line that tells something: {ends[-1].text}")] if ends else []),
        ],
        check_first=[
            "`dmesg -T | grep -i oom` of the host, or `kubectl describe pod`, for a record of the kill",
            "the memory limit of its container (cgroup memory.max, memory.events)",
        ],
        remedy=["more host memory, or a higher limit", "less of it in the engine (swap, offload, workers)"],
        would_change_my_mind=["somebody or a supervisor that sent the signal on purpose"],
    )
    return Candidate(finding=found, timing_free=True, fatal=True, explains=CUT | {"status", "in_band_error"})
