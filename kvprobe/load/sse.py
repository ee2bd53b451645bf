"""Cuts a byte stream of server-sent events into events, bounded and in linear time.

Works on bytes, so that a character whose UTF-8 form is split over two receives and line
separators of Unicode (U+2028, U+0085) inside a text are none of its business: only LF, CRLF and CR
end a line, as the HTML standard says. While a stream runs only `SseSplitter.feed` is called; the
fields of an event are read afterwards (`parse_event`), so that nothing slow stands between two
receives.
"""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_MAX_EVENT_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"


class RawEvent(NamedTuple):
    """The lines of one event, joined by LF, without the blank line that ended it.

    `offset` is where it begins in the stream, in bytes, a line end counted as one byte (so for a
    stream with LF line ends it is the exact offset in the body).
    """

    offset: int
    block: bytes


class SseEvent(NamedTuple):
    """The fields of one event; `event` is `message` unless it says another name.

    `data` is None when there is no data line: nothing to dispatch.
    """

    event: str
    data: bytes | None
    id: str | None
    retry: int | None


class EventTooLarge(Exception):
    """An event grew beyond the limit. `events` are those that were complete before it."""

    def __init__(self, limit: int, offset: int, events: list[RawEvent]) -> None:
        super().__init__(f"an event that starts at byte {offset} is larger than {limit} bytes")
        self.events = events


class SseSplitter:
    """Feed it the body as it comes; it returns the events that this piece completed.

    An event is handed out as soon as its blank line ends, also when that is a CR whose LF may
    still follow. What has no blank line yet is kept (`tail`), at most `max_event_bytes` of it.
    """

    def __init__(self, max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES) -> None:
        self._limit = max_event_bytes
        self._buffer = bytearray()
        self._offset = 0  # of the first byte of _buffer
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[RawEvent]:
        """Events completed by `chunk`; comment-only ones included, empty ones not.

        Raises `EventTooLarge`.
        """
        if self._after_cr or b"\r" in chunk:
            chunk = self._with_lf(chunk)
        buffer = self._buffer
        if not buffer and chunk.endswith(b"\n\n"):
            complete = chunk[:-2]  # the common case: whole events, nothing to keep
        else:
            scan_from = max(len(buffer) - 1, 0)  # keeps 1-byte pieces linear
            buffer += chunk
            end = buffer.rfind(b"\n\n", scan_from)
            if end < 0:
                if len(buffer) > self._limit:
                    raise EventTooLarge(self._limit, self._offset, [])
                return []
            complete = bytes(memoryview(buffer)[:end])
            del buffer[: end + 2]
        events = self._cut(complete)
        if len(buffer) > self._limit:
            raise EventTooLarge(self._limit, self._offset, events)
        return events

    def tail(self) -> RawEvent | None:
        """The lines after the last blank line, for the end of a stream; None when there are none."""
        return self._event(self._offset, bytes(self._buffer))

    def _with_lf(self, chunk: bytes) -> bytes:
        if self._after_cr and chunk.startswith(b"\n"):
            chunk, self._after_cr = chunk[1:], False
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _cut(self, complete: bytes) -> list[RawEvent]:
        events: list[RawEvent] = []
        for block in complete.split(b"\n\n"):
            offset = self._offset
            self._offset = offset + len(block) + 2
            if len(block) > self._limit:
                raise EventTooLarge(self._limit, offset, events)
            event = self._event(offset, block)
            if event is not None:
                events.append(event)
        return events

    @staticmethod
    def _event(offset: int, block: bytes) -> RawEvent | None:
        if offset == 0 and block.startswith(BOM):
            block = block[len(BOM) :]
            offset = len(BOM)
        stripped = block.lstrip(b"\n")
        offset += len(block) - len(stripped)
        stripped = stripped.rstrip(b"\n")
        return RawEvent(offset, stripped) if stripped else None


def has_data(block: bytes) -> bool:
    """Whether a raw event carries data; cheap enough to ask between two receives.

    Data of nothing but blanks is none: servers send it to keep a connection alive.
    """
    return block.startswith(b"data: {") or not _is_blank(event_data(block))


def _is_blank(data: bytes | None) -> bool:
    return data is None or not data.strip()


def event_data(block: bytes) -> bytes | None:
    """The data of a raw event, its lines joined by LF; None when it has no data line."""
    if block.startswith(b"data: ") and b"\n" not in block:
        return block[6:]
    return parse_event(block).data


def parse_event(block: bytes) -> SseEvent:
    """Reads the fields of a raw event; unknown fields and comments are left out."""
    name, identity, retry = "", None, None
    data: list[bytes] = []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
        elif field == b"id" and b"\0" not in value:
            identity = value.decode("utf-8", "replace")
        elif field == b"retry" and value.isdigit() and len(value) < 16:
            retry = int(value)
    return SseEvent(name or "message", b"\n".join(data) if data else None, identity, retry)
