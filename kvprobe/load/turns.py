"""Turns of sessions in an open loop: each waits until the one before it is over."""

from __future__ import annotations

from gevent.event import Event

_LOOK_EVERY_S = 0.05
"""How soon the end of the load is noticed; the end of the turn before wakes at once."""


class Turns:
    """Which turn follows which. Only turns that were claimed and are not over are kept."""

    def __init__(self, closing: Event) -> None:
        self._closing = closing
        self._latest: dict[int, int] = {}  # session -> plan index of its latest claimed turn
        self._running: dict[int, tuple[int, Event]] = {}  # plan index -> session, set when it is over

    def follow(self, session: int, index: int) -> Event | None:
        """Note the next turn of a session; what it has to wait for, or None."""
        before = self._running.get(self._latest.get(session, index))
        self._latest[session] = index
        self._running[index] = (session, Event())
        return before[1] if before is not None else None

    def over(self, index: int) -> None:
        """A request has ended; one that is no turn is passed over."""
        known = self._running.pop(index, None)
        if known is None:
            return
        session, event = known
        event.set()
        if self._latest.get(session) == index:
            del self._latest[session]

    def wait(self, before: Event) -> bool:
        """False when the load closes before the turn is over."""
        while not before.wait(_LOOK_EVERY_S):
            if self._closing.is_set():
                return False
        return not self._closing.is_set()
