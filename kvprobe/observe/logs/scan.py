"""One source of lines -> events: find what hits, read it, say who said it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from kvprobe.evidence.events import Event
from kvprobe.observe.logs import wraps
from kvprobe.observe.logs.entries import LINE_BYTES, Entry
from kvprobe.observe.logs.flood import Flood, Waiting
from kvprobe.observe.logs.lines import Around, Line, Reader
from kvprobe.observe.logs.page import NOTHING_AROUND, Neighbours, Page
from kvprobe.observe.logs.prefilter import prefilter_of
from kvprobe.observe.logs.speaker import is_foreign, who_says
from kvprobe.observe.logs.tally import Tally

LOOK_BACK_BYTES = 192 * 1024
LOOK_AHEAD_BYTES = 96 * 1024
_CONTEXT_BYTES = 768
_READER_BUDGET_S = 2.0
"""CPU time of a reader for one line; who needs more is set aside for the rest of the log."""
_EVENT_TEXT_CHARS = 2000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Hit:
    """A line that holds an anchor: where it stands in its page, its number, and the anchor in it."""

    start: int
    end: int
    number: int
    at: int


class Scanner:
    """Reads sources with the given readers; `events` come in the order of lines."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        self._readers = readers
        self._prefilter = prefilter_of(tuple(readers))
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
        try:
            for page, begin, end in _pages(source, blocks, tally, first_number):
                for hit in self._hit_lines(page, begin, end, tally):
                    self._one(page, hit, flood, tally, keep)
        except KeyboardInterrupt as signal:  # what was read until now is worth an answer
            tally.stopped = signal
        for waiting in flood.rest():
            self._late(source, waiting, tally, keep)
        tally.sampled_lines += flood.passed

    def _hit_lines(self, page: Page, begin: int, end: int, tally: Tally) -> Iterator[_Hit]:
        """Each line of the stretch that holds an anchor, once."""
        last_end = -1
        for _, offset, _ in self._prefilter.hits(memoryview(page.data)[begin:end]):
            position = begin + offset
            if position < last_end:
                continue
            start, last_end = page.bounds(position)
            if position - start < LINE_BYTES:
                yield _Hit(start, last_end, page.number_at(start), position - start)
            else:
                tally.cut_lines += 1

    def _one(self, page: Page, hit: _Hit, flood: Flood, tally: Tally, keep: Callable[[Event], None]) -> None:
        start, number = hit.start, hit.number
        stop = min(hit.end, start + LINE_BYTES)
        now, news = flood.reads(page.data[start:stop], hit.at)
        if not now:
            low = page.data.rfind(b"\n", 0, max(start - _CONTEXT_BYTES, 0)) + 1
            flood.put_off(Waiting(number, page.data[low : stop + _CONTEXT_BYTES], start - low))
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
            whole, certain = self._whole(entry, around, tally)
            if not found and not whole:
                continue
            entry.line.provenance = who_says(entry, around, min(found.values(), default=0))
            for reader in {**found, **whole}:
                alone = self._ask(reader, entry.line, around, tally) if reader in found else []
                more = [self._ask(reader, line, around, tally) for line in whole.get(reader, [])]
                events = wraps.richest(alone, more, certain=certain)
                foreign = is_foreign(events, entry, around, found.get(reader, 0))
                for event in events:
                    yield _finished(event, entry, foreign=foreign)

    def _whole(self, entry: Entry, around: Neighbours, tally: Tally) -> tuple[dict[int, list[Line]], bool]:
        """Where the line is a piece of a broken one: the whole, for each reader to which this piece is the
        first that says anything, and that no other piece satisfies alone."""
        if len(entry.line.raw) >= LINE_BYTES - 4:
            return {}, False
        whole = wraps.joined(around, entry)
        lines: dict[int, list[Line]] = {}
        if not whole.lines:
            return lines, False
        taken = {reader for line in whole.above for reader in self._prefilter.readers_of(line.text)}
        for line in whole.below:
            for reader in self._prefilter.readers_of(line.text):
                if reader not in taken and self._ask(reader, line, NOTHING_AROUND, tally):
                    taken.add(reader)
        for line in whole.lines:
            for reader in self._prefilter.readers_of(line.text):
                if reader not in taken:
                    lines.setdefault(reader, []).append(line)
        return lines, whole.certain

    def _ask(self, index: int, line: Line, around: Around, tally: Tally) -> list[Event]:
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


def _finished(event: Event, entry: Entry, *, foreign: bool) -> Event:
    """With the line's own marks where the reader set none, and bounded."""
    line = entry.line
    said = line.provenance if event.provenance in ("bare", line.provenance) else event.provenance
    return msgspec.structs.replace(
        event,
        text=event.text if len(event.text) <= _EVENT_TEXT_CHARS else event.text[:_EVENT_TEXT_CHARS] + " ...",
        time_s=event.time_s if event.time_s is not None else line.time_s,
        rank=event.rank if event.rank is not None else line.rank,
        pid=event.pid if event.pid is not None else line.pid,
        provenance="quoted" if foreign else said,
        repeats=event.repeats * entry.repeats,
    )


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
