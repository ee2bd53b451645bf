"""Hit rates of several servers, each told by a log of its own (or a rank of its own in one log)."""

from __future__ import annotations

import re
from typing import Final

from kvprobe.diagnose.log_view import LogView
from kvprobe.diagnose.rules.logs.prefix import rates
from kvprobe.evidence.events import Event

_ROTATED: Final = re.compile(r"(?:\.\d{1,3}|-\d{8})?(?:\.(?:gz|xz|bz2|zst))?$")
"""`server.log.2.gz` is a piece of `server.log`, not another server."""


def server_of(event: Event) -> str:
    """A name that the lines of one server share: its log, and its rank where one log holds several."""
    name = _ROTATED.sub("", event.source, count=1)
    index = int(event.get("engine_index") or 0)
    place = event.rank or (f"engine {index}" if index else "")
    return f"{name} {place}" if place else name


def replica_rates(view: LogView) -> dict[str, float]:
    """The last hit rate (ratio) of each server that a log line tells, by its log and rank."""
    found: dict[str, float] = {}
    for e in rates(view):
        if e.line:  # a metrics page may be of one of the servers whose logs are here
            found[server_of(e)] = float(e.get("prefix_hit_rate"))
    return found


def with_affinity(told: dict[str, float]) -> float | None:
    """What the mean rate would be with one cache for all, as a ratio.

    Of n replicas behind round robin each meets a prefix again in about one of n requests, so the rate
    falls to about ideal / n. Null where that cannot be: fewer than two replicas, nothing hit, or a mean
    that would need an ideal above 1.
    """
    if len(told) < 2:
        return None
    ideal = sum(told.values())  # n x mean
    return ideal if 0 < ideal <= 1 else None
