"""One source of lines -> events: find what hits, read it, say who said it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from kvprobe.evidence.events import Event, Provenance
from kvprobe.observe.logs import provenance, wraps
from kvprobe.observe.logs.entries import LINE_BYTES, Entry
from kvprobe.observe.logs.flood import Flood, Waiting
from kvprobe.observe.logs.lines import Line, Reader
from kvprobe.observe.logs.page import Neighbours, Page
from kvprobe.observe.logs.prefilter import Prefilter
from kvprobe.observe.logs.tally import Tally

LOOK_BACK_BYTES = 192 * 1024
LOOK_AHEAD_BYTES = 96 * 1024
_CONTEXT_BYTES = 2048
_READER_BUDGET_S = 2.0
"""CPU time of a reader for one line; who needs more is set aside for the rest of the log."""
_FOREIGN_LINES = 64
_EVENT_TEXT_CHARS = 2000

logger = logging.getLogger(__name__)


class Scanner:
    """Reads sources with the given readers; `events` come in the order of lines."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = readers
        self._prefilter = Prefilter(readers)
        self._aside: set[int] = set()

    def scan(
        self,
        source: str,
        blocks: Iterable[bytes],
        tally: Tally,
        keep: Callable[[Event], None],
        *,
        first_number: int = 1,
    ) -> None:
        """Give every event to `keep` (nearly in order of lines), and count lines into `tally`."""
        flood = Flood()
        for page, begin, end in _pages(source, blocks, tally, first_number):
            for start, number in self._hit_lines(page, begin, end):
                self._one(page, start, number, flood, tally, keep)
        for waiting in flood.rest():
            self._late(source, waiting, tally, keep)
        tally.sampled_lines += flood.passed

    def _hit_lines(self, page: Page, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Start and number of each line of the stretch that holds an anchor."""
        last_end = -1
        for _, offset, _ in self._prefilter.hits(memoryview(page.data)[begin:end]):
            position = begin + offset
            if position < last_end:
                continue
            start, last_end = page.bounds(position)
            if position - start < LINE_BYTES:
                yield start, page.number_at(start)

    def _one(
        self,
        page: Page,
        start: int,
        number: int,
        flood: Flood,
        tally: Tally,
        keep: Callable[[Event], None],
    ) -> None:
        end = page.data.find(b"\n", start)
        end = len(page.data) if end < 0 else end
        now, news = flood.reads(page.data[start : min(end, start + LINE_BYTES)])
        if not now:
            low = page.data.rfind(b"\n", 0, max(start - _CONTEXT_BYTES, 0)) + 1
            context = page.data[low : min(end, start + LINE_BYTES) + _CONTEXT_BYTES]
            flood.put_off(Waiting(number, context, start - low))
            return
        if news:
            for waiting in flood.before_news():
                self._late(page.source, waiting, tally, keep)
        for event in self._events(page, start, number, tally):
            keep(event)

    def _late(self, source: str, waiting: Waiting, tally: Tally, keep: Callable[[Event], None]) -> None:
        first = waiting.number - waiting.context.count(b"\n", 0, waiting.offset)
        page = Page(source, waiting.context, first)
        for event in self._events(page, waiting.offset, waiting.number, tally):
            keep(event)

    def _events(self, page: Page, start: int, number: int, tally: Tally) -> Iterator[Event]:
        entries = page.entries(start, number)
        for i, entry in enumerate(entries):
            around = Neighbours(page, start, entries, i)
            found = self._prefilter.readers_of(entry.line.text)
            whole = self._whole(entry, around)
            if not found and not whole:
                continue
            entry.line.provenance = who_says(entry, around, min(found.values(), default=0))
            for reader in {**found, **whole}:
                alone = self._ask(reader, entry.line, around, tally) if reader in found else []
                more = self._best(reader, alone, whole.get(reader, []), entry, around, tally)
                yield from (_finished(event, entry) for event in more)

    def _whole(self, entry: Entry, around: Neighbours) -> dict[int, list[Line]]:
        """Where the line is a piece of a broken one: the whole, for each reader that no other piece calls."""
        if len(entry.line.raw) >= LINE_BYTES - 4:
            return {}
        whole = wraps.joined(around, entry)
        called = {reader for text in whole.others for reader in self._prefilter.readers_of(text)}
        lines: dict[int, list[Line]] = {}
        for line in whole.lines:
            for reader in self._prefilter.readers_of(line.text):
                if reader not in called:
                    lines.setdefault(reader, []).append(line)
        return lines

    def _best(
        self,
        index: int,
        alone: list[Event],
        whole: list[Line],
        entry: Entry,
        around: Neighbours,
        tally: Tally,
    ) -> list[Event]:
        """The events of the line alone, or those of the whole when they say more."""
        for line in whole:
            line.provenance = entry.line.provenance
            events = self._ask(index, line, around, tally)
            if wraps.richer(alone, events):
                return events
        return alone

    def _ask(self, index: int, line: Line, around: Neighbours, tally: Tally) -> list[Event]:
        """What one reader makes of a line. A reader that fails or dawdles costs its own facts only."""
        if index in self._aside:
            return []
        reader, begin = self._readers[index], time.thread_time()
        try:
            events = list(reader.read(line, around))
        except Exception as error:
            logger.warning("log reader %s failed at line %d: %r", reader.name, line.number, error)
            tally.skipped_lines += 1
            return []
        if time.thread_time() - begin > _READER_BUDGET_S:
            self._aside.add(index)
            tally.note(f"the reader {reader.name} took too long at line {line.number} and was set aside")
        return events


def _finished(event: Event, entry: Entry) -> Event:
    """With the line's own marks where the reader set none, and bounded."""
    line = entry.line
    return msgspec.structs.replace(
        event,
        text=event.text if len(event.text) <= _EVENT_TEXT_CHARS else event.text[:_EVENT_TEXT_CHARS] + " ...",
        time_s=event.time_s if event.time_s is not None else line.time_s,
        rank=event.rank if event.rank is not None else line.rank,
        pid=event.pid if event.pid is not None else line.pid,
        provenance=line.provenance if event.provenance in ("bare", line.provenance) else event.provenance,
        repeats=event.repeats * entry.repeats,
    )


def who_says(entry: Entry, around: Neighbours, position: int) -> Provenance:
    """The provenance of a line whose first anchor stands at `position` of its message."""
    text = entry.line.text
    if provenance.quoted_at(text, position) or provenance.is_source_code(text, _above(around, 3)):
        return "quoted"
    if entry.head.speaker is None and _in_foreign_text(around):
        return "quoted"
    if entry.head.speaker == "kernel":
        return "kernel"
    if provenance.is_exception_line(text):
        return "traceback"
    return "logger" if entry.head.speaker == "logger" else "bare"


def _above(around: Neighbours, n: int) -> list[str]:
    lines: list[str] = []
    for entry in around.above():
        lines.insert(0, entry.line.text)
        if len(lines) >= n:
            break
    return lines


def _in_foreign_text(around: Neighbours) -> bool:
    """Whether a line without a prefix goes on with what a logger's line above began to quote."""
    for count, entry in enumerate(around.above()):
        if count >= _FOREIGN_LINES:
            return False
        if entry.head.stamped:
            cut = len(entry.line.raw) >= LINE_BYTES - 4
            return not cut and provenance.opens_foreign_text(entry.line.text)
    return False


def _pages(
    source: str, blocks: Iterable[bytes], tally: Tally, first_number: int
) -> Iterator[tuple[Page, int, int]]:
    """Stretches with what stands around them, as (page, begin, end of what is new)."""
    data, begin, number = b"", 0, first_number
    for block in blocks:
        tally.lines += block.count(b"\n")
        data += block
        end = data.rfind(b"\n", begin, max(begin, len(data) - LOOK_AHEAD_BYTES)) + 1
        if end > begin:
            yield Page(source, data, number), begin, end
            low = data.rfind(b"\n", 0, max(0, end - LOOK_BACK_BYTES)) + 1
            number += data.count(b"\n", 0, low)
            data, begin = data[low:], end - low
    if data and not data.endswith(b"\n"):
        tally.lines += 1
    if len(data) > begin:
        yield Page(source, data, number), begin, len(data)
