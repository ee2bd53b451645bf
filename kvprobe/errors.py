"""Problems that a user can mend, and the exit codes of the command line.

Everything that goes wrong by the user's input, the target or the disk is raised as a
`KvprobeError` that carries one or more `Problem`s; `kvprobe.cli.main` prints them (or, with
`--json`, emits a `kvprobe.error/1` document) and leaves with `exit_code`. Anything else that
escapes is a defect of ours and leaves with `Exit.INTERNAL`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command (a contract: scripts depend on them)."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    TARGET = 3
    INVALID = 4
    ABORTED = 5
    STORAGE = 6
    CHECK_FAILED = 99
    SIGINT = 130
    SIGTERM = 143
    STDOUT_CLOSED = 141


_PRECEDENCE = (
    Exit.SIGINT,
    Exit.SIGTERM,
    Exit.STORAGE,
    Exit.INTERNAL,
    Exit.USAGE,
    Exit.TARGET,
    Exit.ABORTED,
    # What a reader has missed who closed our stdout: the verdict that was on it, but no failure.
    Exit.STDOUT_CLOSED,
    Exit.INVALID,
    Exit.CHECK_FAILED,
    Exit.OK,
)


def gravest(*codes: Exit) -> Exit:
    """The code that wins when several things are true of one command."""
    return min(codes, key=_PRECEDENCE.index, default=Exit.OK)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, where, and what to do about it.

    `code` is a stable short id such as `unknown_key`; `message` says what is wrong in one
    sentence; `fix` says what to type or change. `line` and `column` count from 1.
    `source_line` is the text of the offending line, for the caret.
    """

    code: str
    message: str
    fix: str | None = None
    path: str | None = None
    line: int | None = None
    column: int | None = None
    source_line: str | None = None


class KvprobeError(Exception):
    """A failure with a fix. `exit_code` decides how the process leaves."""

    exit_code: Exit = Exit.INTERNAL

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(p.message for p in problems))
        self.problems = problems


class UsageError(KvprobeError):
    """Bad command line or configuration."""

    exit_code = Exit.USAGE


class TargetError(KvprobeError):
    """Target unreachable, refused by the guard, or authentication or model refused."""

    exit_code = Exit.TARGET


class StorageError(KvprobeError):
    """The disk is full, read-only or otherwise refuses."""

    exit_code = Exit.STORAGE


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM where there is nothing to drain. No `except Exception` swallows it."""

    def __init__(self, exit_code: Exit) -> None:
        super().__init__(exit_code.name)
        self.exit_code = exit_code
