"""`--log FILE`: what a given server writes while the load runs becomes part of the run directory.

Where a log stands is noted before the load; afterwards what came since is copied, and before it the end
of what stood there already, for the settings that a server tells once. `run_logs` says which of it counts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from kvprobe.errors import Problem, StorageError, UsageError
from kvprobe.evidence.facts import Fact

HEAD_BYTES: Final = 8 << 20
"""Of what stood there before, so much: its end, at which the last start of the server is looked for."""
MOST_BYTES: Final = 256 << 20
"""Of what came meanwhile, the end of so much: deaths stand at the end."""
FOLDER: Final = "logs"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class LogMark:
    """A log before the load: which file it was and how long."""

    path: Path
    device: int
    inode: int
    size: int


def mark(paths: Sequence[Path]) -> list[LogMark]:
    """Where each log ends now. Raises `UsageError` for what cannot be read as a file."""
    found, problems = [], []
    for path in paths:
        try:
            status = os.stat(path)
            with path.open("rb"):
                pass
        except OSError as error:
            problems.append(_unreadable(path, error.strerror or str(error)))
            continue
        if not path.is_file():
            problems.append(_unreadable(path, "it is no regular file"))
            continue
        found.append(LogMark(path, status.st_dev, status.st_ino, status.st_size))
    if problems:
        raise UsageError(*problems)
    return found


def _unreadable(path: Path, why: str) -> Problem:
    fix = "give --log the file that the server writes its log to"
    return Problem("no_log", f"--log {path}: {why}", fix, str(path))


def keep(marks: Sequence[LogMark], run_dir: Path) -> tuple[list[Fact], list[Problem]]:
    """Copy what came since into the run directory. A log that has gone, or a disk that refuses, is a
    problem beside the result."""
    facts: list[Fact] = []
    problems: list[Problem] = []
    for number, one in enumerate(marks):
        name = f"{FOLDER}/{number}-{one.path.name}"
        try:
            facts.append(_copy(one, run_dir / name, name))
        except FileNotFoundError as error:
            problems.append(Problem("log_gone", f"--log {one.path}: {error.strerror}", None, str(one.path)))
        except OSError as error:
            raise StorageError(
                Problem("storage_failed", f"cannot keep {one.path}: {error.strerror}", None, str(one.path))
            ) from error
    return facts, problems


def _copy(one: LogMark, target: Path, name: str) -> Fact:
    status = os.stat(one.path)
    same = (status.st_dev, status.st_ino) == (one.device, one.inode) and status.st_size >= one.size
    # A log that was rotated or cut meanwhile is new from its first byte.
    border = one.size if same else 0
    begin = max(border - HEAD_BYTES, 0)
    skip_to = max(border, status.st_size - MOST_BYTES)
    target.parent.mkdir(exist_ok=True)
    with one.path.open("rb") as source, target.open("wb") as out:
        lines_before = _transfer(source, out, begin, border)
        _transfer(source, out, skip_to, status.st_size)
    return Fact(
        name="log_kept",
        source="--log",
        value={
            "file": name,
            "of": str(one.path),
            "lines_before": lines_before,
            "bytes": status.st_size - border,
            "left_out_bytes": skip_to - border,
            "rotated": not same,
        },
    )


def _transfer(source: BinaryIO, out: BinaryIO, begin: int, end: int) -> int:
    """Copy bytes; returns the lines among them."""
    lines = 0
    source.seek(begin)
    left = end - begin
    while left > 0 and (data := source.read(min(left, _CHUNK))):
        out.write(data)
        lines += data.count(b"\n")
        left -= len(data)
    return lines
