"""Where workload files lie, and which one a name means."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from kvprobe.errors import Problem, UsageError


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A suggestion for a mistyped word, or null when nothing is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else None


def bundled_workloads() -> Path:
    """The folder of the bundled workload files: in the wheel, else in the repository."""
    package = Path(__file__).resolve().parent.parent
    in_wheel = package / "bundled_workloads"
    return in_wheel if in_wheel.is_dir() else package.parent / "workloads"


def find_workload(path_or_name: str) -> tuple[Path, str]:
    """The file that is meant, and how to call it in messages."""
    path = Path(path_or_name)
    if "\0" in path_or_name:
        raise UsageError(
            Problem("not_found", "a path cannot hold a NUL character", "give the path of a YAML file")
        )
    if os.path.exists(path) and not os.path.isdir(path):
        return path, path_or_name
    folder = bundled_workloads()
    names = sorted(p.stem for p in folder.glob("*.yaml"))
    if re.fullmatch(r"[a-z0-9_-]+", path_or_name) and path_or_name in names:
        return folder / f"{path_or_name}.yaml", f"{path_or_name}.yaml"
    if os.path.isdir(path):  # only now: a folder called like a bundled workload does not hide it
        return path, path_or_name
    fix = (
        did_you_mean(path.stem, names) or f"give a file, or one of the bundled workloads: {', '.join(names)}"
    )
    shown = path_or_name if len(path_or_name) <= 200 else f"{path_or_name[:200]}…"
    raise UsageError(Problem("not_found", f"there is no workload file {shown!r}", fix))
