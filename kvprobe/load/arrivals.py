"""When requests are wanted: instants as a function of their number, in seconds since the start.

Nothing here sleeps or looks at a clock. Each tick is an absolute instant, so that a late request
never moves the ones after it, and the schedule is one for all workers: each takes every n-th tick.

A schedule is two things. A *process* gives the ticks of a load of one request per unit: equal gaps,
exponential ones, or gamma ones. A *course* says how much of it is over after t seconds: the integral
of the rate. Tick number k comes when the course reaches the process's k-th instant, so that every
process goes with every course, and a rate that changes never loses or repeats a tick.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Protocol


class Schedule(Protocol):
    """What the conductor needs of any kind of arrival."""

    def ticks(self) -> Iterator[float]:
        """All instants from the first, in order. Each call starts anew."""

    def offered(self, elapsed_s: float) -> int:
        """Ticks at or before `elapsed_s`."""

    def share(self, worker_index: int, workers: int) -> Iterator[float]:
        """The instants of one of `workers` workers."""


@dataclass(frozen=True, slots=True)
class Segment:
    """From `start_s` on the rate goes evenly from `rate` to `end_rate` within `length_s`."""

    start_s: float
    start_units: float
    rate: float
    end_rate: float
    length_s: float

    def units_at(self, t_s: float) -> float:
        """The course at `t_s`: the area under a rate that is a straight line."""
        t = min(t_s - self.start_s, self.length_s)
        slope = (self.end_rate - self.rate) / self.length_s if math.isfinite(self.length_s) else 0.0
        return self.start_units + self.rate * t + slope * t * t / 2

    def when(self, units: float) -> float:
        """The instant at which the course is at `units`; the inverse of `units_at`."""
        wanted = units - self.start_units
        if not math.isfinite(self.length_s) or self.end_rate == self.rate:
            return self.start_s + wanted / self.rate
        slope = (self.end_rate - self.rate) / self.length_s
        root = math.sqrt(max(self.rate * self.rate + 2 * slope * wanted, 0.0))
        # This form of the quadratic's solution loses no digits, whichever way the rate goes.
        return (
            self.start_s + min(2 * wanted / (self.rate + root), self.length_s) if wanted > 0 else self.start_s
        )


class Course:
    """The integral of a rate that is made of straight pieces; the last may have no end."""

    def __init__(self, pieces: Iterable[tuple[float, float, float]]) -> None:
        """`pieces` are (rate at the start, rate at the end, seconds). Raises ValueError."""
        self._segments: list[Segment] = []
        start_s = units = 0.0
        for rate, end_rate, length_s in pieces:
            if not (rate >= 0 and end_rate >= 0 and math.isfinite(rate + end_rate) and length_s > 0):
                raise ValueError("the rate must be a positive number")
            self._segments.append(Segment(start_s, units, rate, end_rate, length_s))
            if math.isfinite(length_s):
                units += (rate + end_rate) / 2 * length_s
            elif rate > 0:
                units = math.inf
            start_s += length_s
        if units <= 0:
            raise ValueError("the rate must be a positive number")
        self.total_units = units
        """Infinite when the last piece has no end."""
        self.end_s = start_s
        self._starts_s = [segment.start_s for segment in self._segments]
        self._starts_units = [segment.start_units for segment in self._segments]

    def units_at(self, t_s: float) -> float:
        """How many units are over at `t_s`."""
        return self._segments[max(bisect_right(self._starts_s, t_s) - 1, 0)].units_at(t_s) if t_s > 0 else 0.0

    def when(self, units: float) -> float:
        """The instant at which `units` are over; infinite when they never are."""
        if units >= self.total_units:
            return math.inf
        # The last piece that begins at or below `units` and has a rate: one of rate 0 covers none.
        place = bisect_right(self._starts_units, units) - 1
        return self._segments[place].when(units)


class OpenSchedule:
    """Ticks of a process along a course; the same seed gives the same instants.

    `burstiness` is the coefficient of variation of the gaps (of `gamma` alone): the standard
    deviation over the mean, at a constant rate. The gamma distribution's shape is 1/burstiness².
    """

    def __init__(
        self, process: str, rate: float | Course, seed: int = 0, burstiness: float | None = None
    ) -> None:
        if process not in ("constant", "poisson", "gamma"):
            raise ValueError(f"unknown arrival process {process!r}")
        if process == "gamma" and not (burstiness is not None and 0 < burstiness < math.inf):
            raise ValueError("gamma arrivals need a burstiness above 0")
        self.process = process
        self.course = rate if isinstance(rate, Course) else Course([(rate, rate, math.inf)])
        self.seed = seed
        self.burstiness = burstiness

    def ticks(self) -> Iterator[float]:
        """All instants from the first, in order; ends with the course. Each call starts anew."""
        when = self.course.when
        for units in self._units():
            instant = when(units)
            if instant == math.inf:
                return
            yield instant

    def share(self, worker_index: int, workers: int) -> Iterator[float]:
        """The instants of one of `workers` workers: every n-th of the common schedule.

        Tick number k goes to worker k mod n, so together they send exactly the schedule, and none
        sends a burst for the others.
        """
        return share_of(self.ticks(), worker_index, workers)

    def offered(self, elapsed_s: float) -> int:
        """Ticks at or before `elapsed_s`."""
        if elapsed_s < 0:
            return 0
        if self.process == "constant":
            return self._constant_offered(elapsed_s)
        return count_until(self.ticks(), elapsed_s)

    def _constant_offered(self, elapsed_s: float) -> int:
        """From the course, put right by a tick where a float or a pause in the rate says so."""
        number, when = math.floor(self.course.units_at(elapsed_s)) + 1, self.course.when
        while number > 0 and when(number - 1) > elapsed_s:
            number -= 1
        while when(number) <= elapsed_s:
            number += 1
        return number

    def _units(self) -> Iterator[float]:
        """The process at a rate of one: whole numbers, or a running sum of random gaps of mean 1."""
        if self.process == "constant":
            return (float(number) for number in count())
        return self._running_sum()

    def _running_sum(self) -> Iterator[float]:
        rng = random.Random(f"{self.process}/{self.seed}")
        total, carry = 0.0, 0.0
        while True:
            # Kahan's sum keeps the rounding of millions of additions below a nanosecond.
            gap = self._gap(rng) - carry
            summed = total + gap
            carry = (summed - total) - gap
            total = summed
            yield total

    def _gap(self, rng: random.Random) -> float:
        """Exponential by inversion, -ln(1 - u) with u uniform in [0, 1); gamma of mean 1."""
        if self.process == "poisson":
            return -math.log1p(-rng.random())
        assert self.burstiness is not None
        shape = 1 / self.burstiness**2
        return rng.gammavariate(shape, 1 / shape)


class ListedSchedule:
    """Instants that something else knows, such as a trace; `make` gives them anew at each call."""

    def __init__(self, make: Callable[[], Iterator[float]], scale: float = 1.0) -> None:
        if not (scale > 0 and math.isfinite(scale)):
            raise ValueError("the scale of time must be a positive number")
        self._make = make
        self._scale = scale

    def ticks(self) -> Iterator[float]:
        """All instants from the first, in order; an instant before the one before it is moved to it."""
        latest = 0.0
        for instant in self._make():
            latest = max(latest, instant * self._scale)
            yield latest

    def share(self, worker_index: int, workers: int) -> Iterator[float]:
        """Every n-th instant, as `OpenSchedule.share`."""
        return share_of(self.ticks(), worker_index, workers)

    def offered(self, elapsed_s: float) -> int:
        """Ticks at or before `elapsed_s`."""
        return count_until(self.ticks(), elapsed_s)


def share_of(ticks: Iterator[float], worker_index: int, workers: int) -> Iterator[float]:
    """Every n-th of `ticks`. Raises ValueError for a worker that is none."""
    if not 0 <= worker_index < workers:
        raise ValueError(f"worker {worker_index} of {workers}")
    return islice(ticks, worker_index, None, workers)


def count_until(ticks: Iterator[float], end_s: float, *, inclusive: bool = True) -> int:
    """How many come before `end_s`, or at it."""
    number = 0
    for tick in ticks:
        if tick > end_s or (tick == end_s and not inclusive):
            break
        number += 1
    return number


def ramp_course(from_rate: float, to_rate: float, over_s: float) -> Course:
    """From one rate evenly to another, which then stays."""
    return Course([(from_rate, to_rate, over_s), (to_rate, to_rate, math.inf)])


def stages_course(stages: Iterable[tuple[float, float]]) -> Course:
    """(rate, seconds) one after the other, and then the end."""
    return Course([(rate, rate, seconds) for rate, seconds in stages])


def start_instants(users: int, ramp_s: float) -> list[float]:
    """When each of a closed loop's users begins: all at once, or evenly over the ramp."""
    return [number * ramp_s / users for number in range(users)]
