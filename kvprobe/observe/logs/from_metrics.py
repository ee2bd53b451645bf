"""A /metrics page beside the logs, in the words of the log reader: one sample of statistics, the pool."""

from __future__ import annotations

import math
from typing import Any

from kvprobe.evidence.events import Event, Value
from kvprobe.observe.dialects import Page

NO_LINE = 0
"""The line of an event that comes from no line of a file."""

_STATS = {
    "running": ("engine.requests_running", "count"),
    "waiting": ("engine.requests_waiting", "count"),
    "kv_usage": ("engine.kv_usage_ratio", "ratio"),
    "preemptions": ("engine.preemptions_total", "count"),
}


def values_of(page: Page) -> dict[str, Any]:
    """Canonical series -> value; labels that matter stand in the name. What the page does not export is
    missing, never 0."""
    values: dict[str, Any] = {}
    for metric, labels, value in page.readings:
        if metric.endswith("_bucket") or math.isnan(value):
            continue
        told = ",".join(f"{k}={v}" for k, v in labels.items())
        values[f"{metric}{{{told}}}" if told else metric] = value
    if page.cache_config is not None:
        values["cache_config"] = dict(page.cache_config)
    return values


def events_of(page: Page, source: str) -> list[Event]:
    """One sample of `engine_stats`, and `pool_size` where the page tells the cache's configuration."""
    if page.engine is None:
        return []
    plain = {metric: value for metric, labels, value in page.readings if not labels and math.isfinite(value)}
    told = {name: Value(plain[metric], unit) for name, (metric, unit) in _STATS.items() if metric in plain}
    queried, hit = (
        plain.get("engine.prefix_queries_tokens_total"),
        plain.get("engine.prefix_hits_tokens_total"),
    )
    if queried and hit is not None:
        told["prefix_hit_rate"] = Value(hit / queried, "ratio")
        told["prefix_queries"], told["prefix_hits"] = Value(queried, "tokens"), Value(hit, "tokens")
    elif (rate := _hit_rate(plain)) is not None:
        told["prefix_hit_rate"] = Value(rate, "ratio")
    events = [_event("engine_stats", page, source, told)] if told else []
    pool = _pool(page.cache_config or {})
    return [*events, *([_event("pool_size", page, source, pool)] if "blocks" in pool else [])]


def _hit_rate(plain: dict[str, float]) -> float | None:
    """Share of prompt tokens (TensorRT-LLM: of blocks) that were found, over the engine's life, where it
    does not count looked-up tokens. An engine's own gauge is an average over times and requests that nobody
    tells, and is not taken. Null where it has no such counters, or they contradict each other."""
    hits, misses = (plain.get(f"engine.prefix_{name}_blocks_total") for name in ("hits", "misses"))
    if hits is not None and misses is not None:
        part, whole = hits, hits + misses
    else:
        part, whole = (
            plain.get("engine.prompt_tokens_cached_total", math.nan),
            plain.get("engine.prompt_tokens_total", math.nan),
        )
    return part / whole if whole > 0 and 0 <= part <= whole else None


def _pool(config: dict[str, str]) -> dict[str, Value]:
    blocks, size = _whole(config.get("num_gpu_blocks")), _whole(config.get("block_size"))
    pool: dict[str, Value] = {}
    if blocks:
        pool["blocks"] = Value(blocks, "blocks")
    if size:
        pool["block_size"] = Value(size, "tokens")
    if blocks and size:
        pool["tokens"] = Value(blocks * size, "tokens")
    return pool


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 16 else None


def _event(name: str, page: Page, source: str, values: dict[str, Value]) -> Event:
    shown = ", ".join(f"{key}={value.value:g}" for key, value in values.items())
    return Event(
        name=name,
        source=source,
        line=NO_LINE,
        text=f"{page.engine} metrics: {shown}",
        values=values,
        engine=page.engine,
        phase="serve",
        provenance="logger",
    )
