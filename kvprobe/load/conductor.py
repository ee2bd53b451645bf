"""Who sends what, when, and when it is over. Users ask `claim` for their next request.

Closed loop: a user that is free sends at once (after its think time). Open loop: one schedule in
absolute time, whose ticks the users take in order; a tick that finds no free user is sent late and
keeps its instant as `intended_ns`, and a tick that was never sent still counts as intended. Warm-up
requests come first and hand over without a pause: the next request is simply a measured one.

Sessions: the turns of one are never in flight together nor out of order. In a closed loop a user
owns a session until its last turn; in an open one a turn waits for the turn before it, and its
lateness is there to see.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

import gevent
from gevent.event import Event

from kvprobe.evidence.records import RequestRecord
from kvprobe.load.crew_breaker import own_share
from kvprobe.load.end_reasons import QUICK_DRAIN_S, graver
from kvprobe.load.job import BreakerSpec, PlannedRequest
from kvprobe.load.load_plan import LoadPlan, Seat, Ticket
from kvprobe.load.turns import Turns

NS = 1_000_000_000
LEAD_S = 0.002
"""A request is made ready so long before its instant, and not earlier: what comes first is sent first."""


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
        self.alarm = Event()
        self.trouble: str | None = None
        """The latest failure, in words, while `alarm` is set for whoever sums up several workers."""
        self._request_of = request_of
        self._breaker = breaker
        self._consecutive = 0
        self._alarm_at = own_share(breaker.consecutive_failures, plan.workers)
        self._window: deque[bool] = deque(maxlen=max(breaker.window, 1))
        self._go = Event()
        self._t0_ns = 0
        self._seats = 0
        self._claimed = 0  # of a closed loop, in the order of its own slots
        self._warmed = 0  # warm-up requests of a warm-up that goes by time; not in _claimed
        self._waiting = 0  # claimed, but its instant has not come
        self._turns_left = 0  # of sessions that users are in the middle of
        self._exhausted = False
        self._measuring = False
        self._drain_until_ns: int | None = None
        self._turns = Turns(self.closing)
        self._ticks = plan.ticks() if plan.ticks else None
        self._count_ticks = plan.ticks() if plan.ticks else None
        self._next_counted = next(self._count_ticks, None) if self._count_ticks else None
        self._counted = 0
        self._issue_end_s = math.inf  # when issuing ended, seconds after t0
        self._planned_end_s = math.inf  # when the duration is over, seconds after t0
        if plan.measured_from_s is not None and plan.duration_s is not None:
            self._planned_end_s = plan.measured_from_s + plan.duration_s

    @property
    def active(self) -> int:
        """Requests under way."""
        return self.sent - self.ok - self.failed

    @property
    def t0_ns(self) -> int:
        """The instant that the schedule counts from; 0 before the start."""
        return self._t0_ns

    def start(self, t0_ns: int) -> None:
        """Let the users go at `t0_ns`."""
        self._t0_ns = t0_ns
        self._go.set()

    def seat(self) -> Seat:
        """A place in the load, one for each user."""
        self._seats += 1
        return Seat(start_s=self.plan.start_s(self._seats - 1))

    def intended(self) -> int:
        """Requests that the schedule wanted so far; in a closed loop those that were sent."""
        if self._count_ticks is None or not self._go.is_set():
            return self.sent
        until_s = min((time.monotonic_ns() - self._t0_ns) / NS, self._issue_end_s)
        while (following := self._next_counted) is not None:
            number, tick_s = following
            if tick_s > until_s or tick_s >= self._planned_end_s or self._beyond(self.plan.index_of(number)):
                break
            self._counted += 1
            self._next_counted = next(self._count_ticks, None)
        return max(self._counted, self.sent)

    def claim(self, seat: Seat) -> Ticket | None:
        """The next request of a user that is free, at the instant when it is to be sent.

        None when no more are to be sent. A user's first request has not to be thought about, and
        in a closed loop it is made ready before the start, where all users begin at once.
        """
        self._go.wait()
        free_ns = time.monotonic_ns()
        if self.closing.is_set() or (self._exhausted and not seat.turns):
            return None
        ticket = self._claim_tick() if self._ticks is not None else self._claim_turn(seat, free_ns)
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
        self._turns.over(record.plan_index)
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
        if graver(reason, self.reason):
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

    def _beyond(self, index: int) -> bool:
        return self.plan.total is not None and index >= self.plan.total

    # -- closed loop ---------------------------------------------------------------------------

    def _claim_turn(self, seat: Seat, free_ns: int) -> Ticket | None:
        """The next request of a user: of its session, or whatever is next."""
        upcoming = self._planned(seat.turns[0]) if seat.turns else None
        intended_ns = self._ready_ns(seat, free_ns, upcoming)
        at_once = seat.first and not self.plan.ramp_s  # all begin together: nothing may be left to do then
        if not at_once and not self._sleep_until(intended_ns - int(LEAD_S * NS)):
            return None
        seat.first = False
        if upcoming is not None:
            seat.turns.popleft()
            self._turns_left -= 1
        else:
            index = self._next_index(seat, intended_ns)
            if index is None:
                return None
            upcoming = self._planned(index)
        return self._at_its_instant(upcoming, intended_ns)

    def _ready_ns(self, seat: Seat, free_ns: int, upcoming: PlannedRequest | None) -> int:
        """When the user is ready to ask: at its start, later after its think time."""
        if seat.first:
            return max(free_ns, self._t0_ns + int(seat.start_s * NS))
        own_s = upcoming.think_time_s if upcoming is not None else None
        return free_ns + int((self.plan.think_time_s if own_s is None else own_s) * NS)

    def _next_index(self, seat: Seat, intended_ns: int) -> int | None:
        """Number of the next request; below 0 in a warm-up that goes by time. None: no more."""
        plan = self.plan
        if intended_ns < self._t0_ns + int(plan.warmup_s * NS):
            self._warmed += 1
            return -1 - plan.slot_of(self._warmed - 1)
        number = plan.slot_of(self._claimed)
        turns = plan.session_turns(number) if plan.session_turns is not None else (number,)
        wanted = [index for index in turns if not self._beyond(index)]
        if not wanted:
            self._exhausted = True
            return None
        self._claimed += 1
        seat.turns.extend(wanted[1:])
        self._turns_left += len(wanted) - 1
        return wanted[0]

    # -- open loop -----------------------------------------------------------------------------

    def _claim_tick(self) -> Ticket | None:
        assert self._ticks is not None
        number, tick_s = next(self._ticks, (0, math.inf))
        index = self.plan.index_of(number)
        if tick_s >= self._planned_end_s or tick_s == math.inf or self._beyond(index):
            self._exhausted = True
            return None
        planned = self._planned(index, warmup=tick_s < self.plan.warmup_s)
        session = self.plan.session_number(index) if self.plan.session_number is not None else None
        before = self._turns.follow(session, index) if session is not None else None
        return self._at_its_instant(planned, self._t0_ns + int(tick_s * NS), before)

    # -- both ----------------------------------------------------------------------------------

    def _planned(self, index: int, *, warmup: bool = False) -> PlannedRequest:
        planned = self._request_of(index)
        planned.warmup = planned.warmup or warmup
        return planned

    def _at_its_instant(
        self, planned: PlannedRequest, intended_ns: int, before: Event | None = None
    ) -> Ticket | None:
        """The request, at its instant and after the turn before it; None when the load closes first."""
        ticket = self._ticket(planned, intended_ns)
        self._waiting += 1
        try:
            on_time = self._sleep_until(intended_ns) and (before is None or self._turns.wait(before))
        finally:
            self._waiting -= 1
        return ticket if on_time else None

    def _ticket(self, planned: PlannedRequest, intended_ns: int) -> Ticket:
        if not planned.warmup and not self._measuring:
            self._measuring = True
            self._stop_after_duration(intended_ns)
        return Ticket(planned, intended_ns)

    def _stop_after_duration(self, start_ns: int) -> None:
        """The duration counts from the first measured request; the warm-up comes on top."""
        if self.plan.duration_s is None:
            return
        if self.plan.measured_from_s is None:
            self._planned_end_s = (start_ns - self._t0_ns) / NS + self.plan.duration_s
        end_ns = self._t0_ns + int(self._planned_end_s * NS)
        gevent.spawn_later(max((end_ns - time.monotonic_ns()) / NS, 0.0), self.end, "planned")

    def _sleep_until(self, instant_ns: int) -> bool:
        """False when the load is closing before that instant."""
        while (left_ns := instant_ns - time.monotonic_ns()) > 0:
            if self.closing.wait(left_ns / NS):
                return False
        return not self.closing.is_set()

    def _drain_when_exhausted(self) -> None:
        if self._exhausted and not (self._waiting or self._turns_left) and not self.closing.is_set():
            self.end("planned")

    def _watch(self, record: RequestRecord) -> None:
        spec = self._breaker
        failed = record.failure is not None
        self._consecutive = self._consecutive + 1 if failed else 0
        self._window.append(failed)
        share = sum(self._window) / len(self._window) if failed else 0.0
        last = f"the last was {record.failure}: {record.failure_detail}"
        if failed and self.plan.workers > 1 and self._consecutive >= self._alarm_at:
            self.trouble = f"{record.failure}: {record.failure_detail}"
            self.alarm.set()
        if self._consecutive >= spec.consecutive_failures:
            self.end("breaker", f"{self._consecutive} requests in a row failed; {last}", QUICK_DRAIN_S)
        elif failed and len(self._window) == spec.window and share >= spec.error_rate:
            text = f"{share:.0%} of the latest {spec.window} requests failed; {last}"
            self.end("breaker", text, QUICK_DRAIN_S)
