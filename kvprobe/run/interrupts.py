"""Ctrl-C and SIGTERM: once means drain and keep, twice means stop now."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType

from kvprobe.errors import Exit

_EXITS = {signal.SIGINT: Exit.SIGINT, signal.SIGTERM: Exit.SIGTERM}


class Interrupted(Exception):
    """A signal came while there was nothing to drain."""

    def __init__(self, exit_code: Exit) -> None:
        super().__init__(exit_code.name)
        self.exit_code = exit_code


class Interrupts:
    """Counts signals while it is active. Outside `deferred` phases a signal raises at once."""

    def __init__(self) -> None:
        self.count = 0
        self.exit_code: Exit | None = None
        """Of the first signal."""
        self._deferred = False
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
        self._deferred = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.exit_code is None:
            self.exit_code = _EXITS[signal.Signals(number)]
        if not self._deferred:
            raise Interrupted(self.exit_code)
