"""Were the two runs the same workload? Only then can their numbers be set beside each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvprobe.errors import Problem, UsageError
from kvprobe.evidence.rundata import RunData
from kvprobe.load.not_sent import NOT_SENT

SHOWN_KEYS = 6


def unlike_keys(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """(dotted key, value in A, value in B) of all that was sent differently; absent is None."""
    flat_a, flat_b = (dict(_flat({k: v for k, v in w.items() if k not in NOT_SENT})) for w in (a, b))
    keys = sorted(flat_a.keys() | flat_b.keys())
    return [(k, flat_a.get(k), flat_b.get(k)) for k in keys if flat_a.get(k) != flat_b.get(k)]


def require_alike(a: RunData, b: RunData) -> None:
    """Raises UsageError (exit 2) naming what was sent differently."""
    for run in (a, b):
        if not run.workload:
            message = "this run does not say what was sent: its workload.yaml is missing or cannot be read"
            raise UsageError(
                Problem("unlike_runs", message, "compare runs that still have it", str(run.path))
            )
    unlike = unlike_keys(a.workload, b.workload)
    if not unlike:
        return
    shown = "; ".join(f"{key}: {_shown(x)} in A, {_shown(y)} in B" for key, x, y in unlike[:SHOWN_KEYS])
    more = f"; and {len(unlike) - SHOWN_KEYS} more" if len(unlike) > SHOWN_KEYS else ""
    message = f"the two runs sent different work, so that their numbers say nothing about each other: {shown}"
    fix = "run one workload twice, and change only the server or its settings in between"
    raise UsageError(Problem("unlike_runs", message + more, fix))


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)[:60]
