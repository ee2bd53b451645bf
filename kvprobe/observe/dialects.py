"""Each engine's metric names, mapped to one canonical set of series.

Adding an engine means adding one `Dialect` to `DIALECTS` and one recorded page to the tests.
A series that an engine does not export has no reading (never 0) and is named in `not_exported`.
Over several label sets (replicas, data-parallel engines) counts and counters are summed, ratios
averaged and high-water marks maximised; only labels that a series maps are kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from kvprobe.observe.exposition import Exposition, read_exposition

Aggregate = Literal["sum", "mean", "max"]
Kind = Literal["gauge", "counter", "histogram"]
Reading = tuple[str, dict[str, str], float]


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One canonical series in one engine's words.

    `names` are the engine's names without prefix and without `_total`, the preferred one first
    (engines rename; when a page has several, the first counts). `labels` maps the engine's label
    names that matter to canonical ones.
    """

    canonical: str
    names: tuple[str, ...]
    kind: Kind = "gauge"
    over_label_sets: Aggregate = "sum"
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """An engine: the prefix of its names, its series, and where it tells its cache configuration."""

    engine: str
    prefix: str
    series: tuple[Series, ...]
    cache_config: str | None = None
    """Name (without prefix) of the info metric whose labels describe the cache."""
    build_info: str | None = None
    """Name (without prefix) of the info metric whose label `version` is the engine's version."""
    block_size: str | None = None
    """Name (without prefix) of the gauge that tells the cache's block size in tokens."""
    known_block_size: int | None = None
    """Tokens of a block where the engine has one size only and no metric for it."""


@dataclass(slots=True)
class Page:
    """One page in canonical words.

    `readings` are (canonical metric, labels, value), NaN where the page says NaN; `engine` is null
    for a page of an engine that is not known; `names` maps each canonical series that was found to
    the engine's own name; `damaged` counts unreadable lines.
    """

    engine: str | None = None
    version: str | None = None
    readings: list[Reading] = field(default_factory=list)
    cache_config: dict[str, str] | None = None
    not_exported: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    damaged: int = 0


_COMMON_HISTOGRAMS = (
    Series("engine.ttft_seconds", ("time_to_first_token_seconds",), "histogram"),
    Series(
        "engine.itl_seconds", ("inter_token_latency_seconds", "time_per_output_token_seconds"), "histogram"
    ),
    Series("engine.e2e_seconds", ("e2e_request_latency_seconds",), "histogram"),
)

_VLLM = (
    Series("engine.requests_running", ("num_requests_running",)),
    Series("engine.requests_waiting", ("num_requests_waiting",)),
    Series(
        "engine.requests_waiting_by_reason", ("num_requests_waiting_by_reason",), labels={"reason": "reason"}
    ),
    Series("engine.kv_usage_ratio", ("kv_cache_usage_perc", "gpu_cache_usage_perc"), over_label_sets="mean"),
    Series(
        "engine.prefix_queries_tokens_total", ("prefix_cache_queries", "gpu_prefix_cache_queries"), "counter"
    ),
    Series("engine.prefix_hits_tokens_total", ("prefix_cache_hits", "gpu_prefix_cache_hits"), "counter"),
    Series("engine.preemptions_total", ("num_preemptions",), "counter"),
    Series("engine.prompt_tokens_total", ("prompt_tokens",), "counter"),
    Series("engine.prompt_tokens_cached_total", ("prompt_tokens_cached",), "counter"),
    Series("engine.generation_tokens_total", ("generation_tokens",), "counter"),
    Series(
        "engine.requests_finished_total",
        ("request_success",),
        "counter",
        labels={"finished_reason": "reason"},
    ),
    *_COMMON_HISTOGRAMS,
    Series("engine.queue_seconds", ("request_queue_time_seconds",), "histogram"),
    Series("engine.prefill_seconds", ("request_prefill_time_seconds",), "histogram"),
    Series("engine.decode_seconds", ("request_decode_time_seconds",), "histogram"),
)

_REFERENCE_EXTRAS = (
    Series("engine.requests_running_max", ("num_requests_running_max",), over_label_sets="max"),
    Series("engine.kv_usage_ratio_max", ("kv_cache_usage_max",), over_label_sets="max"),
    Series("engine.kv_blocks_total", ("kv_blocks_total",)),
    Series("engine.kv_blocks_used", ("kv_blocks_used",)),
    Series("engine.kv_blocks_cached", ("kv_blocks_cached",)),
    Series("engine.kv_blocks_free", ("kv_blocks_free",)),
    Series("engine.kv_blocks_evicted_total", ("kv_blocks_evicted",), "counter"),
    *(
        Series(f"engine.{name}", (name,))
        for name in (
            # pool = used + cached + free + null block; used = stored + tail + reserved - shared.
            *("kv_pool_bytes", "kv_used_bytes", "kv_cached_bytes", "kv_free_bytes", "kv_null_block_bytes"),
            *("kv_stored_bytes", "kv_shared_bytes", "kv_tail_empty_bytes", "kv_reserved_empty_bytes"),
            *("kv_cached_unreachable_bytes", "kv_block_table_bytes", "kv_swapped_blocks", "kv_backed_bytes"),
            *("device_memory_total_bytes", "device_memory_free_bytes", "device_memory_own_bytes"),
        )
    ),
    Series("engine.requests_swapped", ("num_requests_swapped",)),
    Series("engine.kv_bytes_per_token", ("kv_bytes_per_token",), over_label_sets="mean"),
    # Of several replicas' largest pieces, the largest: no sum of them lies in one piece.
    Series("engine.kv_largest_free_region_bytes", ("kv_largest_free_region_bytes",), over_label_sets="max"),
    *(
        Series(f"engine.{name}_total", (name,), "counter")
        for name in (
            *("kv_allocation_failures", "kv_allocation_failures_fragmented", "kv_moved_bytes"),
            *("kv_blocks_swapped_out", "kv_blocks_swapped_in"),
        )
    ),
)

_SGLANG = (
    Series("engine.requests_running", ("num_running_reqs",)),
    Series("engine.requests_waiting", ("num_queue_reqs",)),
    Series("engine.kv_usage_ratio", ("token_usage",), over_label_sets="mean"),
    Series("engine.preemptions_total", ("num_retracted_requests",), "counter"),
    Series("engine.prompt_tokens_total", ("prompt_tokens",), "counter"),
    Series("engine.generation_tokens_total", ("generation_tokens",), "counter"),
    *_COMMON_HISTOGRAMS,
    Series("engine.queue_seconds", ("queue_time_seconds",), "histogram"),
)

# llama.cpp's prompt_tokens_total leaves cached tokens out, vLLM's counts them: not mapped.
_LLAMA_CPP = (
    Series("engine.requests_running", ("requests_processing",)),
    Series("engine.requests_waiting", ("requests_deferred",)),
    Series("engine.prompt_tokens_cached_total", ("prompt_tokens_cached",), "counter"),
    Series("engine.generation_tokens_total", ("tokens_predicted",), "counter"),
)

DIALECTS = (
    # First: with --vllm-metric-names the reference server shows its numbers a second time.
    Dialect("reference", "kvprobe:", (*_VLLM, *_REFERENCE_EXTRAS), "cache_config_info", "build_info"),
    Dialect("vllm", "vllm:", _VLLM, "cache_config_info"),
    Dialect("sglang", "sglang:", _SGLANG, block_size="page_size"),
    # It compares a prompt with what a slot holds token by token, so a block is one token.
    Dialect("llama.cpp", "llamacpp:", _LLAMA_CPP, known_block_size=1),
)

CANONICAL = tuple(dict.fromkeys(series.canonical for dialect in DIALECTS for series in dialect.series))
"""Every canonical series; histograms stand here without `_sum`, `_count` and `_bucket`."""


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """Where the samples of one wire name go. A lower `rank` is a name that is preferred."""

    series: Series
    rank: int
    suffix: str


def read_page(text: str, *, buckets: bool = True) -> Page:
    """Read a /metrics page. `buckets=False` leaves histogram buckets out (they are most lines).

    Never raises: a page that is no exposition at all gives no readings and no engine.
    """
    dialect = recognise(text)
    if dialect is None:
        return Page()
    targets = _targets(dialect, buckets)
    exposition = read_exposition(text, _wanted(dialect, buckets))
    page = Page(engine=dialect.engine, damaged=exposition.damaged)
    _fill_info(page, dialect, exposition)
    _fill_readings(page, exposition, targets)
    declared = {targets[name].series.canonical for name in exposition.declared if name in targets}
    page.not_exported = [name for name in CANONICAL if name not in page.names and name not in declared]
    return page


def recognise(text: str) -> Dialect | None:
    """The engine whose names stand on the page, the reference server first."""
    for dialect in DIALECTS:
        starts = (dialect.prefix, f"# TYPE {dialect.prefix}", f"# HELP {dialect.prefix}")
        if text.startswith(starts) or any(f"\n{start}" in text for start in starts):
            return dialect
    return None


@cache
def _targets(dialect: Dialect, buckets: bool) -> Mapping[str, _Target]:
    """Wire name to target, with and without `_total`; a TYPE line may name either form."""
    targets: dict[str, _Target] = {}
    for series in dialect.series:
        for rank, name in enumerate(series.names):
            wire = dialect.prefix + name
            targets[wire] = _Target(series, 2 * rank + 1, "")
            if series.kind == "counter":
                targets[f"{wire}_total"] = _Target(series, 2 * rank, "")
            if series.kind == "histogram":
                for suffix in ("_sum", "_count", "_bucket")[: 3 if buckets else 2]:
                    targets[wire + suffix] = _Target(series, 2 * rank, suffix)
    return targets


@cache
def _wanted(dialect: Dialect, buckets: bool) -> frozenset[str]:
    names = (dialect.cache_config, dialect.build_info, dialect.block_size)
    infos = (dialect.prefix + name for name in names if name)
    return frozenset((*_targets(dialect, buckets), *infos))


def _fill_info(page: Page, dialect: Dialect, exposition: Exposition) -> None:
    if dialect.known_block_size is not None:
        page.cache_config = {"block_size": str(dialect.known_block_size)}
    for name, labels, value in exposition.samples:
        if dialect.cache_config and name == dialect.prefix + dialect.cache_config:
            # Data-parallel engines tell the same configuration: the first stands for all.
            page.cache_config = page.cache_config or dict(labels)
        elif dialect.build_info and name == dialect.prefix + dialect.build_info:
            page.version = page.version or labels.get("version")
        elif dialect.block_size and name == dialect.prefix + dialect.block_size and value > 0:
            page.cache_config = page.cache_config or {"block_size": f"{value:.0f}"}


def _fill_readings(page: Page, exposition: Exposition, targets: Mapping[str, _Target]) -> None:
    # A series that stands twice on the page counts once, the last one.
    unique = {
        (name, frozenset(labels.items())): (targets[name], labels, value)
        for name, labels, value in exposition.samples
        if name in targets
    }
    best: dict[str, int] = {}
    for (name, _), (target, _labels, _value) in unique.items():
        canonical = target.series.canonical
        if target.rank < best.get(canonical, math.inf):
            best[canonical] = target.rank
            page.names[canonical] = name.removesuffix(target.suffix)
    groups: dict[tuple[str, frozenset[tuple[str, str]]], tuple[Series, list[float]]] = {}
    for target, labels, value in unique.values():
        series = target.series
        if target.rank == best[series.canonical]:
            kept = frozenset(_kept_labels(target, labels))
            key = (series.canonical + target.suffix, kept)
            groups.setdefault(key, (series, []))[1].append(value)
    page.readings = [
        (metric, dict(sorted(kept)), _aggregate(series.over_label_sets, values))
        for (metric, kept), (series, values) in groups.items()
    ]


def _kept_labels(target: _Target, labels: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    for theirs, ours in target.series.labels.items():
        if theirs in labels:
            yield ours, labels[theirs]
    if target.suffix == "_bucket":
        yield "le", labels.get("le", "")


def _aggregate(how: Aggregate, values: list[float]) -> float:
    """One number over the label sets; NaN when one of them is NaN: the whole is not known."""
    if any(math.isnan(value) for value in values):
        return math.nan
    if how == "max":
        return max(values)
    # Not fsum: it raises on infinities of both signs, which a hostile page may send.
    total = sum(values)
    return total / len(values) if how == "mean" else total
