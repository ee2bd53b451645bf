"""The periodic line in the log that says how the server is doing."""

from __future__ import annotations

import logging
import time

from reference_server.state import EngineState

log = logging.getLogger(__name__)

MIB = 1024**2
IDLE_LINES = 2
"""After the last line with work in it: they show what is still held when nothing runs."""


class StatsLine:
    """Sums since the last line."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._failures_seen = self._failures_total = 0
        self._idle_lines = 0
        self._reset()

    def _reset(self) -> None:
        self._computed = self._generated = self._queried = self._hit = 0
        self._preempted = self._swapped = 0
        self._failures_seen = self._failures_total
        self._busy = False

    def computed(self, tokens: int) -> None:
        self._computed += tokens
        self._busy = True
        self._idle_lines = IDLE_LINES

    def generated(self, tokens: int) -> None:
        self._generated += tokens

    def queried(self, tokens: int, hit_tokens: int) -> None:
        self._queried += tokens
        self._hit += hit_tokens

    def preempted(self, kept_blocks: int) -> None:
        """One request gave its memory up; that many of its blocks went to host memory."""
        self._preempted += 1
        self._swapped += kept_blocks > 0

    def refused(self, failures_total: int) -> None:
        """How many attempts to get memory failed since the start."""
        self._failures_total = failures_total

    def due(self, interval_s: float) -> bool:
        """Whether something happened and the last line is old enough. Long silence is not logged."""
        if not self._busy and not self._idle_lines:
            self._since = max(self._since, time.monotonic() - interval_s)
            return False
        return time.monotonic() - self._since >= interval_s

    def write(self, state: EngineState) -> None:
        now = time.monotonic()
        seconds = now - self._since
        hit = f"{100 * self._hit / self._queried:.1f}%" if self._queried else "no queries"
        usage = state.usage
        log.info(
            "last %.1f s: computed %.1f tokens/s, generated %.1f tokens/s; running %d, waiting %d; "
            "KV usage %.1f%% (%d used + %d cached + %d free = %d blocks); prefix hits %s of queried tokens; "
            "preempted %d, swapped out %d; empty %.1f MiB tail + %.1f MiB reserved; "
            "largest free region %.1f MiB; failed allocations %d",
            seconds,
            self._computed / seconds,
            self._generated / seconds,
            state.running,
            state.waiting,
            100 * usage.ratio,
            usage.blocks_used,
            usage.blocks_cached,
            usage.blocks_free,
            usage.blocks_total,
            hit,
            self._preempted,
            self._swapped,
            state.slot_bytes(usage.tail_slots) / MIB,
            state.slot_bytes(usage.reserved_slots) / MIB,
            state.largest_free_bytes / MIB,
            self._failures_total - self._failures_seen,
        )
        self._since = now
        self._idle_lines -= not self._busy
        self._reset()
