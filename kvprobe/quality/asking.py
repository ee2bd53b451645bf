"""Asking one server all questions: greedy, one seed. A server that breaks down is left, not waited for."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvprobe.errors import Problem, TargetError
from kvprobe.quality.exchange import Exchange
from kvprobe.quality.given import NOT_ASKED, Given
from kvprobe.quality.items import Item

GIVE_UP = 8
"""Questions in a row that met no working server; after them it is asked no more."""
PROVING = 3
"""The first so many may fail, as long as one of them is answered: some servers refuse single questions."""
PROVING_S = 60.0
"""A server that takes longer over its failures is not tried again."""
RETRY_AFTER_S = 0.5
MAX_WAITS = 3
MAX_WAIT_S = 10.0
"""How often, and how long, a server that asks for patience (429, 503) gets it."""

Numbered = tuple[int, Item]


@dataclass(slots=True)
class Side:
    """A server under test."""

    name: str
    exchange: Exchange
    gone: str | None = None
    """Why it is asked no more."""
    _in_a_row: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, item: Item) -> Given:
        """Never raises for the server: what went wrong stands in `error`."""
        if self.gone is not None:
            return Given(error=f"{NOT_ASKED}: {self.gone}")
        given = self.exchange.ask(item)
        for _ in range(MAX_WAITS):
            if given.wait_s is None:
                break
            time.sleep(min(given.wait_s, MAX_WAIT_S))
            given = self.exchange.ask(item)
        self._note(given)
        return given

    def _note(self, given: Given) -> None:
        with self._lock:
            self._in_a_row = self._in_a_row + 1 if given.broken else 0
            if self._in_a_row >= GIVE_UP and self.gone is None:
                self.gone = f"{self.name} had failed {GIVE_UP} times in a row ({given.error})"


def prove(side: Side, questions: Sequence[Item]) -> None:
    """Raises `TargetError` when the server answers none of the first questions."""
    given = Given(error="there is no question")
    until = time.monotonic() + PROVING_S
    for number, item in enumerate([*questions[:1], *questions[:PROVING]]):
        if number == 1:
            time.sleep(RETRY_AFTER_S)
        given = side.ask(item)
        if given.error is None:
            return
        if time.monotonic() > until:
            break
    message = f"{side.name} ({side.exchange.base_url}) does not answer: {given.error}"
    raise TargetError(Problem("no_answer", message, "see `kvprobe doctor` for this address"))


def ask_all(
    side: Side,
    questions: Sequence[Numbered],
    into: dict[int, Given],
    *,
    at_once: int,
    done: Callable[[], None] = lambda: None,
) -> None:
    """Puts each answer `into` as it comes, so that an interrupt leaves those that came.

    The threads are daemons: one that waits for a slow server must not hold up a Ctrl-C.
    """
    work: queue.SimpleQueue[Numbered | None] = queue.SimpleQueue()
    came: queue.SimpleQueue[tuple[int, Given] | Exception] = queue.SimpleQueue()
    for asked in (*questions, *([None] * at_once)):
        work.put(asked)

    def worker() -> None:
        try:
            while (got := work.get()) is not None:
                came.put((got[0], side.ask(got[1])))
        except Exception as error:  # a defect of ours: told where somebody waits
            came.put(error)

    for _ in range(min(at_once, len(questions))):
        threading.Thread(target=worker, daemon=True).start()
    try:
        for _ in questions:
            each = came.get()
            if isinstance(each, Exception):
                raise each
            into[each[0]] = each[1]
            done()
    except KeyboardInterrupt:
        side.gone = side.gone or "interrupted"  # what is still queued is not sent any more
        raise
