"""`--junit FILE`: looked at before the load, so that no run is made in vain; written after it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from kvprobe.errors import Problem, StorageError

if TYPE_CHECKING:
    from kvprobe.run.options import RunOutcome


def check_writable(path: Path | None) -> None:
    """Raises `StorageError` for a file that could not be written."""
    if path is None:
        return
    folder = path.parent
    if path.is_dir():
        raise StorageError(_problem(path, "it is a folder", "name a file, such as junit.xml"))
    if not folder.is_dir():
        raise StorageError(_problem(path, f"there is no folder {folder}", "make it, or name another file"))
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise StorageError(_problem(path, "no permission", "name a file in a folder of your own"))


def _problem(path: Path, why: str, fix: str) -> Problem:
    return Problem("storage_failed", f"--junit cannot be written: {why}", fix, str(path))


def write(path: Path | None, outcome: RunOutcome) -> None:
    """Write the thresholds of a run that has a result. Raises `StorageError`."""
    if path is None or outcome.summary is None or outcome.diagnosis is None:
        return
    from kvprobe.evidence.spool import storage_error
    from kvprobe.gates.junit import render_junit

    try:
        path.write_text(
            render_junit(outcome.summary, outcome.diagnosis, outcome.thresholds), encoding="utf-8"
        )
    except OSError as error:
        raise storage_error(error, path) from error
