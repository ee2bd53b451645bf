"""Several targets as one service."""

from __future__ import annotations

from collections.abc import Sequence

from kvprobe.observe.aggregate import over_replicas
from kvprobe.observe.dialects import Absent
from kvprobe.watch.model import TargetView, Together


def together(views: Sequence[TargetView]) -> Together | None:
    """Null for fewer than two targets."""
    if len(views) < 2:
        return None
    usage = [v.numbers["kv_usage"].value for v in views]
    return Together(
        targets=len(views),
        reachable=sum(view.reachable for view in views),
        running=_over(views, "running", "engine.requests_running"),
        waiting=_over(views, "waiting", "engine.requests_waiting"),
        kv_usage_mean=_over(views, "kv_usage", "engine.kv_usage_ratio"),
        kv_usage_max=max((value for value in usage if value is not None), default=None),
    )


def _over(views: Sequence[TargetView], name: str, canonical: str) -> float | None:
    values = (view.numbers[name].value for view in views)
    whole = over_replicas(canonical, [Absent.NO_READING if value is None else value for value in values])
    return None if isinstance(whole, Absent) else whole
