"""From the stamped events of one stream to what they say: tokens, gaps, usage, and whether it is whole.

First token: the first chunk with non-empty answer text, reasoning or tool text. First visible
token: answer text only. Gaps lie between content chunks, so TTFT is never one of them; chunks that
came in one receive have a gap of 0 and are counted (`shared_receive_chunks`).
"""

from __future__ import annotations

from itertools import pairwise

from kvprobe.evidence.records import CANCELLED, RequestRecord
from kvprobe.load.chunks import ChunkMeaning, Usage, is_error_document, read_chunk
from kvprobe.load.sse import RawEvent, event_data, parse_event
from kvprobe.load.transport_failures import MAX_DETAIL_CHARS, GivenUp, StreamFailure

DONE = b"[DONE]"
_SLACK_CHUNKS = 16
_MAX_STRAY_BYTES = 4096
MAX_NAME_CHARS = 256
_FIELDS = (b"", b"data", b"event", b"id", b"retry")
_NO_FAULT_IF_COMPLETE = frozenset(
    {"truncated", "reset_mid_stream", "timeout_gap", "timeout_first", "timeout_total", "cancelled_at_end"}
)


class StreamReading:
    """Collects events while the stream runs (`note`) and reads them once it is over (`conclude`).

    A stream is stopped as endless after `max_content_chunks` (and a little slack).
    """

    def __init__(self, max_content_chunks: int, retain_chars: int = 0) -> None:
        self.first_token_seen = False
        self.done = False
        self._limit = max_content_chunks + _SLACK_CHUNKS
        self._check_at = self._limit
        self._events: list[tuple[int, RawEvent]] = []
        self._events_read = 0
        self._before_first = 0
        self._stray = bytearray()
        self._stamps: list[int] = []
        self._first_chunk_ns: int | None = None
        self._first_visible_ns: int | None = None
        self._server_id: str | None = None
        self._finish: tuple[int, str] | None = None
        self._usages: list[Usage] = []
        self._in_band: StreamFailure | None = None
        self._not_json: StreamFailure | None = None
        self._retain_chars = retain_chars
        self._retained = ""

    @property
    def complete(self) -> bool:
        """The server said that it was finished: `[DONE]` or a finish reason."""
        return self.done or self._finish is not None

    @property
    def chunks_so_far(self) -> int:
        """Events with data since the first token, that one included: looked at from outside, unparsed."""
        return len(self._events) - self._before_first if self.first_token_seen else 0

    def note(self, stamp_ns: int, event: RawEvent) -> None:
        """Keep an event with data; look into it only while the first token is awaited.

        Raises `StreamFailure` for a stream that does not end.
        """
        if self.done:
            return
        if _is_done(event.block):
            self.done = True
            return
        self._events.append((stamp_ns, event))
        if not self.first_token_seen:
            self._read_events()
            self.first_token_seen = bool(self._stamps)
            self._before_first = len(self._events) - 1
        elif len(self._events) >= self._check_at:
            self._read_events()
            came = len(self._stamps)
            if came >= self._limit:
                raise StreamFailure("protocol_error", f"endless stream: {came} content chunks")
            self._check_at = len(self._events) + self._limit - came

    def note_stray(self, event: RawEvent) -> None:
        """Keep the start of what is neither data nor any other line of server-sent events."""
        for line in event.block.split(b"\n"):
            field, _, value = line.partition(b":")
            if field == b"error":  # llama.cpp's older way to say it
                self._fail_in_band(value.strip())
            elif field not in _FIELDS and len(self._stray) < _MAX_STRAY_BYTES:
                self._stray += line[:_MAX_STRAY_BYTES] + b"\n"

    def note_tail(self, stamp_ns: int, event: RawEvent) -> None:
        """The lines after the last blank line: an event when they are a whole one, else stray."""
        data = event_data(event.block)
        try:
            whole = data is not None and (_is_done(event.block) or read_chunk(data) is not None)
        except ValueError:
            whole = False
        if whole:
            self.note(stamp_ns, event)
        elif data is None:
            self.note_stray(event)

    def conclude(self, record: RequestRecord, failure: StreamFailure | None) -> None:
        """Read what is left and fill in tokens, gaps, usage and the failure, if it is one."""
        self._read_events()
        stamps = self._stamps
        record.first_chunk_ns = self._first_chunk_ns
        record.first_visible_ns = self._first_visible_ns
        record.content_chunks = len(stamps)
        if stamps:
            record.first_token_ns, record.last_token_ns = stamps[0], stamps[-1]
            gaps = [b - a for a, b in pairwise(stamps)]
            record.gaps_ns = gaps
            record.shared_receive_chunks = gaps.count(0)
        record.finish_reason = _name(self._finish[1] if self._finish else None)
        record.server_request_id = _name(self._server_id or record.server_request_id)
        record.retained_text = self._retained or None
        for usage in self._usages:
            usage.fill(record)
        verdict = self._judge(failure)
        if verdict is not None:
            record.failure = verdict.kind
            record.failure_detail = verdict.detail
        if isinstance(failure, GivenUp) and record.failure == failure.kind:
            # What was planned has happened: no failure, and no end-to-end time either.
            record.failure = record.failure_detail = None
            record.finish_reason = CANCELLED

    def _read_events(self) -> None:
        for stamp_ns, event in self._events[self._events_read :]:
            data = event_data(event.block)
            if data is None:
                continue
            if self._first_chunk_ns is None:
                self._first_chunk_ns = stamp_ns
            try:
                meaning = read_chunk(data)
            except ValueError as error:
                if self._not_json is None:
                    shown = data[:200].decode("utf-8", "replace")
                    self._not_json = StreamFailure(
                        "protocol_error", f"data at byte {event.offset} is no JSON object ({error}): {shown}"
                    )
                continue
            self._take(stamp_ns, meaning)
            if meaning.is_error or (event.block.startswith(b"event") and _named_error(event.block)):
                self._fail_in_band(data)
        self._events_read = len(self._events)

    def _take(self, stamp_ns: int, meaning: ChunkMeaning) -> None:
        if meaning.visible or meaning.hidden:
            self._stamps.append(stamp_ns)
        if meaning.visible and self._first_visible_ns is None:
            self._first_visible_ns = stamp_ns
        if self._server_id is None:
            self._server_id = meaning.id
        if meaning.finish is not None and (self._finish is None or meaning.finish[0] < self._finish[0]):
            self._finish = meaning.finish
        self._usages += meaning.usages
        if len(self._retained) < self._retain_chars:
            self._retained = (self._retained + meaning.visible)[: self._retain_chars]

    def _fail_in_band(self, text: bytes) -> None:
        if self._in_band is None:
            self._in_band = StreamFailure("in_band_error", text.decode("utf-8", "replace"))

    def _judge(self, failure: StreamFailure | None) -> StreamFailure | None:
        """The one kind to report; what the server said itself outranks what the transport shows."""
        if self._in_band is not None:
            return self._in_band
        if self._not_json is not None:
            return self._not_json
        if failure is not None and failure.kind not in _NO_FAULT_IF_COMPLETE:
            return failure
        came = f"{len(self._stamps)} content chunks came"
        if not self.complete:
            if not self._events and self._stray and (failure is None or failure.kind == "truncated"):
                return judge_document("text that is no event stream", bytes(self._stray))
            if failure is not None:
                return StreamFailure(failure.kind, f"{failure.detail}; {came}")
            return StreamFailure("truncated", f"no finish reason and no [DONE]; {came}")
        if not self._stamps:
            return StreamFailure(
                "empty_stream", f"no token; finish reason {self._finish and self._finish[1]!r}"
            )
        return None


def judge_document(kind: str, body: bytes) -> StreamFailure:
    """The failure that a page or a JSON document is where a stream was asked for."""
    text = body[:MAX_DETAIL_CHARS].decode("utf-8", "replace")
    if is_error_document(body):
        return StreamFailure("in_band_error", text)
    return StreamFailure("protocol_error", f"HTTP 200 with {kind} instead of an event stream: {text}")


def _is_done(block: bytes) -> bool:
    """Blanks around it and other fields beside it change nothing; the same letters in a text do."""
    return DONE in block and (event_data(block) or b"").strip() == DONE


def _name(text: str | None) -> str | None:
    """A name that a server chose, kept for every request: bounded."""
    return text[:MAX_NAME_CHARS] if text else None


def _named_error(block: bytes) -> bool:
    return parse_event(block).event == "error"
