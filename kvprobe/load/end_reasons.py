"""Why a load ends, in order of gravity: known to the workers and to whoever sums them up."""

from __future__ import annotations

from kvprobe.errors import KvprobeError, StorageError, TargetError, UsageError

QUICK_DRAIN_S = 1.0
"""After a breaker or a refused key there is nothing to wait for but answers already on their way."""
_RANK = (
    "planned",
    "drained",
    "breaker",
    "auth",
    "stopped",
    "lost",
    "refused",
    "usage",
    "storage",
    "error",
)
_OF_ERRORS: tuple[tuple[type[KvprobeError], str], ...] = (
    (StorageError, "storage"),
    (TargetError, "refused"),
    (UsageError, "usage"),
)


def reason_of(error: KvprobeError) -> str:
    """The reason under which an error before or in the load is told: each has its own exit code."""
    return next((reason for kind, reason in _OF_ERRORS if isinstance(error, kind)), "error")


def graver(reason: str, than: str | None) -> bool:
    """Whether the first reason says more about what went wrong; an unknown one says most."""
    return than is None or _rank(reason) > _rank(than)


def _rank(reason: str) -> int:
    return _RANK.index(reason) if reason in _RANK else len(_RANK)
