"""How far the reading of logs is, on stderr, only on a terminal, and only when it takes a while."""

from __future__ import annotations

import os
import sys
import time

from kvprobe.report.sanitize import clean
from kvprobe.summary.units import percent, size

_SILENT_S = 1.0
_EVERY_S = 0.2
_NAME_CHARS = 40


class LogProgress:
    """One line, redrawn in place. `live=False` says nothing."""

    def __init__(self, *, live: bool) -> None:
        self._live = live
        self._begin = self._last = time.monotonic()
        self._shown = 0

    def told(self, name: str, done_bytes: int, size_bytes: int | None) -> None:
        """Called for each block that was read."""
        now = time.monotonic()
        if not self._live or now - self._begin < _SILENT_S or now - self._last < _EVERY_S:
            return
        self._last = now
        # Unpacked bytes may exceed the size of the file: a share is shown only where it can be one.
        part = f" ({percent(done_bytes / size_bytes)})" if size_bytes and done_bytes <= size_bytes else ""
        speed = f", {size(done_bytes / max(now - self._begin, 1e-3))}/s"
        self._draw(f"reading {clean(os.path.basename(name)[-_NAME_CHARS:])}: {size(done_bytes)}{part}{speed}")

    def close(self) -> None:
        """Take the line away."""
        if self._shown:
            self._write("\r" + " " * self._shown + "\r")
            self._shown = 0

    def _draw(self, text: str) -> None:
        room = max(1, _columns() - 1)
        text = text[:room]
        self._write("\r" + text + " " * max(0, min(self._shown, room) - len(text)))
        self._shown = len(text)

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            self._live = False  # nobody looks: go on without


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def choose(*, quiet: bool) -> LogProgress:
    """By what stderr is."""
    return LogProgress(live=not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb")
