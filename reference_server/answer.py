"""One answer: submits the request, sends its tokens, and notices when the client goes away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.types import Receive, Scope, Send

from reference_server.engine import Engine
from reference_server.errors import RequestError
from reference_server.logprobs import Form, TokenLogprobs
from reference_server.sequence import FinishReason, Sequence
from reference_server.streams import TokenEvent, TokenStream
from reference_server.wire import (
    DONE,
    ChunkWriter,
    error_event,
    error_response,
    json_response,
    usage,
    whole_answer,
)

log = logging.getLogger(__name__)

EVENT_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How an answer is to look."""

    model: str
    chat: bool
    streamed: bool
    include_usage: bool
    logprobs: Form | None = None
    """How log probabilities are told; None where they are not wanted."""


class Answer:
    """An ASGI response. `on_close` is called once, however it ends."""

    def __init__(
        self,
        engine: Engine,
        sequence: Sequence,
        stream: TokenStream,
        form: AnswerForm,
        *,
        write_seconds: float,
        deadline_seconds: float = 600.0,
    ) -> None:
        self._engine = engine
        self._sequence = sequence
        self._stream = stream
        self._form = form
        self._write_seconds = write_seconds
        self._deadline_seconds = deadline_seconds
        self._deadline = 0.0
        self._untold: list[TokenLogprobs] = []
        self.on_close: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._deadline = asyncio.get_running_loop().time() + self._deadline_seconds
        self._engine.submit(self._sequence, self._stream)
        writing = asyncio.create_task(self._write(scope, receive, send))
        watching = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({writing, watching}, return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
            else:
                log.info("gave %s up: the client went away", self._sequence.request_id)
        except TimeoutError:
            log.warning(
                "gave %s up: the client took nothing for %g s", self._sequence.request_id, self._write_seconds
            )
        finally:
            self._engine.abort(self._sequence.request_id)
            self.on_close()
            for task in (writing, watching):
                task.cancel()
            await asyncio.gather(writing, watching, return_exceptions=True)

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._form.streamed:
            await self._write_stream(scope, receive, send)
        else:
            await self._write_whole(scope, receive, send)

    async def _write_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Status and headers go out with the first token, so that a failure before it has a status."""
        writer = self._writer()
        events = await self._take()
        if events[0].error is not None:
            await error_response(RequestError(events[0].status, events[0].error))(scope, receive, send)
            return
        await send(self._start_of_stream())
        await self._write_events(writer, events, send)

    def _writer(self) -> ChunkWriter:
        return ChunkWriter(chat=self._form.chat, request_id=self._sequence.request_id, model=self._form.model)

    def _start_of_stream(self) -> dict[str, Any]:
        headers = [*EVENT_STREAM_HEADERS, (b"x-request-id", self._sequence.request_id.encode())]
        return {"type": "http.response.start", "status": 200, "headers": headers}

    async def _write_events(self, writer: ChunkWriter, events: list[TokenEvent], send: Send) -> None:
        count = 0
        while True:
            count += sum(event.token is not None for event in events)
            last = events[-1]
            body = b"".join(self._chunk(writer, event) for event in events)
            if last.finished is not None:
                body += self._ending(writer, last, count)
            async with asyncio.timeout(self._write_seconds):
                await send({"type": "http.response.body", "body": body, "more_body": last.finished is None})
            if last.finished is not None:
                return
            events = await self._take()

    async def _take(self) -> list[TokenEvent]:
        """The next events; an error once the request's time is over."""
        try:
            async with asyncio.timeout_at(self._deadline):
                return await self._stream.take()
        except TimeoutError:
            log.warning(
                "gave %s up: it did not finish within %g s", self._sequence.request_id, self._deadline_seconds
            )
            error = f"the request did not finish within {self._deadline_seconds:g} s"
            return [TokenEvent(None, "", finished=FinishReason.ABORT, error=error, status=408)]

    def _chunk(self, writer: ChunkWriter, event: TokenEvent) -> bytes:
        if event.error is not None:
            return error_event(event.error)
        self._untold += [event.logprobs] if event.logprobs is not None else []
        # A token that ends inside a character has no text yet; its text comes with the next one.
        if not event.text and event.finished is None:
            return b""
        return writer.token(event.text, event.finished, event.stopped_by, self._told())

    def _told(self) -> dict[str, Any] | None:
        """The log probabilities since they were last told."""
        if self._form.logprobs is None:
            return None
        found, self._untold = self._untold, []
        return self._form.logprobs.told(found)

    def _ending(self, writer: ChunkWriter, last: TokenEvent, num_output: int) -> bytes:
        if self._form.include_usage and last.error is None:
            return writer.usage(self._usage(last, num_output)) + DONE
        return DONE

    async def _write_whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        events: list[TokenEvent] = []
        while not events or events[-1].finished is None:
            events += await self._take()
        last = events[-1]
        if last.error is not None:
            await error_response(RequestError(last.status, last.error))(scope, receive, send)
            return
        self._untold = [event.logprobs for event in events if event.logprobs is not None]
        answer = whole_answer(
            chat=self._form.chat,
            request_id=self._sequence.request_id,
            model=self._form.model,
            text="".join(event.text for event in events),
            finished=last.finished or FinishReason.STOP,
            stopped_by=last.stopped_by,
            logprobs=self._told(),
            numbers=self._usage(last, sum(event.token is not None for event in events)),
        )
        response = json_response(answer, headers={"x-request-id": self._sequence.request_id})
        await response(scope, receive, send)

    def _usage(self, last: TokenEvent, num_output: int) -> dict[str, object]:
        return usage(self._sequence.num_prompt_tokens, num_output, last.cached_tokens)


async def _gone(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        continue
