"""What a dialect is: an engine's names and how they map to canonical series."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

Aggregate = Literal["sum", "mean", "max"]
Kind = Literal["gauge", "counter", "histogram"]
Reading = tuple[str, dict[str, str], float]


class Absent(StrEnum):
    """Why a series has no number: three different things, and none of them is 0."""

    NOT_EXPORTED = "not_exported"
    """This version of this engine has no such series (or it is switched off there)."""
    NO_READING = "no_reading"
    """The page names the series and gives no number for it (no sample yet, or NaN)."""
    SCRAPE_FAILED = "scrape_failed"
    """The page could not be read."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One canonical series in one engine's words.

    `names` are the engine's names without prefix and without `_total`, the preferred one first
    (engines rename; when a page has several, the first counts). `labels` maps the engine's label
    names that matter to canonical ones. `where` keeps only samples with these labels, for engines
    that put several quantities under one name; as in Prometheus, a label that is not there is an
    empty one. `absolute` names stand without the engine's prefix.
    """

    canonical: str
    names: tuple[str, ...]
    kind: Kind = "gauge"
    over_label_sets: Aggregate = "sum"
    labels: Mapping[str, str] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict)
    absolute: bool = False
    renamed: bool = False
    """The names are one series under its names of several versions, not several that tell the same."""
    is_ratio: bool = field(init=False)
    """A share between 0 and 1."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_ratio", "_ratio" in self.canonical)


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
    known_block_size: int | None = None
    """Tokens of a block where the engine has one size only and no metric for it."""
    version_range: Callable[[Collection[str]], str | None] | None = None
    """From the names on the page (with prefix, without `_total`) to the versions that have them."""


@dataclass(slots=True)
class Page:
    """One page in canonical words.

    `readings` are (canonical metric, labels, value), NaN where the page says NaN; `engine` is null
    for a page of an engine that is not known; `names` maps each canonical series that was found to
    the engine's own name; `damaged` counts unreadable lines.
    """

    engine: str | None = None
    version: str | None = None
    """The engine's version where the page tells it exactly."""
    version_range: str | None = None
    """The versions whose names stand on the page, such as `0.9.2-0.10.1`; null when they do not tell."""
    readings: list[Reading] = field(default_factory=list)
    parts: list[Reading] = field(default_factory=list)
    """The same by engine (label `engine`), where several engines stand on one page: gauges and
    counters only. A mean hides the one that is full; a sum hides which one restarted."""
    cache_config: dict[str, str] | None = None
    not_exported: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    doubts: dict[str, str] = field(default_factory=dict)
    """Canonical series -> why its number was not believed (a ratio outside 0-1); it reads NaN then."""
    renames: list[str] = field(default_factory=list)
    """Where an engine has renamed a series: the name that a dashboard may still ask for, and the one here."""
    damaged: int = 0

    def look(self, canonical: str, **labels: str) -> float | Absent:
        """The value of a series, or why there is none."""
        for metric, kept, value in self.readings:
            if metric == canonical and kept == labels:
                return value if value == value else Absent.NO_READING
        return Absent.NOT_EXPORTED if canonical in self.not_exported else Absent.NO_READING
