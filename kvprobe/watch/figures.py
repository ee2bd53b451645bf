"""From a window of pages to the figures of one target."""

from __future__ import annotations

import math

from kvprobe.observe.dialects import Absent, Page
from kvprobe.watch.model import EngineView, Number, State
from kvprobe.watch.window import Window, engines_of

_NOW = (
    ("kv_usage", "engine.kv_usage_ratio", "ratio"),
    ("running", "engine.requests_running", "count"),
    ("waiting", "engine.requests_waiting", "count"),
    ("swapped", "engine.requests_swapped", "count"),
    ("kv_pool_bytes", "engine.kv_pool_bytes", "B"),
    ("kv_used_bytes", "engine.kv_used_bytes", "B"),
    ("kv_cached_bytes", "engine.kv_cached_bytes", "B"),
    ("kv_tokens_total", "engine.kv_tokens_total", "tokens"),
    ("kv_blocks_total", "engine.kv_blocks_total", "blocks"),
    ("process_rss_bytes", "engine.process_rss_bytes", "B"),
    ("device_memory_free_bytes", "engine.device_memory_free_bytes", "B"),
    ("device_memory_total_bytes", "engine.device_memory_total_bytes", "B"),
    ("slots", "engine.slots", "count"),
    ("slots_busy", "engine.slots_busy", "count"),
    ("slot_usage_max", "engine.slot_usage_ratio_max", "ratio"),
)
_RATES = (
    ("preemptions_per_s", "engine.preemptions_total", "1/s"),
    ("evicted_blocks_per_s", "engine.kv_blocks_evicted_total", "blocks/s"),
    ("evicted_tokens_per_s", "engine.kv_tokens_evicted_total", "tokens/s"),
    ("generated_tokens_per_s", "engine.generation_tokens_total", "tokens/s"),
    ("prompt_tokens_per_s", "engine.prompt_tokens_total", "tokens/s"),
)
_PERCENTILES = (
    ("ttft_p50_s", "engine.ttft_seconds", 0.50),
    ("ttft_p95_s", "engine.ttft_seconds", 0.95),
    ("itl_p50_s", "engine.itl_seconds", 0.50),
    ("itl_p95_s", "engine.itl_seconds", 0.95),
    ("queue_p50_s", "engine.queue_seconds", 0.50),
)
_HITS = (
    # (part, whole or null, the rest of the whole or null), preferred first.
    ("engine.prefix_hits_tokens_total", "engine.prefix_queries_tokens_total", None),
    ("engine.prefix_hits_blocks_total", None, "engine.prefix_misses_blocks_total"),
    ("engine.prompt_tokens_cached_total", "engine.prompt_tokens_total", None),
    ("engine.prompt_tokens_cached_total", None, "engine.prompt_tokens_computed_total"),
)
_LLAMA_ONLY = ("slots", "slots_busy", "slot_usage_max")


def figures(window: Window, *, reached: bool) -> dict[str, Number]:
    """Every figure by name; what is missing says why."""
    page = window.last if reached else None
    if page is None:
        return {name: _missing(unit, "scrape_failed") for name, unit in _units().items()}
    found = {name: _now(page, metric, unit) for name, metric, unit in _NOW}
    for name in _LLAMA_ONLY:
        if found[name].value is None:
            found[name].state = "not_exported"
    found["kv_pool_tokens"] = _pool_tokens(page)
    found |= {name: _rate(window, page, metric, unit) for name, metric, unit in _RATES}
    found["prefix_hit_rate"] = hit_rate(window, page)
    found |= {name: _percentile(window, page, metric, q) for name, metric, q in _PERCENTILES}
    return found


def engines(page: Page | None) -> list[EngineView]:
    """The engines that stand on one page, where there are several."""
    if page is None:
        return []
    names = engines_of(page, "engine.kv_usage_ratio") or engines_of(page, "engine.requests_running")
    at = {(metric, labels.get("engine")): value for metric, labels, value in page.parts if len(labels) == 1}

    def of(metric: str, engine: str) -> float | None:
        value = at.get((metric, engine), math.nan)
        return value if math.isfinite(value) else None

    return [
        EngineView(
            engine=name,
            kv_usage=of("engine.kv_usage_ratio", name),
            running=of("engine.requests_running", name),
            waiting=of("engine.requests_waiting", name),
        )
        for name in names
    ]


def hit_rate(window: Window, page: Page) -> Number:
    """Share of prompt tokens (or blocks) of this window that were found; by counters where there are any.

    An engine's own rate is an average over its life, or over some requests: it is shown only where there
    are no counters, and says so.
    """
    for part, whole, rest in _HITS:
        other = whole or rest or ""
        if part not in page.names or other not in page.names:
            continue
        series = f"{page.names[part]}, {page.names[other]}"
        hits, beside = window.growth(part), window.growth(other)
        if hits is None or beside is None:
            return _missing("ratio", "not_yet", series)
        total = beside[0].value if whole else beside[0].value + hits[0].value
        if total <= 0:
            return _missing("ratio", "no_reading", series, "no prompt in the window")
        value = min(1.0, hits[0].value / total)
        return Number(
            value=value, unit="ratio", state="read", series=series, window_s=beside[1], n=total, note=None
        )
    gauge = _now(page, "engine.prefix_hit_ratio", "ratio")
    if gauge.value is not None:
        gauge.note = "the engine's own average, not of this window"
    return gauge


def _units() -> dict[str, str]:
    rows = [(name, unit) for name, _, unit in (*_NOW, *_RATES)]
    return {
        **dict(rows),
        "kv_pool_tokens": "tokens",
        "prefix_hit_rate": "ratio",
        **{name: "s" for name, _, _ in _PERCENTILES},
    }


def _missing(unit: str, state: State, series: str | None = None, note: str | None = None) -> Number:
    return Number(value=None, unit=unit, state=state, series=series, note=note)


def _now(page: Page, metric: str, unit: str) -> Number:
    value = page.look(metric)
    series = page.names.get(metric)
    if isinstance(value, Absent):
        state: State = "not_exported" if value is Absent.NOT_EXPORTED else "no_reading"
        return _missing(unit, state, series, page.doubts.get(metric))
    if not math.isfinite(value):
        return _missing(unit, "no_reading", series)
    return Number(value=value, unit=unit, state="read", series=series)


def _pool_tokens(page: Page) -> Number:
    """What the pool holds: the engine's own word, else blocks x block size (an upper bound: a block may be
    kept back)."""
    config = page.cache_config or {}
    told, blocks, size = (
        int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None
        for text in (config.get(key, "") for key in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size"))
    )
    if told is None and blocks is not None and size is not None:
        told = blocks * size
    if told is None:
        return _missing("tokens", "not_exported")
    return Number(value=float(told), unit="tokens", state="read", series="cache configuration")


def _rate(window: Window, page: Page, metric: str, unit: str) -> Number:
    series = page.names.get(metric)
    if series is None:
        return _missing(unit, "not_exported" if metric in page.not_exported else "no_reading")
    found = window.growth(metric)
    if found is None:
        return _missing(unit, "not_yet", series)
    grown, seconds = found
    return Number(
        value=grown.value / seconds, unit=unit, state="read", series=series, window_s=seconds, n=grown.value
    )


def _percentile(window: Window, page: Page, metric: str, q: float) -> Number:
    series = page.names.get(metric)
    if series is None:
        return _missing("s", "not_exported" if metric in page.not_exported else "no_reading")
    if len(window) < 2:
        return _missing("s", "not_yet", series)
    found, n = window.quantile(metric, q)
    if found is None:
        return _missing("s", "no_reading", series, "no request in the window")
    return Number(
        value=found.value,
        unit="s",
        state="read",
        series=series,
        window_s=window.span_s,
        n=n,
        at_least=found.at_least,
    )
