"""A stretch of a log in memory: lines by position, and the neighbours of a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvprobe.observe.logs.entries import LINE_BYTES, Entry, entries_of
from kvprobe.observe.logs.lines import Line
from kvprobe.observe.logs.prefixes import Head

MOST_NEIGHBOURS = 32
_SEARCHED_LINES = 512
"""How far neighbours of the same rank are looked for where ranks interleave."""


class Page:
    """Lines of `data`, whose first byte begins line `first_number` of `source`."""

    def __init__(self, source: str, data: bytes, first_number: int) -> None:
        self.source = source
        self.data = data
        self._cache: dict[int, list[Entry]] = {}
        self._counted_to = 0
        self._counted = first_number

    def bounds(self, position: int) -> tuple[int, int]:
        """Start and end (without the line feed) of the line that holds `position`."""
        start = self.data.rfind(b"\n", 0, position) + 1
        end = self.data.find(b"\n", position)
        return start, len(self.data) if end < 0 else end

    def number_at(self, start: int) -> int:
        """The number of the line that starts at `start`. Cheap when asked in order."""
        if start < self._counted_to:
            return self._counted - self.data.count(b"\n", start, self._counted_to)
        self._counted += self.data.count(b"\n", self._counted_to, start)
        self._counted_to = start
        return self._counted

    def entries(self, start: int, number: int) -> list[Entry]:
        """The lines that the physical line at `start` carries."""
        found = self._cache.get(start)
        if found is None:
            end = self.data.find(b"\n", start)
            end = len(self.data) if end < 0 else end
            found = entries_of(self.source, number, self.data[start : min(end, start + LINE_BYTES)])
            if len(self._cache) > 2 * _SEARCHED_LINES:
                self._cache.clear()
            self._cache[start] = found
        return found

    def backwards(self, start: int, number: int) -> Iterator[Entry]:
        """Entries above the physical line at `start`, nearest first."""
        while start > 0:
            start = self.data.rfind(b"\n", 0, start - 1) + 1
            number -= 1
            yield from reversed(self.entries(start, number))

    def forwards(self, start: int, number: int) -> Iterator[Entry]:
        """Entries below the physical line at `start`, nearest first."""
        while True:
            end = self.data.find(b"\n", start)
            if end < 0 or end + 1 >= len(self.data):
                return
            start, number = end + 1, number + 1
            yield from self.entries(start, number)


class Neighbours:
    """`Around` of one entry: siblings of its own physical line first, then the lines of its page."""

    def __init__(self, page: Page, start: int, siblings: list[Entry], index: int) -> None:
        self._page, self._start = page, start
        self._siblings, self._index = siblings, index
        self._number = siblings[index].line.number
        self._head = siblings[index].head

    def before(self, n: int) -> Sequence[Line]:
        """Up to `n` lines before, nearest last, of the same rank where known."""
        return self._take(self.above(), n)[::-1]

    def after(self, n: int) -> Sequence[Line]:
        """Up to `n` lines after, nearest first, of the same rank where known."""
        return self._take(self.below(), n)

    def above(self) -> Iterator[Entry]:
        """All entries above, of any rank, nearest first."""
        yield from reversed(self._siblings[: self._index])
        yield from self._page.backwards(self._start, self._number)

    def below(self) -> Iterator[Entry]:
        """All entries below, of any rank, nearest first."""
        yield from self._siblings[self._index + 1 :]
        yield from self._page.forwards(self._start, self._number)

    def _take(self, entries: Iterator[Entry], n: int) -> list[Line]:
        wanted = min(n, MOST_NEIGHBOURS)
        taken: list[Line] = []
        for searched, entry in enumerate(entries):
            if len(taken) >= wanted or searched >= _SEARCHED_LINES:
                break
            if same_speaker(self._head, entry.head):
                taken.append(entry.line)
        return taken


class _Nothing:
    """`Around` of a line that is looked at alone."""

    def before(self, n: int) -> Sequence[Line]:
        return ()

    def after(self, n: int) -> Sequence[Line]:
        return ()


NOTHING_AROUND = _Nothing()


def same_speaker(a: Head, b: Head) -> bool:
    """Whether two lines can be of one process: nothing that both of them tell differs."""
    told = ((a.rank, b.rank), (a.pid, b.pid), (a.container, b.container))
    return all(x is None or y is None or x == y for x, y in told)
