"""Each engine's metric names, mapped to one canonical set of series.

Adding an engine means adding one `Dialect` to `DIALECTS` and one recorded page to the tests.
A series that an engine does not export has no reading (never 0) and is named in `not_exported`.
Over several label sets (replicas, data-parallel engines) counts and counters are summed, ratios
averaged and high-water marks maximised; only labels that a series maps are kept.
"""

from __future__ import annotations

from kvprobe.observe.dialects.model import Absent, Dialect, Page, Reading, Series
from kvprobe.observe.dialects.page import aggregate, read_page, recognise
from kvprobe.observe.dialects.table import CANONICAL, DIALECTS, NO_METRICS

__all__ = [
    "CANONICAL",
    "DIALECTS",
    "NO_METRICS",
    "Absent",
    "Dialect",
    "Page",
    "Reading",
    "Series",
    "aggregate",
    "read_page",
    "recognise",
]
