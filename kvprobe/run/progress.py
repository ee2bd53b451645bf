"""What a person sees on stderr while a run goes on. stdout is for the result alone.

Nobody has to look: a stderr that is closed, full or without a reader never disturbs the run.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Protocol, TextIO

from kvprobe.load.job import WorkerEvent
from kvprobe.report.sanitize import clean

LINE_EVERY_S = 10.0


class Progress(Protocol):
    """Told by the session what happens."""

    def say(self, text: str) -> None:
        """One line about a phase that begins."""

    def load(
        self, event: WorkerEvent, elapsed_s: float, planned: int | None, duration_s: float | None
    ) -> None:
        """The load's counts, about twice a second."""

    def close(self) -> None:
        """The load is over."""


class Silent:
    """`--quiet`."""

    def say(self, text: str) -> None:
        return None

    def load(
        self, event: WorkerEvent, elapsed_s: float, planned: int | None, duration_s: float | None
    ) -> None:
        return None

    def close(self) -> None:
        return None


def counts(event: WorkerEvent, elapsed_s: float, planned: int | None, duration_s: float | None) -> str:
    """`12.3 s / 60 s  sent 40/96  ok 38  failed 0  active 2`."""
    clock = f"{elapsed_s:5.1f} s" + (f" / {duration_s:g} s" if duration_s is not None else "")
    sent = f"{event.sent}" + (f"/{planned}" if planned is not None else "")
    return f"{clock}  sent {sent}  ok {event.ok}  failed {event.failed}  active {event.active}"


class Lines:
    """No terminal: plain lines, seldom."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream: TextIO | None = stream or sys.stderr
        self._last = 0.0

    def say(self, text: str) -> None:
        self._write(f"{clean(text)}\n")

    def load(
        self, event: WorkerEvent, elapsed_s: float, planned: int | None, duration_s: float | None
    ) -> None:
        now = time.monotonic()
        if now - self._last >= LINE_EVERY_S:
            self._last = now
            self.say(counts(event, elapsed_s, planned, duration_s))

    def close(self) -> None:
        return None

    def _write(self, text: str) -> None:
        """The first refusal is the last try."""
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError:
            self._stream = None


class Live(Lines):
    """On a terminal: one line that is rewritten in place."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._shown = 0

    def say(self, text: str) -> None:
        self.close()
        super().say(text)

    def load(
        self, event: WorkerEvent, elapsed_s: float, planned: int | None, duration_s: float | None
    ) -> None:
        # One column less than there are: a full line would wrap, and \r not come back to its start.
        room = max(1, _columns(self._stream) - 1)
        text = counts(event, elapsed_s, planned, duration_s)[:room]
        self._write("\r" + text + " " * min(max(0, self._shown - len(text)), room - len(text)))
        self._shown = len(text)

    def close(self) -> None:
        if self._shown:
            self._write("\r" + " " * self._shown + "\r")
            self._shown = 0


def _columns(stream: TextIO | None) -> int:
    try:
        found = os.get_terminal_size(stream.fileno()).columns if stream is not None else 0
    except (OSError, ValueError):
        found = 0
    return found or 80  # some terminals do not know their size


def choose(*, quiet: bool) -> Progress:
    """By what stderr is."""
    if quiet:
        return Silent()
    live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    return Live() if live else Lines()
