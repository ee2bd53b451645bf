"""From the bytes of a physical line to the lines that it carries.

One physical line can carry several: a progress bar redraws itself with carriage returns, a JSON record
holds a traceback with line feeds. All of them have the number of the physical line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvprobe.observe.logs.cleaning import cleaned
from kvprobe.observe.logs.envelopes import open_envelope
from kvprobe.observe.logs.lines import Line
from kvprobe.observe.logs.prefixes import Head, strip_prefixes

LINE_BYTES = 64 * 1024
"""A longer line is cut here."""
_MAX_PIECES = 256
_ENVELOPES_DEEP = 3
_REPEATED = re.compile(r" \[repeated (\d{1,6})x across (?:all nodes|cluster)\]")
"""Ray folds equal lines of its workers and says how many there were."""


@dataclass(slots=True)
class Entry:
    """A line and what its prefixes told; `head.speaker` null means that nobody known says it."""

    line: Line
    head: Head
    repeats: int = 1


def entries_of(source: str, number: int, raw: bytes) -> list[Entry]:
    """The lines of one physical line (without its line end), in order. Never empty, never raises."""
    text = raw[:LINE_BYTES].decode("utf-8", "replace").rstrip("\r\n")
    if "\r" not in text:
        return _one(source, number, text)
    pieces = [piece for piece in text.split("\r") if piece.strip()]
    # Of a progress bar only its last states matter.
    shown = pieces[:1] + pieces[1:][-_MAX_PIECES:] or [""]
    return [entry for piece in shown for entry in _one(source, number, piece)]


def _one(source: str, number: int, text: str) -> list[Entry]:
    head = Head()
    messages = _messages(text, head, _ENVELOPES_DEEP)
    return [_entry(source, number, text, message, head, first=i == 0) for i, message in enumerate(messages)]


def _messages(text: str, head: Head, depth: int) -> list[str]:
    """The message behind prefixes and envelopes; several where a record carries several lines."""
    message = strip_prefixes(cleaned(text), head)
    record = open_envelope(message) if depth and message.startswith("{") else None
    if record is None:
        return [message]
    head.time_s = head.time_s or record.time_s
    head.level = head.level or record.level
    head.logger = head.logger or record.logger
    head.stamped = True
    if record.from_logger:
        head.speaker = head.speaker or "logger"
    first, *rest = record.lines
    return [*_messages(first, head, depth - 1), *(strip_prefixes(cleaned(more), Head()) for more in rest)]


def _entry(source: str, number: int, raw: str, text: str, head: Head, *, first: bool) -> Entry:
    repeats = 1
    if first and "across" in text and (found := _REPEATED.search(text)) is not None:
        repeats += int(found[1])
        text = text[: found.start()]
    line = Line(
        source=source,
        number=number,
        text=text,
        raw=raw,
        time_s=head.time_s,
        rank=head.rank or head.container,
        pid=head.pid,
        logger=head.logger,
        level=head.level,
    )
    return Entry(line, head, repeats)
