"""How far a simulation is, on stderr, only on a terminal, and only when it takes a while."""

from __future__ import annotations

import os
import sys
import time

from kvprobe.report.sanitize import clean

_SILENT_S = 2.0
_EVERY_S = 0.2
_COLUMNS = 79


class ReplayProgress:
    """One line, redrawn in place. `live` False says nothing; what must be said once is said anyway."""

    def __init__(self, *, live: bool, quiet: bool) -> None:
        self._live, self._quiet = live, quiet
        self._begin = self._last = time.monotonic()
        self._shown = 0
        self._label = ""

    def told(self, rows: int, at_s: float) -> None:
        """Called for each chunk that was served."""
        now = time.monotonic()
        if not self._live or now - self._begin < _SILENT_S or now - self._last < _EVERY_S:
            return
        self._last = now
        self._draw(f"replaying{self._label}: {rows:,} requests, second {at_s:,.0f} of the trace")

    def says(self, words: str, *, passing: bool = True) -> None:
        """What is being done now (`passing`), or a note that stays."""
        if passing:
            self._label = f" {clean(words)}" if words else ""
        elif not self._quiet:
            self.close()
            self._write(f"{clean(words)}\n")

    def close(self) -> None:
        """Take the line away."""
        if self._shown:
            self._write("\r" + " " * self._shown + "\r")
            self._shown = 0

    def _draw(self, text: str) -> None:
        text = text[:_COLUMNS]
        self._write("\r" + text + " " * max(0, self._shown - len(text)))
        self._shown = len(text)

    def _write(self, text: str) -> None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except OSError:
            self._live = False  # nobody looks: go on without


def choose(*, quiet: bool) -> ReplayProgress:
    """By what stderr is."""
    live = not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return ReplayProgress(live=live, quiet=quiet)
