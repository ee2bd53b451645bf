"""The clock of `kvprobe watch`: looks at all targets, side by side, once an interval.

A target that hangs does not hold the others up: its last look is still under way when the next tick comes,
and it is shown as it was last seen until that look ends (after the scrape's own time-out at the latest).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import UTC, datetime

from kvprobe.diagnose.rules.pool import IDLE, RED_LINE
from kvprobe.observe.metrics import Scrape
from kvprobe.watch.gpus import Gpus
from kvprobe.watch.model import WatchDocument
from kvprobe.watch.target import WatchedTarget
from kvprobe.watch.together import together

_PATIENCE = 0.8
"""Share of an interval that a tick waits for its looks."""
_LONGEST_LOOK_S = 10.0


class Watch:
    """Several targets and the GPUs beside them."""

    def __init__(self, targets: Sequence[WatchedTarget], gpus: Gpus, interval_s: float) -> None:
        self.targets = list(targets)
        self._gpus = gpus
        self._interval_s = interval_s
        self._pool = ThreadPoolExecutor(len(self.targets), thread_name_prefix="kvprobe-watch")
        self._looks: dict[int, Future[Scrape]] = {}

    def first(self) -> WatchDocument:
        """One look at everything, awaited to its end."""
        self._look(_LONGEST_LOOK_S)
        return self.document()

    def ticks(self, sleep: Callable[[float], None] = time.sleep) -> Iterator[WatchDocument]:
        """A document each interval, on a grid that does not drift; a tick that comes too late is left out."""
        begin, tick = time.monotonic(), 0
        while True:
            tick = max(tick + 1, int((time.monotonic() - begin) / self._interval_s))
            sleep(max(0.0, begin + tick * self._interval_s - time.monotonic()))
            self._look(_PATIENCE * self._interval_s)
            yield self.document()

    def document(self) -> WatchDocument:
        """What is known now."""
        views = [target.view() for target in self.targets]
        return WatchDocument(
            t_utc=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            interval_s=self._interval_s,
            red_line_ratio=RED_LINE,
            idle_line_ratio=IDLE,
            targets=views,
            together=together(views),
            gpus=self._gpus.read(),
            gpu_note=self._gpus.note,
        )

    def close(self) -> None:
        """End the looks that wait; those under way end by their own time-outs."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for target in self.targets:
            target.close()
        self._gpus.close()

    def _look(self, patience_s: float) -> None:
        for index, target in enumerate(self.targets):
            if index not in self._looks:
                self._looks[index] = self._pool.submit(target.look)
        wait(self._looks.values(), timeout=patience_s)
        for index in [i for i, look in self._looks.items() if look.done()]:
            self.targets[index].take(self._looks.pop(index).result())
