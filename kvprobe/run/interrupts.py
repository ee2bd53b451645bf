"""Ctrl-C and SIGTERM: once means drain and keep, twice means stop now."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

from kvprobe.errors import Exit, Interrupted

__all__ = ["Interrupted", "Interrupts"]

_EXITS = {signal.SIGINT: Exit.SIGINT, signal.SIGTERM: Exit.SIGTERM}


class Interrupts:
    """Counts signals while it is active, and raises `Interrupted` where that is the right answer.

    It starts raising at the first signal, and raises once only: what is undone afterwards is not
    disturbed by a second Ctrl-C.
    """

    def __init__(self) -> None:
        self.count = 0
        self.exit_code: Exit | None = None
        """Of the first signal."""
        self._raise_at: int | None = 1
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupts:
        for number in _EXITS:
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def defer(self) -> None:
        """From here on signals are only counted: whoever runs the loop looks at `count`."""
        self._raise_at = None

    def raise_at_second(self) -> None:
        """From here on one signal in all is only counted, the next one raises."""
        self._raise_at = max(2, self.count + 1)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.exit_code is None:
            self.exit_code = _EXITS[signal.Signals(number)]
        if self._raise_at is not None and self.count >= self._raise_at:
            self._raise_at = None
            raise Interrupted(self.exit_code)
