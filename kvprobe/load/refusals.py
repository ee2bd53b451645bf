"""What an answer means that is no stream: a status other than 200, a page, a JSON document.

Only the start of its body is kept, and only so much is read as keeping the connection is worth.
"""

from __future__ import annotations

from collections.abc import Callable

from kvprobe.load.connection import Connection
from kvprobe.load.reading import judge_document
from kvprobe.load.transport_failures import StreamFailure

MAX_ERROR_BODY_BYTES = 2048
MAX_SKIPPED_BODY_BYTES = 65536
"""Of a body that is no stream, so much is read to keep the connection; a longer one costs it."""


def refusal(connection: Connection, receive: Callable[[], None]) -> StreamFailure:
    """The failure that a status other than 200 is, with the start of its body. `receive` brings more of
    it, or raises `StreamFailure`."""
    parser = connection.parser
    status = parser.status_code
    body = _short_body(connection, receive, MAX_ERROR_BODY_BYTES).decode("utf-8", "replace")
    detail = f"HTTP {status}: {body}"
    if status in (401, 403):
        return StreamFailure("auth", detail)
    if status == 429:
        wait = parser.header("retry-after")
        return StreamFailure("throttled", f"Retry-After: {wait}; {detail}" if wait else detail)
    location = parser.header("location")
    if 300 <= status < 400 and location is not None:
        return StreamFailure("redirect_refused", f"HTTP {status} to {location}")
    return StreamFailure("protocol_error" if status < 300 else "status", detail)


def no_stream(kind: str, connection: Connection, receive: Callable[[], None]) -> StreamFailure:
    """The failure that a 200 with a page or a JSON document is."""
    return judge_document(kind, _short_body(connection, receive, MAX_SKIPPED_BODY_BYTES))


def _short_body(connection: Connection, receive: Callable[[], None], keep_bytes: int) -> bytes:
    """The first bytes of a body that is no stream; what goes wrong meanwhile changes nothing."""
    kept = bytearray()
    skipped = 0
    while True:
        for part in connection.take_body():
            kept += part[: keep_bytes - len(kept)]
            skipped += len(part)
        if connection.parser.message_complete or skipped > MAX_SKIPPED_BODY_BYTES:
            return bytes(kept)
        try:
            receive()
        except StreamFailure:
            return bytes(kept)
