"""Parts that are ill. Each takes the place of a healthy one and has one fault (see `ailments.py`)."""

from __future__ import annotations

import itertools
import os
import secrets
import signal
from collections.abc import Collection, Iterator
from collections.abc import Sequence as Sequences
from dataclasses import replace
from typing import Any

from starlette.types import Receive, Scope, Send

from reference_server.answer import Answer
from reference_server.core import EngineCore, Output
from reference_server.device import CpuMemory, DeviceMemory
from reference_server.kv.prefix import HashChain
from reference_server.neighbour import CudaNeighbour
from reference_server.scheduler import Scheduled
from reference_server.sequence import FinishReason, Sequence
from reference_server.streams import TokenEvent

LEAKED_BYTES = 4 * 1024**2
"""Of host memory, for each request."""
LIFE_TOKENS = 1200
"""Generated before the process kills itself: a few seconds of a small load."""
LONELY_TOKENS = 600
"""Generated before another process comes for the device's memory."""
TOKENS_BEFORE_ERROR = 4
ERROR_EVERY = 3
"""Of the streamed requests, one in so many breaks."""
BROKEN = "internal error while generating"


class SickCore(EngineCore):
    """Faults of the engine; `ailments` says which."""

    def __init__(self, *args: Any, ailments: frozenset[str], memory: DeviceMemory | None, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._ailments = ailments
        self._memory = memory
        self._lost: list[Sequence] = []
        self._kept_for_ever: list[bytearray] = []
        self._generated = 0
        self._neighbour: CudaNeighbour | None = None

    def chain(self, cache_salt: str | None) -> HashChain:
        if "salted" in self._ailments:
            cache_salt = (cache_salt or "") + secrets.token_hex(8)
        return super().chain(cache_salt)

    def add(self, sequence: Sequence) -> None:
        if "host-leak" in self._ailments:
            # Written to: memory that is only promised is no leak.
            self._kept_for_ever.append(bytearray(b"\1" * LEAKED_BYTES))
        super().add(sequence)

    def abort(self, request_id: str) -> None:
        if "ignore-cancel" in self._ailments:
            return
        super().abort(request_id)

    def _let_go(self, sequence: Sequence) -> None:
        if "leak-on-abort" in self._ailments and sequence.finished is FinishReason.ABORT:
            self.scheduler.take_out(sequence)
            if sequence.block_table:
                self._lost.append(sequence)
        else:
            super()._let_go(sequence)

    def holders(self) -> Iterator[Sequence]:
        yield from super().holders()
        yield from self._lost

    def _after_step(self, outputs: list[Output]) -> None:
        self._generated += sum(event.token is not None for _, event in outputs)
        if "die-silently" in self._ailments and self._generated >= LIFE_TOKENS:
            os.kill(os.getpid(), signal.SIGKILL)
        if "noisy-neighbour" in self._ailments and self._generated >= LONELY_TOKENS:
            self._let_neighbour_in()

    def _let_neighbour_in(self) -> None:
        if isinstance(self._memory, CpuMemory):
            self._memory.take_for_others(self._memory.free)
        elif self._memory is not None and self._neighbour is None:
            self._neighbour = CudaNeighbour()


class TwiceRunner:
    """Computes each chunk of a prompt twice."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, work: Sequences[Scheduled]) -> list[int | None]:
        # Without its last token a chunk samples nothing, so that no token is drawn twice.
        again = [replace(item, count=item.count - 1) for item in work if item.count > 1]
        if again:
            self._runner.run(again)
        sampled: list[int | None] = self._runner.run(work)
        return sampled


def sick_runner(runner: Any, ailments: Collection[str]) -> Any:
    """The runner, or one that is slow."""
    return TwiceRunner(runner) if "slow-prefill" in ailments else runner


class EarlyRoleAnswer(Answer):
    """Sends status, headers and the role before any work is done."""

    async def _write_stream(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = self._writer()
        await send(self._start_of_stream())
        await send({"type": "http.response.body", "body": writer.opening(), "more_body": True})
        await self._write_events(writer, await self._take(), send)


class BreakingAnswer(Answer):
    """Of the streams, one in a few ends with an error event, inside a 200 and without a reason."""

    _streams = itertools.count(1)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._breaks = self._form.streamed and next(self._streams) % ERROR_EVERY == 0
        self._seen = 0

    async def _take(self) -> list[TokenEvent]:
        events = await super()._take()
        if not self._breaks:
            return events
        kept = events[: TOKENS_BEFORE_ERROR - self._seen]
        self._seen += len(kept)
        if len(kept) == len(events):
            return events
        return [*kept, TokenEvent(None, "", finished=FinishReason.ERROR, error=BROKEN)]


def answer_kind(ailments: Collection[str]) -> type[Answer]:
    """The class of answers; of two faults of the stream the first wins."""
    if "early-role-chunk" in ailments:
        return EarlyRoleAnswer
    return BreakingAnswer if "error-in-stream" in ailments else Answer
