"""Lines that repeat millions of times, such as a statistics line: read in full at first, then sampled.

The kind of a line is its text around what hit, without numbers (hexadecimal ones too). Of each kind the
first lines are read all, later ones more and more thinly; the latest unread ones wait, so that what stood
just before something new, and the end of the log, are never lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

_READ_ALL = 2048
_KIND_BEFORE, _KIND_AFTER = 64, 256
_KIND_KEPT_BEFORE, _KIND_KEPT_AFTER = 16, 96
"""Cut after the numbers are out: cut before, the width of a number would move the cut and make new kinds."""
_MOST_KINDS = 4096
_WAITING = 256
_BEFORE_NEWS = 16
_NEW = 64
"""A kind of line that was seen at most so often is news."""
_DELETED = b"0123456789abcdef.,:-+ "
"""Hexadecimal letters too: a request's id must not make every line a kind of its own."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """An unread line with a little of what stands around it. `offset` is where it starts in `context`."""

    number: int
    context: bytes
    offset: int


class Flood:
    """Decides line by line; `passed` counts what was never read."""

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}
        self._waiting: deque[Waiting] = deque(maxlen=_WAITING)
        self.passed = 0

    def reads(self, raw: bytes, at: int) -> tuple[bool, bool]:
        """(read this line now, it is news). `at` is where in the line an anchor stands."""
        kind = _kind(raw, at)
        seen = self._seen.get(kind, 0) + 1
        if len(self._seen) >= _MOST_KINDS and kind not in self._seen:
            self._seen.clear()
        self._seen[kind] = seen
        if seen < _READ_ALL:
            return True, seen <= _NEW
        stride = 1 << (seen.bit_length() - _READ_ALL.bit_length() + 1)
        return seen % stride == 0, False

    def put_off(self, waiting: Waiting) -> None:
        """Keep a line that is not read now; the oldest one is lost."""
        if len(self._waiting) == _WAITING:
            self.passed += 1
        self._waiting.append(waiting)

    def before_news(self) -> Iterator[Waiting]:
        """The few latest unread lines, when something new stands below them."""
        while len(self._waiting) > _BEFORE_NEWS:
            self._waiting.popleft()
            self.passed += 1
        yield from self.rest()

    def rest(self) -> Iterator[Waiting]:
        """All that wait, oldest first."""
        while self._waiting:
            yield self._waiting.popleft()


def _kind(raw: bytes, at: int) -> bytes:
    before = raw[max(0, at - _KIND_BEFORE) : at].translate(None, _DELETED)[-_KIND_KEPT_BEFORE:]
    return before + b"|" + raw[at : at + _KIND_AFTER].translate(None, _DELETED)[:_KIND_KEPT_AFTER]
