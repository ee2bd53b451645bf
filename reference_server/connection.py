"""One HTTP/1.1 connection: what uvicorn's own does not do.

It stops reading when a client sends more while its answer is under way, and who does not read does
not notice that the client has gone: its request would run to its end. It waits for ever for the
head of a request. And it refuses what is no HTTP in plain text.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from http import HTTPStatus
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from reference_server.errors import RequestError
from reference_server.limits import Limits
from reference_server.refusals import log_refusal
from reference_server.wire import error_body

log = logging.getLogger(__name__)

SENT_AHEAD = 1024**2
"""Bytes that a client may send behind a request that is still being answered."""


class Connection(H11Protocol):
    """Uvicorn makes one for each connection."""

    limits = Limits()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._bytes_ahead = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._bytes_ahead = self._bytes_ahead + len(data) if self._answering else 0
        super().data_received(data)
        self._watch_head()
        if self._answering and self.flow.read_paused:
            self._read_on()

    @property
    def _answering(self) -> bool:
        """A whole request is there, and its answer is not yet complete."""
        cycle = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def _read_on(self) -> None:
        """Only a read tells that the client has gone; what it sent ahead is kept, within a limit."""
        if self._bytes_ahead > SENT_AHEAD:
            log.warning("cut a connection that sent %d bytes ahead of its answer", self._bytes_ahead)
            self.transport.abort()
        else:
            self.flow.resume_reading()

    def _watch_head(self) -> None:
        """The time for a head runs while none of it, or a part, is there; not between requests."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop_timer()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_seconds, self._head_is_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            seconds = self.limits.head_seconds
            self._refuse(
                RequestError(408, f"the request's head did not arrive within {seconds:g} s", own_words=True)
            )

    def send_400_response(self, msg: str) -> None:
        # Uvicorn calls it where it has caught h11's error, which knows a head that is too large.
        error = sys.exc_info()[1]
        if getattr(error, "error_status_hint", 400) == 431:
            size = self.limits.headers
            self._refuse(RequestError(431, f"the request's head is larger than {size} bytes", own_words=True))
        else:
            self._refuse(RequestError(400, msg, own_words=True))

    def _refuse(self, error: RequestError) -> None:
        """Answer in OpenAI's form and close; just close where an answer is already under way."""
        log_refusal(error)
        body = msgspec.json.encode(error_body(error))
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        try:
            head = h11.Response(
                status_code=error.status,
                headers=[*headers, ("connection", "close")],
                reason=HTTPStatus(error.status).phrase.encode(),
            )
            answer = [self.conn.send(event) for event in (head, h11.Data(data=body), h11.EndOfMessage())]
        except h11.LocalProtocolError:
            self.transport.abort()
            return
        self.transport.write(b"".join(piece or b"" for piece in answer))
        self.transport.close()


def connections(limits: Limits) -> type[Connection]:
    """The class to give to uvicorn."""

    class Limited(Connection):
        pass

    Limited.limits = limits
    return Limited
