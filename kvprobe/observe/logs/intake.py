"""Logs of any packing -> one list of typed events, with what was read and how each log ends.

Everything streams: memory does not grow with the log. What cannot be read is counted and said, never
raised; only what is no log at all (an archive, a device, a missing file) is a `UsageError`.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvprobe.evidence.events import Event
from kvprobe.observe.logs import exceptions, sources
from kvprobe.observe.logs.blocks import blocks
from kvprobe.observe.logs.encoding import Recoded, utf16_of, without_mark
from kvprobe.observe.logs.endings import Edges
from kvprobe.observe.logs.envelopes import is_request_body
from kvprobe.observe.logs.exceptions import unowned
from kvprobe.observe.logs.folding import Fold
from kvprobe.observe.logs.readers import all_readers
from kvprobe.observe.logs.scan import Scanner
from kvprobe.observe.logs.tally import Tally

Progress = Callable[[str, int, int | None], None]
"""Told of each block: the source's name, bytes read so far, bytes in all (null for a pipe)."""
_PAGE_BYTES = 8 * 2**20
_HTTP_HEAD_BYTES = 16 * 1024
_HTTP_HEAD = re.compile(
    rb"HTTP/\d(?:\.\d)? 200[^\n]{0,200}\n(?:[A-Za-z0-9-]{1,80}:[^\n]{0,2000}\n){0,60}\r?\n"
)
_SAMPLE = re.compile(
    rb"(?:vllm|sglang|llamacpp|kvprobe):\w{1,120}(?:\{[^\n]{0,2000}\})? +[-+\d.eENaInf]{1,40}\s*$"
)
"""A sample of an engine's own; of other names one cannot tell it from a line of a log."""


@dataclass(slots=True, kw_only=True)
class LogRead:
    """All that was read of one incident. `events` are in order of file and line.

    `skipped` counts lines that were cut, passed over or not read; `notes` say so in sentences.
    `pages` are saved /metrics pages that stood among the paths, by path. `stopped` is the Ctrl-C or SIGTERM
    that ended the reading: then all else is of what had come until then.
    """

    events: list[Event] = field(default_factory=list)
    bytes: int = 0
    lines: int = 0
    engine: str | None = None
    engine_version: str | None = None
    ended: dict[str, str] = field(default_factory=dict)
    skipped: int = 0
    notes: list[str] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    pages: dict[str, str] = field(default_factory=dict)
    stopped: KeyboardInterrupt | None = None


def read_logs(
    paths: Sequence[str], *, tail_bytes: int | None = None, progress: Progress | None = None
) -> LogRead:
    """Read files (of any packing), `-` for stdin; rotated pieces oldest first."""
    ordered = sources.in_order(paths)
    sources.check(ordered)
    read, scanner = LogRead(), _scanner()
    before: str | None = None
    for path in ordered:
        tally = Tally()
        with sources.opened(path, tally, tail_bytes=tail_bytes) as source:
            begin = len(read.events)
            _read_source(read, scanner, source, tally, progress)
        if before is not None and path in read.ended and sources.family(before) == sources.family(path):
            _go_on(read, before, path, begin)
        before = path
        read.stopped = tally.stopped
        if read.stopped is not None:
            read.notes.append("reading was stopped by a signal: this is of what had come until then")
            break
    _conclude(read)
    return read


def read_text(text: str | bytes, source: str = "server.log") -> LogRead:
    """The same of a text in memory."""
    data = text.encode("utf-8", "replace") if isinstance(text, str) else text
    data = without_mark(data)
    encoding = utf16_of(data[:512])
    stream = io.BytesIO(data)
    opened = sources.Opened(source, Recoded(stream, encoding) if encoding else stream, len(data))
    read = LogRead()
    _read_source(read, _scanner(), opened, Tally(), None)
    _conclude(read)
    return read


def _scanner() -> Scanner:
    return Scanner((*all_readers(), exceptions.READER))


def _read_source(
    read: LogRead, scanner: Scanner, source: sources.Opened, tally: Tally, progress: Progress | None
) -> None:
    flow = blocks(source.stream, tally)
    first = next(flow, b"")
    if is_metrics_page(first):
        page = first + b"".join(_at_most(flow, _PAGE_BYTES))
        read.pages[source.name] = page.decode("utf-8", "replace")
        read.bytes += tally.bytes
        read.lines += page.count(b"\n")
        return
    if is_request_body(first[:4096].decode("utf-8", "replace").lstrip()):
        tally.note(f"{source.name}: looks like a log of requests; what users sent is no evidence here")
    edges, fold = Edges(), Fold()
    flow = edges.watch(_told(_chain(first, flow), source, tally, progress))
    scanner.scan(source.name, flow, tally, fold.add, first_number=source.first_line)
    _add(read, source, tally, edges, fold)


def is_metrics_page(head: bytes) -> bool:
    """Whether a source begins as Prometheus text does (of an engine that is known or not); `curl -i` puts the
    answer's headers first, and `grep` takes the comments away."""
    if head.startswith(b"HTTP/"):
        head = _HTTP_HEAD.sub(b"", head[:_HTTP_HEAD_BYTES], count=1)
    lines = [line for line in head[:4096].split(b"\n")[:8] if line.strip()]
    if not lines:
        return False
    if lines[0].startswith((b"# HELP ", b"# TYPE ")):
        return any(b"# TYPE " in line for line in lines)
    samples = [line for line in lines if not line.startswith(b"# ")]  # `#033[2m` is a lost colour of a log
    return bool(samples) and all(_SAMPLE.match(line) for line in samples)


def _chain(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _at_most(flow: Iterable[bytes], most: int) -> Iterator[bytes]:
    left = most
    for block in flow:
        if left <= 0:
            return
        yield block[:left]
        left -= len(block)


def _told(
    flow: Iterable[bytes], source: sources.Opened, tally: Tally, progress: Progress | None
) -> Iterator[bytes]:
    for block in flow:
        if progress is not None:
            progress(source.name, tally.bytes, source.size_bytes)
        yield block


def _add(read: LogRead, source: sources.Opened, tally: Tally, edges: Edges, fold: Fold) -> None:
    events = unowned(fold.events())
    tally.conclude()
    if fold.thinned:
        tally.note(f"{fold.thinned:,} events of kinds that came in thousands were thinned out")
    ending = edges.ending() if tally.stopped is None else "excerpt"
    read.events += events
    read.bytes += tally.bytes
    read.lines += tally.lines
    read.ended[source.name] = ending
    read.skipped += tally.skipped_lines + tally.cut_lines + tally.sampled_lines
    read.notes += [note for note in tally.notes if note not in read.notes]
    read.sources.append(
        {
            "path": source.name,
            "bytes": tally.bytes,
            "lines": tally.lines,
            "ended": ending,
            "events": len(events),
        }
    )


def _go_on(read: LogRead, older: str, younger: str, begin: int) -> None:
    """A rotated piece ends where the next one begins, and the engine does there what it did before."""
    if read.ended.get(older) == "cut":
        read.ended[older] = "excerpt"
        for told in read.sources:
            if told["path"] == older:
                told["ended"] = "excerpt"
    last = next((e for e in reversed(read.events[:begin]) if e.source == older and e.phase is not None), None)
    if last is not None:
        text = f"goes on from {older}"
        event = Event(name="phase", source=younger, line=1, text=text, engine=last.engine, phase=last.phase)
        read.events.insert(begin, event)


def _conclude(read: LogRead) -> None:
    read.engine, read.engine_version = engine_of(read.events)


def engine_of(events: Sequence[Event]) -> tuple[str | None, str | None]:
    """Which engine wrote the logs, and its version where a line tells it.

    An engine's own start line decides; else the engine of most events. Foreign text has no voice.
    """
    said = [e for e in events if e.provenance != "quoted"]
    starts = [e for e in said if e.name == "engine_start" and (e.get("engine") or e.engine)]
    votes = Counter(e.engine for e in said if e.engine is not None)
    if starts:
        engine = str(starts[-1].get("engine") or starts[-1].engine)
    elif votes:
        engine = str(votes.most_common(1)[0][0])
    else:
        return None, None
    versions = [
        e.get("version") for e in starts if (e.get("engine") or e.engine) == engine and e.get("version")
    ]
    return engine, str(versions[-1]) if versions else None
