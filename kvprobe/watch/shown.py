"""Figures as short words, the same in the panel and in a plain line. What is missing says why, never 0."""

from __future__ import annotations

from collections.abc import Mapping

from kvprobe.summary.units import figures, percent, plural, seconds, size
from kvprobe.watch.model import GpuView, Number, TargetView, Together

_STATES = {
    "not_exported": "not exported",
    "no_reading": "no reading",
    "not_yet": "not yet",
    "scrape_failed": "-",
}


def missing(number: Number) -> str:
    """Why there is no value."""
    return number.note or _STATES.get(number.state, number.state)


def count(number: Number) -> str:
    return missing(number) if number.value is None else f"{number.value:,.0f}"


def share(number: Number) -> str:
    return missing(number) if number.value is None else percent(number.value)


def latency(number: Number) -> str:
    """`0.21 s`, `> 80 s` where the histogram ends."""
    if number.value is None:
        return missing(number)
    return f"{'> ' if number.at_least else ''}{seconds(number.value)}"


def rate(number: Number, unit: str) -> str:
    return missing(number) if number.value is None else f"{figures(number.value)} {unit}"


def over(number: Number) -> str:
    """` (last 12 s)`: what a rate was taken over; empty for a value of this instant."""
    return "" if number.window_s is None else f" (last {number.window_s:.0f} s)"


def preemptions(number: Number) -> str:
    if number.value is None:
        return missing(number)
    events = number.n or 0.0
    return f"none{over(number)}" if not events else f"{figures(number.value)} /s, {events:,.0f}{over(number)}"


def hit_rate(number: Number) -> str:
    if number.value is None:
        return missing(number)
    basis = f"of prompt tokens{over(number)}"
    if number.series is not None and "block" in number.series:
        basis = f"of prompt blocks{over(number)}"
    return f"{percent(number.value)} {number.note or basis}"


def percentiles(numbers: Mapping[str, Number], name: str) -> str:
    """p50 and p95 of a histogram's growth."""
    p50, p95 = numbers[f"{name}_p50_s"], numbers[f"{name}_p95_s"]
    if p50.value is None:
        return missing(p50)
    noun = "request" if name == "ttft" else "gap"
    behind = f"{plural(round(p50.n or 0), noun)}, last {p50.window_s or 0:.0f} s"
    return f"p50 {latency(p50)}, p95 {latency(p95)} ({behind}; by buckets)"


def memory(numbers: Mapping[str, Number]) -> str:
    """Whatever of the target's memory the page tells."""
    used, pool = numbers["kv_used_bytes"].value, numbers["kv_pool_bytes"].value
    parts = []
    if (tokens := numbers["kv_pool_tokens"].value) is not None:
        parts.append(f"pool of {tokens:,.0f} tokens")
    if pool is not None:
        held = f"{size(used)} held of " if used is not None else ""
        parts.append(f"KV {held}{size(pool)}")
    if (rss := numbers["process_rss_bytes"].value) is not None:
        parts.append(f"process {size(rss)} resident")
    free, total = numbers["device_memory_free_bytes"].value, numbers["device_memory_total_bytes"].value
    if free is not None and total is not None:
        parts.append(f"device {size(free)} free of {size(total)}")
    return "; ".join(parts) or "the page tells none"


def engine(view: TargetView) -> str:
    """`vllm >= 0.12`, `reference 0.1.0`."""
    version = view.engine_version or view.engine_version_range
    return " ".join(word for word in (view.engine or "unknown engine", version) if word)


def together(all_of_them: Together) -> str:
    """All targets on one line."""
    n = all_of_them
    use = "KV use not told"
    if n.kv_usage_mean is not None and n.kv_usage_max is not None:
        use = f"KV use {percent(n.kv_usage_mean)} on average, {percent(n.kv_usage_max)} at most"
    running, waiting = ("?" if v is None else f"{v:,.0f}" for v in (n.running, n.waiting))
    return f"all: {n.reachable} of {n.targets} answer, {running} running, {waiting} waiting, {use}"


def gpu(view: GpuView) -> str:
    """One GPU on one line."""
    name = f"GPU {view.gpu}" + (f" MIG {view.mig}" if view.mig is not None else "")
    if view.lost:
        return f"{name}: LOST (it fell off the bus)"
    parts = []
    if view.memory_used_bytes is not None and view.memory_total_bytes:
        parts.append(f"{size(view.memory_used_bytes)} of {size(view.memory_total_bytes)}")
    if view.utilization_ratio is not None:
        parts.append(f"busy {percent(view.utilization_ratio)} of the time")
    if view.throttled_by:
        parts.append(f"throttled: {', '.join(view.throttled_by)}")
    return f"{name}: {', '.join(parts) or 'tells nothing'}"
