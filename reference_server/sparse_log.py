"""Log lines that could come by the thousand, written at most once a second."""

from __future__ import annotations

import logging
import time


class SparseLog:
    """Counts what it leaves out. For one thread."""

    def __init__(self, log: logging.Logger, *, interval_s: float = 1.0) -> None:
        self._log = log
        self._interval_s = interval_s
        self._last = float("-inf")
        self._count = 0

    def due(self) -> int:
        """Count one event; how many there were since the last line, 0 when it is too early for another."""
        self._count += 1
        now = time.monotonic()
        if now - self._last < self._interval_s:
            return 0
        self._last = now
        count, self._count = self._count, 0
        return count

    def warning(self, message: str, *values: object) -> None:
        """`message` ends with a %d for the count of events since the last line."""
        count = self.due()
        if count:
            self._log.warning(message, *values, count)
