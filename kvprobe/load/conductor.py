"""Who sends what, when, and when it is over. Users ask `claim` for their next request.

Closed loop: a user that is free sends at once (after its think time). Open loop: one schedule in
absolute time, whose ticks the users take in order; a tick that finds no free user is sent late and
keeps its instant as `intended_ns`, and a tick that was never sent still counts as intended. Warm-up
requests come first and hand over without a pause: the next request is simply a measured one.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import gevent
from gevent.event import Event

from kvprobe.evidence.records import RequestRecord
from kvprobe.load.job import BreakerSpec, PlannedRequest

NS = 1_000_000_000
QUICK_DRAIN_S = 1.0
"""After a breaker or a refused key there is nothing to wait for but answers already on their way."""
_RANK = ("planned", "drained", "breaker", "auth", "stopped", "storage", "error")


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The arrival part of a workload, as one of `workers` workers.

    `ticks` makes the open loop's instants for this worker, seconds after t0; None is a closed loop.
    `total` counts over all workers, a warm-up that goes by number included.
    """

    users: int
    drain_s: float
    ticks: Callable[[], Iterator[float]] | None = None
    think_time_s: float = 0.0
    total: int | None = None
    duration_s: float | None = None
    warmup_s: float = 0.0
    worker_index: int = 0
    workers: int = 1


@dataclass(slots=True)
class Ticket:
    """A claim on one request."""

    planned: PlannedRequest
    intended_ns: int


class Conductor:
    """State of the load in one worker. Greenlets of one thread share it; nothing here locks."""

    def __init__(
        self, plan: LoadPlan, breaker: BreakerSpec, request_of: Callable[[int], PlannedRequest]
    ) -> None:
        self.plan = plan
        self.sent = self.ok = self.failed = 0
        self.reason: str | None = None
        self.detail: str | None = None
        self.closing = Event()
        self._request_of = request_of
        self._breaker = breaker
        self._consecutive = 0
        self._window: deque[bool] = deque(maxlen=max(breaker.window, 1))
        self._go = Event()
        self._t0_ns = 0
        self._claimed = 0
        self._warmed = 0  # warm-up requests of a warm-up that goes by time; not in _claimed
        self._waiting = 0  # claimed, but its instant has not come
        self._exhausted = False
        self._measuring = False
        self._drain_until_ns: int | None = None
        self._ticks = plan.ticks() if plan.ticks else None
        self._count_ticks = plan.ticks() if plan.ticks else None
        self._next_counted_s = next(self._count_ticks, None) if self._count_ticks else None
        self._counted = 0
        self._issue_end_s = math.inf  # when issuing ended, seconds after t0
        self._planned_end_s = math.inf  # when the duration is over, seconds after t0

    @property
    def active(self) -> int:
        """Requests under way."""
        return self.sent - self.ok - self.failed

    def start(self, t0_ns: int) -> None:
        """Let the users go at `t0_ns`."""
        self._t0_ns = t0_ns
        self._go.set()

    def intended(self) -> int:
        """Requests that the schedule wanted so far; in a closed loop those that were sent."""
        if self._count_ticks is None or not self._go.is_set():
            return self.sent
        until_s = min((time.monotonic_ns() - self._t0_ns) / NS, self._issue_end_s)
        total, end_s = self.plan.total, self._planned_end_s
        while (tick_s := self._next_counted_s) is not None and tick_s <= until_s and tick_s < end_s:
            if total is not None and self._index(self._counted - self._warmed) >= total:
                break
            self._counted += 1
            self._next_counted_s = next(self._count_ticks, None)
        return max(self._counted, self.sent)

    def claim(self, *, first: bool) -> Ticket | None:
        """The next request of a user that is free, at the instant when it is to be sent.

        None when no more are to be sent. `first` is a user's first claim: it has not to think, and
        in a closed loop its request is made ready before the start, where all users begin at once.
        """
        self._go.wait()
        if not first and self.plan.think_time_s:
            self.closing.wait(self.plan.think_time_s)
        if self.closing.is_set() or self._exhausted:
            return None
        if self._ticks is not None:
            ticket = self._claim_tick()
        else:
            ticket = self._claim_at(max(time.monotonic_ns(), self._t0_ns))
        if ticket is not None:
            self.sent += 1
        self._drain_when_exhausted()
        return ticket

    def finished(self, record: RequestRecord) -> None:
        """Count a request that has ended; trips the breaker, stops at the first refused key."""
        if record.failure is None:
            self.ok += 1
        else:
            self.failed += 1
        if record.failure == "cancelled_at_end":
            return
        if record.failure == "auth":
            self.end("auth", record.failure_detail, QUICK_DRAIN_S)
        self._watch(record)

    def end(self, reason: str, detail: str | None = None, within_s: float | None = None) -> None:
        """Issue no more; wait for what is under way at most `within_s` (default: the plan's drain).

        May be called again: the earlier deadline and the graver reason hold.
        """
        now_ns = time.monotonic_ns()
        if self.reason is None or _RANK.index(reason) > _RANK.index(self.reason):
            self.reason, self.detail = reason, detail
        until_ns = now_ns + int((self.plan.drain_s if within_s is None else within_s) * NS)
        self._drain_until_ns = min(until_ns, self._drain_until_ns or until_ns)
        self._issue_end_s = min(self._issue_end_s, (now_ns - self._t0_ns) / NS)
        self._go.set()
        self.closing.set()

    def await_end(self) -> None:
        """Return when nothing is under way any more or the drain's time is up."""
        self.closing.wait()
        while self.active > 0 and time.monotonic_ns() < (self._drain_until_ns or 0):
            gevent.sleep(0.02)

    def _index(self, k: int) -> int:
        return k * self.plan.workers + self.plan.worker_index

    def _next_index(self, intended_ns: int) -> int | None:
        """Number of the next request; below 0 in a warm-up that goes by time. None: no more."""
        if intended_ns < self._t0_ns + int(self.plan.warmup_s * NS):
            self._warmed += 1
            return -1 - self._index(self._warmed - 1)
        index = self._index(self._claimed)
        if self.plan.total is not None and index >= self.plan.total:
            self._exhausted = True
            return None
        self._claimed += 1
        return index

    def _claim_tick(self) -> Ticket | None:
        assert self._ticks is not None
        tick_s = next(self._ticks, math.inf)
        if tick_s >= self._planned_end_s:
            self._exhausted = True
            return None
        return self._claim_at(self._t0_ns + int(tick_s * NS))

    def _claim_at(self, intended_ns: int) -> Ticket | None:
        """The next request, made ready first; returns at its instant, None when the load closes before."""
        index = self._next_index(intended_ns)
        if index is None:
            return None
        ticket = self._ticket(index, intended_ns)
        self._waiting += 1
        try:
            on_time = self._sleep_until(intended_ns)
        finally:
            self._waiting -= 1
        return ticket if on_time else None

    def _ticket(self, index: int, intended_ns: int) -> Ticket:
        planned = self._request_of(index)
        if not planned.warmup and not self._measuring:
            self._measuring = True
            self._stop_after_duration(intended_ns)
        return Ticket(planned, intended_ns)

    def _stop_after_duration(self, start_ns: int) -> None:
        """The duration counts from the first measured request; the warm-up comes on top."""
        if self.plan.duration_s is None:
            return
        left_s = self.plan.duration_s + (start_ns - time.monotonic_ns()) / NS
        self._planned_end_s = (start_ns - self._t0_ns) / NS + self.plan.duration_s
        gevent.spawn_later(max(left_s, 0.0), self.end, "planned")

    def _sleep_until(self, instant_ns: int) -> bool:
        """False when the load is closing before that instant."""
        while (left_ns := instant_ns - time.monotonic_ns()) > 0:
            if self.closing.wait(left_ns / NS):
                return False
        return not self.closing.is_set()

    def _drain_when_exhausted(self) -> None:
        if self._exhausted and self._waiting == 0 and not self.closing.is_set():
            self.end("planned")

    def _watch(self, record: RequestRecord) -> None:
        spec = self._breaker
        failed = record.failure is not None
        self._consecutive = self._consecutive + 1 if failed else 0
        self._window.append(failed)
        share = sum(self._window) / len(self._window) if failed else 0.0
        last = f"the last was {record.failure}: {record.failure_detail}"
        if self._consecutive >= spec.consecutive_failures:
            self.end("breaker", f"{self._consecutive} requests in a row failed; {last}", QUICK_DRAIN_S)
        elif failed and len(self._window) == spec.window and share >= spec.error_rate:
            text = f"{share:.0%} of the latest {spec.window} requests failed; {last}"
            self.end("breaker", text, QUICK_DRAIN_S)
