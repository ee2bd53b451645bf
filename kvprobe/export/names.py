"""What a canonical series is called on a Prometheus page, and of which type it is."""

from __future__ import annotations

from typing import Literal

Type = Literal["counter", "gauge"]

PREFIX = "kvprobe_"
_UNITS = (("_s_total", "_seconds_total"), ("_s", "_seconds"))
_PER_BUCKET = ("_bucket", "_seconds_count", "_seconds_sum")
_NOT_SERIES = ("mark.", "clock.")


def exported(metric: str) -> bool:
    """Marks and clock readings are for the run's own analysis. The engine's histograms are on its own
    page, with buckets that belong together; ours are made from the client's rows."""
    return not metric.startswith(_NOT_SERIES) and not metric.endswith(_PER_BUCKET)


def page_name(metric: str) -> str:
    """`engine.kv_usage_ratio` -> `kvprobe_engine_kv_usage_ratio`; seconds are written out."""
    name = metric
    for short, long in _UNITS:
        if name.endswith(short):
            name = name.removesuffix(short) + long
            break
    return PREFIX + "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name)


def type_of(metric: str) -> Type:
    """Counters of an engine start anew when it restarts; Prometheus expects that of them."""
    return "counter" if metric.endswith("_total") else "gauge"
