"""The engine's thread with a real event loop: hand-over, aborts, overflow and death."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from functools import partial
from typing import Any

import pytest
from starlette.requests import Request

from reference_server.answer import Answer, AnswerForm
from reference_server.engine import Engine
from reference_server.errors import RequestError
from reference_server.kv.paged import PagedAllocator
from reference_server.limits import Limits, read_body
from reference_server.sequence import FinishReason, Sequence
from reference_server.streams import TokenEvent, TokenStream
from tests.reference_server.server_rig import Rig


async def _collect(stream: TokenStream) -> list[TokenEvent]:
    events: list[TokenEvent] = []
    while not events or events[-1].finished is None:
        events += await stream.take()
    return events


def _prepare(rig: Rig, max_tokens: int) -> Sequence:
    """A sequence that the rig's core does not know yet."""
    sequence = rig.add("a prompt of some length, over a few blocks of the pool", max_tokens)
    rig.core.abort(sequence.request_id)
    sequence.finished = None
    return sequence


def _run(test: object, rig: Rig) -> None:
    async def main() -> None:
        engine = Engine(rig.core, threads=1)
        await asyncio.to_thread(engine.start, asyncio.get_running_loop(), 16)
        try:
            await test(engine)  # type: ignore[operator]
        finally:
            await asyncio.to_thread(engine.stop)

    asyncio.run(main())


def test_an_abort_frees_blocks_within_one_step() -> None:
    rig = Rig(blocks=150)

    async def test(engine: Engine) -> None:
        sequence = _prepare(rig, 1500)
        stream = TokenStream(sequence.request_id, 10_000, engine.abort)
        engine.submit(sequence, stream)
        await stream.take()
        engine.abort(sequence.request_id)
        steps = engine.state.steps
        while engine.state.running:
            await asyncio.sleep(0)
        assert engine.state.usage.blocks_used == 0
        # One step may have been under way, and one may have begun between the two lines above.
        assert engine.state.steps <= steps + 2

    _run(test, rig)
    assert rig.value("request_success_total", finished_reason="abort") == 2


def test_a_stream_that_nobody_reads_gives_itself_up() -> None:
    rig = Rig(blocks=150)

    async def test(engine: Engine) -> None:
        sequence = _prepare(rig, 1500)
        stream = TokenStream(sequence.request_id, 5, engine.abort)
        engine.submit(sequence, stream)
        while not stream.overflowed:
            await asyncio.sleep(0.001)
        (last,) = await stream.take()
        assert last.finished is FinishReason.ABORT
        assert last.error is not None
        while engine.state.running:
            await asyncio.sleep(0)
        assert sequence.num_output_tokens < 1500

    _run(test, rig)


def test_a_dead_engine_tells_everyone() -> None:
    rig = Rig(blocks=150)

    async def test(engine: Engine) -> None:
        sequence = _prepare(rig, 1500)
        stream = TokenStream(sequence.request_id, 10_000, engine.abort)
        engine.submit(sequence, stream)
        await stream.take()
        sequence.block_table = []
        events = await _collect(stream)
        assert events[-1].finished is FinishReason.ERROR
        assert engine.death is not None
        late = _prepare(rig, 5)
        late_stream = TokenStream(late.request_id, 10, engine.abort)
        engine.submit(late, late_stream)
        assert (await _collect(late_stream))[-1].error is not None

    _run(test, rig)


def test_a_step_that_dies_still_ends_the_requests_that_finished_in_it() -> None:
    """Their last tokens are lost with the step; nobody waits for them for ever."""
    rig = Rig(blocks=150)

    async def test(engine: Engine) -> None:
        allocator = rig.core.allocator
        assert isinstance(allocator, PagedAllocator)
        sequences = [_prepare(rig, 1), _prepare(rig, 1500)]
        # The books are wrong from here on, and the check after the next step sees it.
        engine._commands.put(partial(allocator.pool.take, 1))
        streams = []
        for sequence in sequences:
            streams.append(TokenStream(sequence.request_id, 10_000, engine.abort))
            engine.submit(sequence, streams[-1])
        for stream in streams:
            assert (await _collect(stream))[-1].error is not None
        assert engine.death is not None
        assert (engine.state.running, engine.state.waiting) == (0, 0)

    _run(test, rig)


def test_a_stream_that_fails_before_its_first_token_has_a_status() -> None:
    rig = Rig(blocks=150)

    async def test(engine: Engine) -> None:
        sequence = _prepare(rig, 5)
        stream = TokenStream(sequence.request_id, 10, engine.abort)
        stream.put(TokenEvent(None, "", finished=FinishReason.ERROR, error="no room"))
        form = AnswerForm("small", chat=True, streamed=True, include_usage=False)
        sent: list[MutableMapping[str, Any]] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        answer = Answer(engine, sequence, stream, form, write_seconds=5)
        await answer({"type": "http"}, _never, send)
        assert sent[0]["status"] == 500
        assert b'"no room"' in sent[1]["body"]

    _run(test, rig)


async def _never() -> MutableMapping[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def test_a_client_that_takes_nothing_is_given_up_after_the_write_limit() -> None:
    rig = Rig(blocks=150)

    async def test(engine: Engine) -> None:
        sequence = _prepare(rig, 1500)
        stream = TokenStream(sequence.request_id, 10_000, engine.abort)
        closed: list[bool] = []
        form = AnswerForm("small", chat=True, streamed=True, include_usage=False)
        answer = Answer(engine, sequence, stream, form, write_seconds=0.05)
        answer.on_close = lambda: closed.append(True)

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        await answer({"type": "http"}, _never, send)
        assert closed == [True]
        while engine.state.running:
            await asyncio.sleep(0)
        assert sequence.finished is FinishReason.ABORT

    _run(test, rig)


def test_a_body_that_does_not_arrive_gets_408() -> None:
    async def main() -> None:
        request = Request({"type": "http", "method": "POST", "path": "/", "headers": []}, _never)
        with pytest.raises(RequestError) as refused:
            await read_body(request, Limits(body_seconds=0.05))
        assert refused.value.status == 408

    asyncio.run(main())
