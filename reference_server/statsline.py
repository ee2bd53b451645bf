"""The periodic line in the log that says how the server is doing."""

from __future__ import annotations

import logging
import time

from reference_server.metrics import EngineState

log = logging.getLogger(__name__)


class StatsLine:
    """Sums since the last line."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._reset()

    def _reset(self) -> None:
        self._computed = self._generated = self._queried = self._hit = 0
        self._busy = False

    def computed(self, tokens: int) -> None:
        self._computed += tokens
        self._busy = True

    def generated(self, tokens: int) -> None:
        self._generated += tokens

    def queried(self, tokens: int, hit_tokens: int) -> None:
        self._queried += tokens
        self._hit += hit_tokens

    def due(self, interval_s: float) -> bool:
        """Whether something happened and the last line is old enough. Silence is not logged."""
        if not self._busy:
            self._since = max(self._since, time.monotonic() - interval_s)
            return False
        return time.monotonic() - self._since >= interval_s

    def write(self, state: EngineState) -> None:
        now = time.monotonic()
        seconds = now - self._since
        hit = f"{100 * self._hit / self._queried:.1f}%" if self._queried else "no queries"
        log.info(
            "last %.1f s: computed %.1f tokens/s, generated %.1f tokens/s; running %d, waiting %d; "
            "KV usage %.1f%% (%d used + %d cached + %d free = %d blocks); prefix hits %s of queried tokens",
            seconds,
            self._computed / seconds,
            self._generated / seconds,
            state.running,
            state.waiting,
            100 * state.usage.ratio,
            state.usage.blocks_used,
            state.usage.blocks_cached,
            state.usage.blocks_free,
            state.usage.blocks_total,
            hit,
        )
        self._since = now
        self._reset()
