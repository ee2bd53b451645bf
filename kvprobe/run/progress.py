"""What a person sees on stderr while a run goes on. stdout is for the result alone."""

from __future__ import annotations

import sys
import time
from typing import Protocol, TextIO

from kvprobe.load.job import WorkerEvent

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
        self._stream = stream or sys.stderr
        self._last = 0.0

    def say(self, text: str) -> None:
        self._stream.write(f"{text}\n")
        self._stream.flush()

    def load(
        self, event: WorkerEvent, elapsed_s: float, planned: int | None, duration_s: float | None
    ) -> None:
        now = time.monotonic()
        if now - self._last >= LINE_EVERY_S:
            self._last = now
            self.say(counts(event, elapsed_s, planned, duration_s))

    def close(self) -> None:
        return None


class Live(Lines):
    """On a terminal: one line that is rewritten in place."""

    def load(
        self, event: WorkerEvent, elapsed_s: float, planned: int | None, duration_s: float | None
    ) -> None:
        self._stream.write(f"\r{counts(event, elapsed_s, planned, duration_s):<78}")
        self._stream.flush()
        self._last = 1.0

    def close(self) -> None:
        if self._last:
            self._stream.write("\r" + " " * 78 + "\r")
            self._stream.flush()


def choose(*, quiet: bool) -> Progress:
    """By what stderr is."""
    if quiet:
        return Silent()
    return Live() if sys.stderr.isatty() else Lines()
