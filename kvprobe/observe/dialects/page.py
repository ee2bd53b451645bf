"""From the text of a page to canonical readings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from kvprobe.observe.dialects.model import Aggregate, Dialect, Page, Reading
from kvprobe.observe.dialects.places import Group, Place, Places, places
from kvprobe.observe.dialects.table import CANONICAL, DIALECTS
from kvprobe.observe.exposition import Exposition, read_exposition

ABOVE_ONE = 1.02
"""A ratio up to here is rounding; above it the number is no share of anything."""


def read_page(text: str, *, buckets: bool = True) -> Page:
    """Read a /metrics page. `buckets=False` leaves histogram buckets out (they are most lines).

    Never raises: a page that is no exposition at all gives no readings and no engine.
    """
    dialect = recognise(text)
    if dialect is None:
        return Page()
    seats = places(dialect, buckets)
    exposition = read_exposition(text, seats.wanted)
    page = Page(engine=dialect.engine, damaged=exposition.damaged)
    hits = _hits(exposition, seats)
    _fill_names(page, dialect, hits)
    _fill_readings(page, hits)
    _fill_derived(page)
    _fill_info(page, dialect, exposition)
    _fill_versions(page, dialect, exposition)
    declared = {t.series.canonical for name in exposition.declared for t in seats.targets.get(name, ())}
    page.not_exported = [name for name in CANONICAL if name not in page.names and name not in declared]
    return page


def recognise(text: str) -> Dialect | None:
    """The engine whose names stand on the page, the reference server first."""
    for dialect in DIALECTS:
        starts = (dialect.prefix, f"# TYPE {dialect.prefix}", f"# HELP {dialect.prefix}")
        if text.startswith(starts) or any(f"\n{start}" in text for start in starts):
            return dialect
    return None


def _hits(exposition: Exposition, seats: Places) -> list[tuple[Place, float]]:
    """The samples that some series wants, by the preferred name of each. One that stands twice on the page
    counts once, the last one."""
    unique: dict[Place, float] = {}
    memory = seats.begin()
    for name, labels, value in exposition.samples:
        for place in seats.of(memory, name, labels):
            before = unique.get(place) if place.copied else None
            unique[place] = value if before is None else max(before, value)
    best: dict[str, int] = {}
    for place in unique:
        canonical, rank = place.target.series.canonical, place.target.rank
        if rank < best.get(canonical, rank + 1):
            best[canonical] = rank
    return [
        (place, value)
        for place, value in unique.items()
        if place.target.rank == best[place.target.series.canonical]
    ]


def _fill_names(page: Page, dialect: Dialect, hits: Iterable[tuple[Place, float]]) -> None:
    for place, _ in hits:
        series, rank = place.target.series, place.target.rank
        if series.canonical not in page.names:
            name = series.names[rank // 2]
            total = "_total" if series.kind == "counter" and rank % 2 == 0 else ""
            shown = name if series.absolute else dialect.prefix + name
            where = ",".join(f"{key}={value}" for key, value in series.where.items() if value)
            page.names[series.canonical] = shown + total + (f"{{{where}}}" if where else "")


def _fill_readings(page: Page, hits: Iterable[tuple[Place, float]]) -> None:
    groups: dict[Group, list[tuple[str, float]]] = {}
    for place, value in hits:
        series = place.group.series
        if series.is_ratio:
            value = _share(page, series.canonical, value)
        groups.setdefault(place.group, []).append((place.engine, value))
    for group, values in groups.items():
        how = group.series.over_label_sets
        total = values[0][1] if len(values) == 1 else aggregate(how, [value for _, value in values])
        page.readings.append((group.metric, dict(group.labels), total))
        if len(values) > 1 and group.series.kind != "histogram":
            page.parts += _parts(group, values)


def _parts(group: Group, values: list[tuple[str, float]]) -> Iterator[Reading]:
    by_engine: dict[str, list[float]] = {}
    for engine, value in values:
        by_engine.setdefault(engine, []).append(value)
    for engine, mine in sorted(by_engine.items()) if len(by_engine) > 1 else ():
        yield (
            group.metric,
            {**group.labels, "engine": engine},
            aggregate(group.series.over_label_sets, mine),
        )


def _share(page: Page, canonical: str, value: float) -> float:
    """NaN, and a doubt, for what is no share (a negative one is an engine's way to say that it has none)."""
    if math.isnan(value) or 0.0 <= value <= ABOVE_ONE:
        return value
    said = f"{page.names[canonical]} says {value:g}"
    page.doubts[canonical] = f"{said}, which is no share between 0 and 1"
    return math.nan


def _fill_derived(page: Page) -> None:
    """KV usage out of blocks or tokens where the engine has no ratio, waiting out of active and scheduled
    requests where it has no queue (Triton)."""
    values = {metric: value for metric, labels, value in page.readings if not labels}

    def derive(canonical: str, value: float, operation: str, *parts: str) -> None:
        page.names[canonical] = operation.join(page.names[part] for part in parts)
        page.readings.append((canonical, {}, _share(page, canonical, value) if operation == " / " else value))

    for unit in ("blocks", "tokens"):
        used, total = f"engine.kv_{unit}_used", f"engine.kv_{unit}_total"
        if "engine.kv_usage_ratio" not in page.names and values.get(total, 0.0) > 0 and used in values:
            derive("engine.kv_usage_ratio", values[used] / values[total], " / ", used, total)
    active, running = "engine.requests_active", "engine.requests_running"
    if "engine.requests_waiting" not in page.names and active in values and running in values:
        derive("engine.requests_waiting", max(0.0, values[active] - values[running]), " - ", active, running)


def _fill_info(page: Page, dialect: Dialect, exposition: Exposition) -> None:
    for name, labels, _ in exposition.samples:
        if dialect.cache_config and name == dialect.prefix + dialect.cache_config:
            # Data-parallel engines tell the same configuration: the first stands for all.
            page.cache_config = page.cache_config or dict(labels)
        elif dialect.build_info and name == dialect.prefix + dialect.build_info:
            page.version = page.version or labels.get("version")
    if page.cache_config is None:
        page.cache_config = _config_of_gauges(page, dialect) or None


def _fill_versions(page: Page, dialect: Dialect, exposition: Exposition) -> None:
    """The versions that the names allow, and `gpu_cache_usage_perc absent, using kv_cache_usage_perc
    (vllm >= 0.12)` for whoever's dashboard still asks for the other name."""
    if dialect.version_range is None:
        return
    wire = {*exposition.declared, *(name for name, _, _ in exposition.samples)}
    seen = {base_name(name) for name in wire}
    page.version_range = dialect.version_range(seen)
    of = f"{page.engine} {page.version_range}" if page.version_range else page.engine
    for series in dialect.series:
        if series.renamed and series.canonical in page.names:
            using = base_name(page.names[series.canonical]).removeprefix(dialect.prefix)
            absent = [name for name in series.names if dialect.prefix + name not in seen]
            if absent:
                page.renames.append(f"{', '.join(absent)} absent, using {using} ({of})")


def _config_of_gauges(page: Page, dialect: Dialect) -> dict[str, str]:
    """The cache's configuration in the labels of vLLM, from engines that tell it in gauges."""
    values = {metric: value for metric, labels, value in page.readings if not labels}
    sources = {
        "block_size": values.get("engine.kv_block_size_tokens", float(dialect.known_block_size or 0)),
        "num_gpu_blocks": values.get("engine.kv_blocks_total", 0.0),
        "kv_cache_size_tokens": values.get("engine.kv_tokens_total", 0.0),
    }
    return {key: f"{value:.0f}" for key, value in sources.items() if 0 < value < math.inf}


def base_name(name: str) -> str:
    """A family's name out of a sample's: without `_total`, `_sum`, `_count` and `_bucket`."""
    for suffix in ("_total", "_sum", "_count", "_bucket"):
        name = name.removesuffix(suffix)
    return name


def aggregate(how: Aggregate, values: list[float]) -> float:
    """One number over label sets or replicas: counts and counters summed, ratios averaged (a sum of
    percentages is none), high-water marks maximised. NaN when one of them is NaN: the whole is not
    known."""
    if any(math.isnan(value) for value in values):
        return math.nan
    if how == "max":
        return max(values)
    # Not fsum: it raises on infinities of both signs, which a hostile page may send.
    total = sum(values)
    return total / len(values) if how == "mean" else total
