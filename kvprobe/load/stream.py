"""One streaming request, from a plan to a `RequestRecord`.

The only place that stamps time and decides what the first token is. While the stream runs, bytes
are stamped when they land and cut into events, nothing more; JSON is parsed afterwards. The one
exception are the events up to the first token (as a rule one or two): they are looked at as they
come, after their stamp, because the time-out for the first token ends with it and the time-out
for a gap begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent
from geventhttpclient.response import HTTPParseError

from kvprobe.evidence.records import FailureKind, RequestRecord
from kvprobe.load.connection import Connection, HeadTooLarge, PeerClosed
from kvprobe.load.job import PlannedRequest
from kvprobe.load.reading import StreamReading
from kvprobe.load.refusals import no_stream, refusal
from kvprobe.load.request_form import StreamSpec, build_request
from kvprobe.load.sse import EventTooLarge, RawEvent, SseSplitter, has_data
from kvprobe.load.transport_failures import (
    GivenUp,
    StreamFailure,
    body_failure,
    connect_failure,
    head_failure,
)

NS = 1_000_000_000
MAX_STREAM_BYTES = 64 << 20
AFTER_DONE_S = 1.0
"""How long a server may take to end the response after `[DONE]` before we hang up."""
STALE_S = 1.0
"""A kept connection that closes without a byte within this time of sending was stale: the server
had closed it before it saw the request. Later than that, the server had the request."""


def run_request(
    connection: Connection,
    planned: PlannedRequest,
    spec: StreamSpec,
    *,
    request_id: str,
    intended_ns: int,
    request: bytes | None = None,
    on_sent: Callable[[int], None] | None = None,
    on_first_token: Callable[[], None] | None = None,
    retain_chars: int = 0,
) -> RequestRecord:
    """Send one request, read its stream to the end and say what happened.

    `request` may be built beforehand (`build_request`), so that building costs the schedule nothing.
    `on_sent` is called once with the instant of sending, `on_first_token` once its stamp is taken; what
    they raise comes through, with the connection closed. Else a failure is a record with a kind;
    GreenletExit gives `cancelled_at_end`."""
    record = _new_record(planned, spec, request_id, intended_ns)
    if request is None:
        request = build_request(planned, spec, request_id)
    reading = StreamReading(2 * planned.asked_completion_tokens, retain_chars)
    exchange = _Exchange(connection, spec, record, reading, on_sent)
    exchange.on_first_token = on_first_token
    exchange.give_up_after = spec.cancel_after if spec.cancels(planned) else None
    failure: StreamFailure | None = None
    try:
        exchange.perform(request)
    except StreamFailure as error:
        failure = error
    except gevent.GreenletExit:
        failure = StreamFailure("cancelled_at_end", "the run ended")
    finally:
        record.receives = connection.receives
        record.first_byte_ns = connection.first_receive_ns
        connection.release()
    over_ns = time.monotonic_ns()
    _yield_to_receivers()
    reading.conclude(record, failure)
    # What was whole was over with the last receive that belonged to it, however long the server then
    # kept the connection open; what broke off was over when that was known.
    broke_off = failure is not None and record.failure is not None
    record.end_ns = over_ns if broke_off else exchange.last_receive_ns or over_ns
    return record


def _yield_to_receivers() -> None:
    """Let the sockets that are ready be stamped before this stream is parsed."""
    try:
        gevent.sleep(0)
    except gevent.GreenletExit:
        return  # the stream is over: what it said still counts


def _new_record(
    planned: PlannedRequest, spec: StreamSpec, request_id: str, intended_ns: int
) -> RequestRecord:
    return RequestRecord(
        request_id=request_id,
        kind=planned.kind,
        session=planned.session,
        turn=planned.turn,
        intended_ns=intended_ns,
        asked_prompt_tokens=planned.asked_prompt_tokens,
        asked_completion_tokens=planned.asked_completion_tokens,
        prefix_id=planned.prefix_id,
        worker=spec.worker,
        warmup=planned.warmup,
        plan_index=planned.index,
    )


class _Exchange:
    """The live part: connect, send, receive until the stream is over."""

    def __init__(
        self,
        connection: Connection,
        spec: StreamSpec,
        record: RequestRecord,
        reading: StreamReading,
        on_sent: Callable[[int], None] | None,
    ) -> None:
        self.connection = connection
        self.spec = spec
        self.record = record
        self.on_sent = on_sent
        self.splitter = SseSplitter(spec.max_event_bytes)
        self.reading = reading
        self.last_receive_ns: int | None = None
        """The last receive up to the one that brought `[DONE]`."""
        self._sent_ns = 0
        self._last_data_ns = 0
        self.on_first_token: Callable[[], None] | None = None
        self.give_up_after: int | None = None  # content chunks after which we hang up, as planned

    def perform(self, request: bytes) -> None:
        """Raises `StreamFailure`, GreenletExit and what `on_sent` raises."""
        stamp = self._first_receive(request)
        parser = self.connection.parser
        while not parser.head_complete:
            stamp = self._receive(head_failure)
        self.record.status_code = parser.status_code
        self.record.server_request_id = parser.header("x-request-id")
        if parser.status_code != 200:
            raise refusal(self.connection, self._receive_more)
        encoding = (parser.header("content-encoding") or "identity").strip().lower()
        if encoding != "identity":
            raise StreamFailure("decode", f"Content-Encoding {encoding!r}, though identity was asked for")
        kind = (parser.header("content-type") or "").lower()
        if "json" in kind or "html" in kind:
            raise no_stream(kind, self.connection, self._receive_more)
        self._read_events(stamp)

    def _first_receive(self, request: bytes) -> int:
        """Send, and receive the first bytes; once more on a new connection if the kept one was stale."""
        for last_try in (False, True):
            self._acquire()
            reused = self.connection.reused
            try:
                self._send(request)
                stamp = self._receive(head_failure)
            except StreamFailure as error:
                quick = time.monotonic_ns() - self._sent_ns < STALE_S * NS
                stale = error.kind == "reset_before_headers" and reused and quick
                if last_try or not stale or self.connection.received_bytes:
                    raise
                self.connection.release()
                continue
            return stamp
        raise AssertionError("unreachable: the second try returns or raises")

    def _acquire(self) -> None:
        try:
            self.connection.acquire()
        except Exception as error:
            raise connect_failure(error) from error

    def _send(self, request: bytes) -> None:
        """Sending counts from its begin: what a server takes slowly, it takes late."""
        timeouts = self.spec.timeouts
        try:
            self.connection.send(request, min(timeouts.first_token_s, timeouts.total_s))
        except OSError as error:
            if isinstance(error, TimeoutError):
                self._note_sent()
                raise StreamFailure("timeout_first", "the server did not take the request") from error
            # The server may have answered early and hung up (413, 401): its answer, if there is
            # one, is still to be received; if not, the receive tells of the reset.
        self._note_sent()

    def _note_sent(self) -> None:
        first = self.record.sent_ns is None
        self.record.sent_ns = self._sent_ns = self.connection.sent_ns
        if first and self.on_sent is not None:
            self.on_sent(self._sent_ns)

    def _receive(self, explain: Callable[[Exception], StreamFailure]) -> int:
        """One receive within the deadline that applies now; its stamp."""
        timeouts = self.spec.timeouts
        deadline = self._sent_ns + int(timeouts.total_s * NS)
        kind: FailureKind = "timeout_total"
        if self.reading.done:
            until = self._last_data_ns + int(AFTER_DONE_S * NS)
        elif self.reading.first_token_seen:
            until = self._last_data_ns + int(timeouts.gap_s * NS)
        else:
            until = self._sent_ns + int(timeouts.first_token_s * NS)
        if until < deadline:
            deadline = until
            kind = "timeout_gap" if self.reading.first_token_seen else "timeout_first"
        try:
            stamp = self.connection.receive(deadline)
        except TimeoutError as error:
            raise StreamFailure(kind, "timed out") from error
        except (OSError, PeerClosed, HeadTooLarge, HTTPParseError) as error:
            raise explain(error) from error
        if not self.reading.done:
            self.last_receive_ns = stamp
        return stamp

    def _receive_more(self) -> None:
        """More of a body that is no stream."""
        self._receive(body_failure)

    def _read_events(self, stamp: int) -> None:
        connection = self.connection
        try:
            self._take_body(stamp)
            while not connection.parser.message_complete:
                if connection.received_bytes > MAX_STREAM_BYTES:
                    raise StreamFailure("protocol_error", f"the stream exceeds {MAX_STREAM_BYTES} bytes")
                stamp = self._receive(body_failure)
                self._take_body(stamp)
        except StreamFailure as error:
            ended_by_close = error.kind == "truncated" and self._is_close_delimited()
            if not self.reading.done and not ended_by_close:
                raise  # else all that was wanted is here; the connection is not kept
        tail = self.splitter.tail()
        if tail is not None:
            self.reading.note_tail(stamp, tail)

    def _take_body(self, stamp: int) -> None:
        for part in self.connection.take_body():
            try:
                events = self.splitter.feed(part)
            except EventTooLarge as error:
                for event in error.events:
                    self._note(stamp, event)
                raise StreamFailure("event_too_large", str(error)) from error
            for event in events:
                self._note(stamp, event)

    def _is_close_delimited(self) -> bool:
        """A body with neither length nor chunks ends with the connection, by the rules of HTTP."""
        parser = self.connection.parser
        return parser.header("content-length") is None and parser.header("transfer-encoding") is None

    def _note(self, stamp: int, event: RawEvent) -> None:
        if self.reading.done:
            return  # nothing that comes after the end prolongs it
        if not has_data(event.block):
            self.reading.note_stray(event)
            return
        self._last_data_ns = stamp
        self.reading.note(stamp, event)
        if self.on_first_token is not None and self.reading.first_token_seen:
            self.on_first_token()
            self.on_first_token = None
        if self.give_up_after is not None and self.reading.chunks_so_far >= self.give_up_after:
            raise GivenUp()
