"""Odd but honest servers: shapes that no standard forbids must not cost a request or move a number."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from tests.faults.client import PATIENT, client_of, meet
from tests.faults.kit import (
    DONE,
    LAST_CHUNK,
    OK_HEAD,
    Exchange,
    chunk,
    data,
    http_chunk,
    playing,
    serve,
    usage,
)

A, B, STOP = chunk("a"), chunk("b"), chunk(finish="stop")
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
FULL = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}


@pytest.mark.parametrize(
    "done",
    [
        b"data: [DONE] \n\n",
        b"data:  [DONE]\n\n",
        b"data:\t[DONE]\n\n",
        b"data: [DONE]\nid: 5\n\n",
        b": the end\nevent: done\ndata: [DONE]\n\n",
        b"data: [DONE] ",
    ],
)
def test_done_with_blanks_or_other_fields_is_done(done):
    record = meet(playing(A, B, done))
    assert record.failure is None
    assert record.content_chunks == 2


def test_done_inside_a_text_is_text():
    record = meet(playing(chunk("[DONE]"), B, STOP, DONE))
    assert record.failure is None
    assert record.retained_text == "[DONE]b"


@pytest.mark.parametrize("blank", [b"data:\n\n", b"data: \n\n", b"data\n\n", b"data:\ndata:  \n\n"])
def test_data_of_blanks_is_a_sign_of_life_and_nothing_else(blank):
    record = meet(playing(blank, A, blank, B, STOP, DONE))
    assert record.failure is None
    assert record.content_chunks == 2
    assert record.first_chunk_ns == record.first_token_ns


def test_data_of_blanks_does_not_keep_a_stream_alive():
    async def fault(exchange: Exchange) -> None:
        await exchange.stream(A)
        while True:
            await exchange.send(http_chunk(b"data:\n\n"))
            await asyncio.sleep(0.02)

    assert meet(fault, replace(PATIENT, gap_s=0.2, total_s=4.0)).failure == "timeout_gap"


@pytest.mark.parametrize(
    "events",
    [
        (A, B, STOP, usage(**FULL), usage()),
        (A, B, STOP, usage(**FULL), usage(prompt_tokens=0, completion_tokens=0)),
        (A, B, STOP, usage(prompt_tokens=5), usage(completion_tokens=2, cached_tokens=4)),
        (A, B, STOP, usage(prompt_tokens=5, completion_tokens=2, prompt_cache_hit_tokens=4)),
        (A, B, data({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": FULL}]})),
        (A, B, data({"choices": [{"index": 0, "delta": {}, "finish_reason": 7, "usage": FULL}]})),
        (A, B, STOP, data({"choices": [], "x_groq": {"usage": FULL}})),
        (A, data({"choices": [], "usage": {**FULL, "completion_tokens": 1}}), B, usage(**FULL)),
    ],
    ids=["then empty", "then zero", "halves", "alias", "in the choice", "same, odd", "x_groq", "growing"],
)
def test_usage_in_odd_places(events):
    record = meet(playing(*events, DONE))
    assert record.failure is None
    assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (5, 2, 4)


@pytest.mark.parametrize("absurd", [-1, 10**30, 2**63, 1e300, True])
def test_an_absurd_count_is_no_count(absurd):
    record = meet(playing(A, STOP, usage(prompt_tokens=absurd, completion_tokens=1), DONE))
    assert record.failure is None
    assert (record.prompt_tokens, record.completion_tokens) == (None, 1)


@pytest.mark.parametrize(
    "call",
    [
        {"function": {"name": 5, "arguments": {"a": 10**30}}},
        {"function": {"arguments": {"a": "LONE"}}},
        {"type": "custom", "custom": {"name": "f", "input": "x"}},
    ],
    ids=["large number", "lone surrogate", "custom tool"],
)
def test_odd_tool_calls_are_content(call):
    event = data({"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]})
    record = meet(playing(event.replace(b"LONE", rb"\ud83d"), STOP, DONE))
    assert record.failure is None
    assert record.content_chunks == 1


def test_names_that_the_server_chose_are_bounded():
    long = {"id": "i" * 500_000, "choices": [{"index": 0, "delta": {}, "finish_reason": "f" * 300_000}]}
    record = meet(playing(A.replace(b"fault-1", b"j" * 300_000), data(long), DONE))
    assert record.failure is None
    assert len(record.server_request_id) == len(record.finish_reason) == 256


# -- when it was over --------------------------------------------------------------------------


async def _and_hang(exchange: Exchange) -> None:
    await exchange.stream(A, B, STOP, DONE)
    await exchange.hang()


async def _and_more(exchange: Exchange) -> None:
    await exchange.stream(A, B, STOP, DONE)
    while True:
        await exchange.send(http_chunk(b'data: {"still": "here"}\n\n'))
        await asyncio.sleep(0.02)


async def _no_done_and_hang(exchange: Exchange) -> None:
    await exchange.stream(A, B, STOP, usage(**FULL))
    await exchange.hang()


async def _no_done_and_reset(exchange: Exchange) -> None:
    await exchange.stream(A, B, STOP)
    await exchange.reset(after_s=0.4)


@pytest.mark.parametrize("fault", [_and_hang, _and_more, _no_done_and_hang, _no_done_and_reset])
def test_a_whole_stream_is_over_with_its_last_event(fault):
    """However long the server then keeps the connection: it counts as active no longer."""
    record = meet(fault, replace(PATIENT, gap_s=0.5))
    assert record.failure is None
    assert record.end_ns - record.last_token_ns < 0.3e9


def test_data_after_done_does_not_hold_the_user():
    with serve(_and_more) as server, client_of(server.url) as client:
        first, second = client.send(), client.send()
    assert second.sent_ns - first.end_ns < 4e9, "not the limit of the whole request"


def test_a_request_that_is_not_taken_was_sent_when_sending_began():
    async def fault(exchange: Exchange) -> None:
        exchange.writer.transport.pause_reading()
        await asyncio.sleep(30)

    record = meet(fault, replace(PATIENT, first_token_s=0.4), fields={"padding": "x" * 20_000_000})
    assert record.failure == "timeout_first"
    assert record.end_ns - record.sent_ns > 0.35e9


# -- HTTP --------------------------------------------------------------------------------------

BODY = A + B + STOP + usage(**FULL) + DONE
LENGTH = b"Content-Length: %d\r\n\r\n" % len(BODY)


@pytest.mark.parametrize(
    "pieces",
    [
        (OK_HEAD, b'%x;name="v;w"\r\n%b\r\n' % (len(BODY), BODY), b"0;last\r\nServer-Timing: x\r\n\r\n"),
        (HEAD + LENGTH, *(BODY[start : start + 37] for start in range(0, len(BODY), 37))),
        (HEAD.replace(b"1.1", b"1.0") + b"\r\n", BODY),
        (b"HTTP/1.1 100 Continue\r\n\r\n", OK_HEAD + http_chunk(BODY) + LAST_CHUNK),
        (b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" + OK_HEAD + http_chunk(BODY) + LAST_CHUNK,),
        (OK_HEAD + http_chunk(BODY) + LAST_CHUNK + OK_HEAD + http_chunk(BODY) + LAST_CHUNK,),
        (HEAD + LENGTH + BODY + b"and something more",),
    ],
    ids=["extensions, trailer", "length", "1.0", "100", "103", "answer not asked for", "beyond its length"],
)
def test_http_shapes(pieces):
    async def fault(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(*pieces)

    with serve(fault) as server, client_of(server.url) as client:
        for record in (client.send(), client.send()):
            assert record.failure is None
            assert record.content_chunks == 2
            assert (record.prompt_tokens, record.completion_tokens, record.cached_tokens) == (5, 2, 4)


def test_a_connection_with_excess_bytes_is_not_kept():
    async def fault(exchange: Exchange) -> None:
        while True:
            await exchange.request()
            await exchange.send(HEAD + LENGTH + BODY + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    with serve(fault) as server, client_of(server.url) as client:
        assert [client.send().failure for _ in range(2)] == [None, None]
        assert server.connections == 2


def test_the_first_byte_is_stamped_also_when_it_is_no_http():
    async def fault(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(b"SSH-2.0-OpenSSH_9.6\r\n")

    record = meet(fault)
    assert record.failure == "protocol_error"
    assert record.first_byte_ns is not None


def test_tokens_before_broken_chunking_in_the_same_receive_are_kept():
    async def fault(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(OK_HEAD)
        await exchange.send(http_chunk(A) + http_chunk(B) + b"zz\r\n")

    record = meet(fault)
    assert record.failure == "decode"
    assert record.content_chunks == 2
    assert record.retained_text == "ab"


def test_the_text_of_an_error_before_broken_chunking_is_kept():
    body = json.dumps({"error": "as asked"}).encode()

    async def fault(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(
            b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n" + http_chunk(body) + b"zz\r\n"
        )

    record = meet(fault)
    assert record.failure == "status"
    assert "as asked" in record.failure_detail
