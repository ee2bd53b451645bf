"""stdin, stdout and stderr as they really are: closed, full, or with nobody at the other end."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from kvprobe.errors import Problem, StorageError


def occupy_missing() -> set[int]:
    """Put /dev/null on those of the descriptors 0, 1 and 2 that are closed, and say which.

    A closed one would be given to the next file or socket that is opened: whatever is printed
    would land in it, and child processes would inherit it as their own.
    """
    missing = set()
    for number in (0, 1, 2):  # in this order: open() takes the lowest free number
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            missing.add(number)
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
    return missing


def emit(text: str) -> None:
    """Write a result to stdout. BrokenPipeError when nobody reads it, StorageError when the disk
    behind it refuses."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        silence_stdout()
        raise
    except OSError as error:
        silence_stdout()
        message = f"cannot write the result to stdout: {os.strerror(error.errno or 0)}"
        raise StorageError(Problem("stdout", message, "free space where stdout goes")) from error


@contextlib.contextmanager
def tolerant() -> Iterator[None]:
    """For messages: when they cannot be written, the exit code alone has to say it."""
    try:
        yield
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, StorageError):
        _silence(2)
        silence_stdout()


def silence_stdout() -> None:
    """Keep the interpreter from complaining at exit about what it could not write."""
    _silence(1)


def _silence(number: int) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, number)
    os.close(null)
