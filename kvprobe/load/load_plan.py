"""The arrival part of a workload, as one worker of several sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kvprobe.load.job import PlannedRequest


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One worker's share of the load.

    `ticks` makes the open loop's instants for this worker, each with its number in the common
    schedule, seconds after t0; None is a closed loop. `total` counts over all workers, a warm-up
    that goes by number included. `users` are this worker's, `all_users` those of all workers.
    """

    users: int
    drain_s: float
    ticks: Callable[[], Iterator[tuple[int, float]]] | None = None
    warm_ticks: int = 0
    """Ticks of the common schedule that lie in a warm-up by time and get warm-up texts."""
    measured_from_s: float | None = None
    """Open loop: when the common schedule's first measured request is wanted, seconds after t0."""
    think_time_s: float = 0.0
    ramp_s: float = 0.0
    total: int | None = None
    duration_s: float | None = None
    warmup_s: float = 0.0
    worker_index: int = 0
    workers: int = 1
    all_users: int = 0
    session_turns: Callable[[int], Sequence[int]] | None = None
    """Closed loop: the plan indices of the turns of session 0, 1, …; null when there are no sessions."""
    session_number: Callable[[int], int | None] | None = None
    """Open loop: the session that a plan index belongs to; null when there are no sessions."""

    def slot_of(self, own_number: int) -> int:
        """Where this worker's `own_number`-th claim stands among the claims of all workers.

        Slots are dealt like the users are: a worker with two thirds of the users has two thirds of
        the requests, so that none is still at it when the others have nothing left to do.
        """
        everyone = max(self.all_users, self.users)
        round_number, seat = divmod(own_number, self.users)
        return round_number * everyone + self.worker_index + seat * self.workers

    def index_of(self, tick_number: int) -> int:
        """The plan index that goes with a tick; below 0 in a warm-up by time."""
        if tick_number < self.warm_ticks:
            return -1 - tick_number
        return tick_number - self.warm_ticks

    def start_s(self, own_number: int) -> float:
        """When this worker's `own_number`-th user begins, seconds after t0."""
        everyone = max(self.all_users, self.users)
        return (self.worker_index + own_number * self.workers) * self.ramp_s / everyone


@dataclass(slots=True)
class Seat:
    """One user's place in the load: when it begins, and what is left of its session."""

    start_s: float = 0.0
    first: bool = True
    turns: deque[int] = field(default_factory=deque)


@dataclass(slots=True)
class Ticket:
    """A claim on one request."""

    planned: PlannedRequest
    intended_ns: int
