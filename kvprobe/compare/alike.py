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


def require_alike(a: RunData, b: RunData, hashes: tuple[str | None, str | None]) -> str | None:
    """Raises UsageError (exit 2) naming what was sent differently; returns what is doubtful about it.

    The hash goes by what a trace holds, and not by where it lies: it decides where both runs have one.
    """
    for run in (a, b):
        if not run.workload:
            message = "this run does not say what was sent: its workload.yaml is missing or cannot be read"
            raise UsageError(
                Problem("unlike_runs", message, "compare runs that still have it", str(run.path))
            )
    unlike = unlike_keys(a.workload, b.workload)
    same_hash = hashes[0] == hashes[1] if None not in hashes else None
    if same_hash:
        return None
    if not unlike:
        return None if same_hash is None else _same_keys_only(a, b)
    shown = "; ".join(f"{key}: {_shown(x)} in A, {_shown(y)} in B" for key, x, y in unlike[:SHOWN_KEYS])
    more = f"; and {len(unlike) - SHOWN_KEYS} more" if len(unlike) > SHOWN_KEYS else ""
    message = f"the two runs sent different work, so that their numbers say nothing about each other: {shown}"
    fix = "run one workload twice, and change only the server or its settings in between"
    raise UsageError(Problem("unlike_runs", message + more, fix))


def _same_keys_only(a: RunData, b: RunData) -> str:
    """The keys agree and the hashes do not. Of one version of kvprobe, the content was another."""
    versions = [run.environment.get("kvprobe") for run in (a, b)]
    if versions[0] == versions[1]:
        message = (
            "the two runs name the same workload, and their hashes differ: a file that it names, such as a "
            "trace, held other content"
        )
        raise UsageError(Problem("unlike_runs", message, "run one workload twice, with the same files"))
    return (
        f"the workloads have the same keys and other hashes, made by kvprobe {_shown(versions[0])} and "
        f"{_shown(versions[1])}: whether the same was sent is not certain"
    )


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _shown(value: Any) -> str:
    return "not set" if value is None else str(value)[:60]
