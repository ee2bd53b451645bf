"""Where each sample of a page goes. The same samples come back with every scrape, so what was found out
about one is kept: reading a page a second time is mostly dictionary look-ups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from kvprobe.observe.dialects.model import Dialect, Series
from kvprobe.observe.exposition import Labels

_MOST = 8192
"""Samples that are remembered; a page of more, or ever new labels, begins anew."""
_ENGINE_LABELS = ("engine", "engine_id", "dp_rank", "engine_index")


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Where the samples of one wire name go. A lower `rank` is a name that is preferred."""

    series: Series
    rank: int
    suffix: str


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """One canonical reading: the samples of a group are put together."""

    series: Series
    metric: str
    labels: dict[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """One sample's seat in its group; a sample that stands twice on a page has one place."""

    target: Target
    group: Group
    engine: str


class Places:
    """What a dialect wants from a page."""

    def __init__(self, dialect: Dialect, buckets: bool) -> None:
        self.targets = _targets(dialect, buckets)
        infos = (dialect.prefix + name for name in (dialect.cache_config, dialect.build_info) if name)
        self.wanted = frozenset((*self.targets, *infos))
        self._known: dict[tuple[str, int], tuple[Labels, tuple[Place, ...]]] = {}
        self._places: dict[tuple[int, str, frozenset[tuple[str, str]]], Place] = {}
        self._groups: dict[tuple[str, frozenset[tuple[str, str]]], Group] = {}

    def of(self, name: str, labels: Labels) -> tuple[Place, ...]:
        """The places of a sample. The labels are held, so their address is theirs alone."""
        known = self._known.get((name, id(labels)))
        if known is not None and known[0] is labels:
            return known[1]
        if len(self._known) >= _MOST:
            self._known, self._places, self._groups = {}, {}, {}
        places = tuple(
            self._place(number, name, target, labels)
            for number, target in enumerate(self.targets.get(name, ()))
            if all(labels.get(key) == wanted for key, wanted in target.series.where.items())
        )
        self._known[(name, id(labels))] = (labels, places)
        return places

    def _place(self, number: int, name: str, target: Target, labels: Labels) -> Place:
        key = (number, name, frozenset(labels.items()))
        if key not in self._places:
            kept = _kept_labels(target, labels)
            group_key = (target.series.canonical + target.suffix, frozenset(kept.items()))
            if group_key not in self._groups:
                self._groups[group_key] = Group(target.series, group_key[0], dict(sorted(kept.items())))
            engine = next((labels[label] for label in _ENGINE_LABELS if label in labels), "")
            self._places[key] = Place(target, self._groups[group_key], engine)
        return self._places[key]


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
    kept = {ours: labels[theirs] for theirs, ours in target.series.labels.items() if theirs in labels}
    if target.suffix == "_bucket":
        kept["le"] = labels.get("le", "")
    return kept
