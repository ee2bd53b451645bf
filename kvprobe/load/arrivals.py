"""When requests are wanted: instants as a function of their number, in seconds since the start.

Nothing here sleeps or looks at a clock. Each tick is an absolute instant, so that a late request
never moves the ones after it, and the schedule is one for all workers: each takes every n-th tick.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import count, islice


class OpenSchedule:
    """An endless schedule of mean `rate_per_s`; the same seed gives the same instants."""

    def __init__(self, process: str, rate_per_s: float, seed: int = 0) -> None:
        if process not in ("constant", "poisson"):
            raise ValueError(f"unknown arrival process {process!r}")
        if not (rate_per_s > 0 and math.isfinite(rate_per_s)):
            raise ValueError("the rate must be a positive number")
        self.process = process
        self.rate_per_s = rate_per_s
        self.seed = seed

    def ticks(self) -> Iterator[float]:
        """All instants from the first, in order. Each call starts anew."""
        return self._constant() if self.process == "constant" else self._poisson()

    def share(self, worker_index: int, workers: int) -> Iterator[float]:
        """The instants of one of `workers` workers: every n-th of the common schedule.

        Tick number k goes to worker k mod n, so together they send exactly the schedule, and none
        sends a burst for the others.
        """
        if not 0 <= worker_index < workers:
            raise ValueError(f"worker {worker_index} of {workers}")
        return islice(self.ticks(), worker_index, None, workers)

    def offered(self, elapsed_s: float) -> int:
        """Ticks at or before `elapsed_s`."""
        if elapsed_s < 0:
            return 0
        if self.process == "constant":
            return math.floor(elapsed_s * self.rate_per_s + 1e-9) + 1
        return sum(1 for _ in _until(self.ticks(), elapsed_s))

    def _constant(self) -> Iterator[float]:
        """A product, not a running sum: no drift, however long."""
        return (number / self.rate_per_s for number in count())

    def _poisson(self) -> Iterator[float]:
        """Exponential gaps by inversion: -ln(1 - u) / rate, u uniform in [0, 1)."""
        rng = random.Random(f"poisson/{self.seed}")
        instant, carry = 0.0, 0.0
        while True:
            # Kahan's sum keeps the rounding of millions of additions below a nanosecond.
            gap = -math.log1p(-rng.random()) / self.rate_per_s - carry
            total = instant + gap
            carry = (total - instant) - gap
            instant = total
            yield instant


def _until(ticks: Iterator[float], end_s: float) -> Iterator[float]:
    for tick in ticks:
        if tick > end_s:
            return
        yield tick
