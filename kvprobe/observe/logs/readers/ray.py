"""Ray: its memory monitor kills by its own threshold, before the kernel would."""

from __future__ import annotations

from kvprobe.observe.logs.lines import Reader
from kvprobe.observe.logs.readers.signature import signature, table_reader

_ROWS = (
    signature(
        "killed",
        "killed due to memory pressure",
        r"(?P<workers__count>[1-9]\d{0,8}) Workers? \(tasks / actors\) killed due to memory pressure",
        how="ray",
    ),
    signature(
        "killed",
        "exceeds the memory usage threshold",
        r"memory used=(?P<rss__size>[\d.]+ ?[KMGT]i?B)\) was running was "
        r"(?P<used__size>[\d.]+ ?[KMGT]i?B) / "
        r"(?P<total__size>[\d.]+ ?[KMGT]i?B) \((?P<usage__ratio>[\d.]+)\)",
        how="ray",
    ),
    signature(
        "killed",
        "ray-core/scheduling/ray-oom-prevention",
        r"on how to address the out of memory issue: \S{1,40}docs\.ray\.io",
        how="ray",
    ),
    signature(
        "killed",
        "killed due to the node running low on memory",
        r"[Tt]ask was killed due to the node running low on memory",
        how="ray",
    ),
    signature("killed", "ray.exceptions.OutOfMemoryError", r"OutOfMemoryError", how="ray"),
    signature(
        "worker_lost",
        "A worker died or was killed while executing",
        r"A worker died or was killed while executing",
    ),
    signature(
        "worker_lost", "The actor is dead because its worker process has died", r"worker process has died"
    ),
    signature(
        "worker_lost",
        "Worker exit type: SYSTEM_ERROR",
        r"SYSTEM_ERROR.{0,80}Worker unexpectedly exits",
    ),
)

READERS: tuple[Reader, ...] = (table_reader("ray", None, _ROWS),)
