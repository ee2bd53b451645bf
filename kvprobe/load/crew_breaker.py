"""When several workers together give up on a target: its limits hold for all, not for each.

Each worker tells how many of its requests are over, twice a second, and at once when its own failures
in a row are its share of the limit (`Conductor.alarm`). From these counts the failures since any
worker's latest success are known, at worst too few of them: a success and a failure that come in one
word count as the success last. So a target that answers somebody is never given up for a row of failures.
"""

from __future__ import annotations

from collections import deque

from kvprobe.load.job import BreakerSpec, WorkerEvent


class CrewBreaker:
    """Fed with each worker's word and the one before it."""

    def __init__(self, spec: BreakerSpec) -> None:
        self._spec = spec
        self._in_a_row = 0
        self._latest: deque[tuple[int, int]] = deque()  # (over, failed) between two words
        self._over = self._failed = 0
        self._said = ""

    def note(self, before: WorkerEvent, event: WorkerEvent) -> str | None:
        """Why to give up, or null."""
        ok, failed = event.ok - before.ok, event.failed - before.failed
        if ok < 0 or failed < 0 or not ok + failed:
            return None
        self._said = event.detail or self._said
        self._in_a_row = 0 if ok else self._in_a_row + failed
        self._latest.append((ok + failed, failed))
        self._over, self._failed = self._over + ok + failed, self._failed + failed
        while self._latest and self._over - self._latest[0][0] >= self._spec.window:
            over, lost = self._latest.popleft()
            self._over, self._failed = self._over - over, self._failed - lost
        return self._judged() if failed else None

    def _judged(self) -> str | None:
        last = f"; the last was {self._said}" if self._said else ""
        if self._in_a_row >= self._spec.consecutive_failures:
            return f"{self._in_a_row} requests in a row failed in all workers together{last}"
        share = self._failed / self._over
        if self._over >= self._spec.window and share >= self._spec.error_rate:
            return f"{share:.0%} of the latest {self._over} requests of all workers failed{last}"
        return None


def own_share(consecutive_failures: int, workers: int) -> int:
    """Failures in a row at which one of so many workers speaks up at once."""
    return -(-consecutive_failures // max(workers, 1))
