"""Where each sample of a page goes. The same samples come back with every scrape, so what was found out
about one is kept: reading a page a second time is mostly dictionary look-ups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from kvprobe.observe.dialects.model import Dialect, Series
from kvprobe.observe.exposition import Labels

_MOST = 8192
"""Samples that are remembered from page to page; after that the next page begins anew."""
_ENGINE_LABELS = ("engine_id", "dp_rank", "engine_index")
_COPIES = frozenset(("tp_rank", "pp_rank", "moe_ep_rank"))
"""The tensor-, pipeline- and expert-parallel ranks of one engine schedule the same requests: SGLang with
--enable-metrics-for-all-schedulers shows each rank's copy. Groups have a `dp_rank` of their own."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Where the samples of one wire name go. A lower `rank` is a name that is preferred."""

    series: Series
    rank: int
    suffix: str


@dataclass(slots=True, eq=False)  # not frozen: a page makes a thousand of them
class Group:
    """One canonical reading: the samples of a group are put together."""

    series: Series
    metric: str
    labels: dict[str, str]


@dataclass(slots=True, eq=False)
class Place:
    """One sample's seat in its group; a sample that stands twice on a page has one place."""

    target: Target
    group: Group
    engine: str
    copied: bool = False
    """Samples that differ in the rank alone tell the same: the highest counts, once."""


class Memory:
    """What is known of the samples of earlier pages.

    Several pages may be read at once, in threads: each keeps the memory that it began with, and what two
    find at the same moment becomes one object (`dict.setdefault` is atomic). Else the samples of one group
    would fall into two.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[str, int], tuple[Labels, tuple[Place, ...]]] = {}
        self.places: dict[tuple[int, str, frozenset[tuple[str, str]]], Place] = {}
        self.groups: dict[tuple[object, ...], Group] = {}


class Places:
    """What a dialect wants from a page."""

    def __init__(self, dialect: Dialect, buckets: bool) -> None:
        self.targets = _targets(dialect, buckets)
        infos = (dialect.prefix + name for name in (dialect.cache_config, dialect.build_info) if name)
        self.wanted = frozenset((*self.targets, *infos))
        self._memory = Memory()

    def begin(self) -> Memory:
        """The memory for one page; a full one is left to whoever still reads with it."""
        if len(self._memory.known) >= _MOST:
            self._memory = Memory()
        return self._memory

    def of(self, memory: Memory, name: str, labels: Labels) -> tuple[Place, ...]:
        """The places of a sample. The labels are held, so their address is theirs alone."""
        known = memory.known.get((name, id(labels)))
        if known is not None and known[0] is labels:
            return known[1]
        targets = self.targets.get(name, ())
        if len(targets) == 1 and not targets[0].series.where:
            places: tuple[Place, ...] = (_place(memory, 0, name, targets[0], labels),)
        else:
            places = tuple(
                _place(memory, number, name, target, labels)
                for number, target in enumerate(targets)
                if all(labels.get(key, "") == wanted for key, wanted in target.series.where.items())
            )
        memory.known[(name, id(labels))] = (labels, places)
        return places


def _place(memory: Memory, number: int, name: str, target: Target, labels: Labels) -> Place:
    copied = not _COPIES.isdisjoint(labels)
    told = (
        frozenset((k, v) for k, v in labels.items() if k not in _COPIES)
        if copied
        else frozenset(labels.items())
    )
    key = (number, name, told)
    place = memory.places.get(key)
    if place is None:
        engine = labels.get("engine")
        if engine is None:
            engine = next((labels[label] for label in _ENGINE_LABELS if label in labels), "")
        place = memory.places.setdefault(key, Place(target, _group(memory, target, labels), engine, copied))
    return place


def _group(memory: Memory, target: Target, labels: Labels) -> Group:
    kept = _kept_labels(target, labels)
    key = (target.series.canonical, target.suffix, *kept.items())
    group = memory.groups.get(key)
    if group is None:
        metric = target.series.canonical + target.suffix
        group = memory.groups.setdefault(key, Group(target.series, metric, dict(sorted(kept.items()))))
    return group


@cache
def places(dialect: Dialect, buckets: bool) -> Places:
    """One for each dialect."""
    return Places(dialect, buckets)


def _targets(dialect: Dialect, buckets: bool) -> Mapping[str, tuple[Target, ...]]:
    """Wire name to targets, with and without `_total`; a TYPE line may name either form."""
    targets: dict[str, tuple[Target, ...]] = {}

    def add(wire: str, target: Target) -> None:
        targets[wire] = (*targets.get(wire, ()), target)

    for series in dialect.series:
        for rank, name in enumerate(series.names):
            wire = name if series.absolute else dialect.prefix + name
            add(wire, Target(series, 2 * rank + 1, ""))
            if series.kind == "counter":
                add(f"{wire}_total", Target(series, 2 * rank, ""))
            if series.kind == "histogram":
                for suffix in ("_sum", "_count", "_bucket")[: 3 if buckets else 2]:
                    add(wire + suffix, Target(series, 2 * rank, suffix))
    return targets


def _kept_labels(target: Target, labels: Labels) -> dict[str, str]:
    kept: dict[str, str] = {}
    for theirs, ours in target.series.labels.items():  # in the order of the series, whatever the page's
        if theirs in labels:
            kept[ours] = labels[theirs]
    if target.suffix == "_bucket":
        kept["le"] = labels.get("le", "")
    return kept
