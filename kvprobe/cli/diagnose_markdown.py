"""`kvprobe diagnose --md FILE`: where the Markdown goes; that it can be is known before a log is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from kvprobe.errors import Problem, StorageError, UsageError

if TYPE_CHECKING:
    from kvprobe.diagnose.model import Diagnosis

STDOUT: Final = "-"


def check(target: str | None, inputs: Sequence[str | None], *, json: bool) -> None:
    """Raises `UsageError` where writing would destroy an input or mix two documents, `StorageError` where the
    file cannot be written."""
    if target is None:
        return
    if target == STDOUT:
        if json:
            message = "--json and `--md -` both want stdout"
            raise UsageError(Problem("conflict", message, "give --md a file, or leave out --json"))
        return
    for path in inputs:
        if path is not None and _same(path, target):
            message = f"`{target}` is read here: --md would overwrite it"
            raise UsageError(
                Problem("conflict", message, "give --md another name, such as ticket.md", target)
            )
    folder = os.path.dirname(target) or "."
    if os.path.isdir(target) or not target:
        raise _refused(target, "it is a directory" if target else "the name is empty")
    if not os.path.isdir(folder):
        raise _refused(target, f"there is no directory {folder}")
    if not os.access(target if os.path.exists(target) else folder, os.W_OK):
        raise _refused(target, "Permission denied")


def write(target: str, diagnosis: Diagnosis) -> None:
    """Write the diagnosis; raises `StorageError`."""
    from kvprobe.report.diagnosis_markdown import markdown_of

    text = markdown_of(diagnosis)
    if target == STDOUT:
        import sys

        from kvprobe.cli.streams import emit

        encoding = sys.stdout.encoding or "utf-8"
        emit(text.encode(encoding, "backslashreplace").decode(encoding))  # LANG=C knows ASCII only
        return
    try:
        with open(target, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except (OSError, ValueError) as error:
        raise _refused(target, getattr(error, "strerror", None) or str(error)) from error


def _same(path: str, target: str) -> bool:
    try:
        return os.path.samefile(path, target)
    except (OSError, ValueError):  # one of them does not exist (or is a URL)
        return False


def _refused(target: str, why: str) -> StorageError:
    fix = "give --md a file in a directory that you may write to, or `-` for stdout"
    return StorageError(Problem("storage_failed", f"cannot write `{target}`: {why}", fix, target))
