"""The hand-over of tokens from the engine thread to the event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reference_server.sequence import FinishReason

if TYPE_CHECKING:
    from reference_server.logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One generated token, or the end of a request (`token` None when it ended without one)."""

    token: int | None
    text: str
    cached_tokens: int = 0
    finished: FinishReason | None = None
    stopped_by: str | None = None
    """The stop string that ended the request; None for every other end."""
    error: str | None = None
    status: int = 500
    """HTTP status of an error that comes before the first token."""
    logprobs: TokenLogprobs | None = None


class TokenStream:
    """The events of one request. Lives on the event loop; only `put` is scheduled from outside.

    It holds at most `limit` events: a client that does not read stops its own request, never the
    engine.
    """

    def __init__(self, request_id: str, limit: int, on_overflow: Callable[[str], None]) -> None:
        self.request_id = request_id
        self._events: deque[TokenEvent] = deque()
        self._limit = limit
        self._on_overflow = on_overflow
        self._ready = asyncio.Event()
        self.overflowed = False

    def put(self, event: TokenEvent) -> None:
        if self.overflowed:
            return
        if len(self._events) >= self._limit:
            self.overflowed = True
            self._events.clear()
            self._events.append(
                TokenEvent(None, "", finished=FinishReason.ABORT, error="the client reads too slowly")
            )
            self._on_overflow(self.request_id)
        else:
            self._events.append(event)
        self._ready.set()

    async def take(self) -> list[TokenEvent]:
        """All events that are there, at least one."""
        while not self._events:
            self._ready.clear()
            await self._ready.wait()
        events = list(self._events)
        self._events.clear()
        return events


def deliver(batch: list[tuple[TokenStream, TokenEvent]]) -> None:
    """Runs on the event loop, once a step."""
    for stream, event in batch:
        stream.put(event)
