"""F13-F17 and F23: what a server can say in a stream, over real sockets."""

from __future__ import annotations

import json

import pytest

from kvprobe.load.sse import DEFAULT_MAX_EVENT_BYTES
from tests.faults.client import client_of, meet
from tests.faults.kit import (
    DONE,
    LAST_CHUNK,
    OK_HEAD,
    Exchange,
    answer,
    answering,
    chunk,
    data,
    http_chunk,
    playing,
    serve,
    usage,
)

STOP = chunk(finish="stop")
HTML = b"<!doctype html><html><body>502 Bad Gateway</body></html>"


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (answering(answer(HTML, "text/html")), "protocol_error"),
        (answering(answer(HTML, "text/event-stream")), "protocol_error"),
        (answering(answer(HTML, "")), "protocol_error"),
        (answering(answer(b'{"choices": [{"message": {"content": "hi"}}]}')), "protocol_error"),
        (answering(answer(b'{"error": {"message": "model is loading"}}')), "in_band_error"),
        (answering(answer(b'{"object": "error", "message": "no"}')), "in_band_error"),
        (answering(answer(b'{"error": "mislabelled"}', "text/event-stream")), "in_band_error"),
        (answering(answer(b"", status="204 No Content")), "protocol_error"),
    ],
    ids=["html", "html as sse", "html untyped", "json", "json error", "old vllm error", "bare error", "204"],
)
def test_f13_a_200_that_is_no_stream(fault, kind):
    record = meet(fault)
    assert record.failure == kind
    assert record.first_token_ns is None


@pytest.mark.parametrize(
    "event",
    [
        data({"error": {"message": "out of memory", "code": 500}}),
        data({"object": "error", "message": "out of memory"}),
        b'event: error\ndata: {"message": "out of memory"}\n\n',
        b'error: {"message": "out of memory"}\n\n',
    ],
    ids=["openai", "old vllm", "named event", "old llama.cpp"],
)
@pytest.mark.parametrize("after", [(), (STOP, DONE)], ids=["end", "then in good order"])
def test_f13_an_error_in_the_stream(event, after):
    record = meet(playing(chunk("a"), chunk("b"), event, *after))
    assert record.failure == "in_band_error"
    assert "out of memory" in record.failure_detail
    assert record.content_chunks == 2


def test_an_error_of_null_is_none():
    good = data({"id": "x", "error": None, "choices": [{"index": 0, "delta": {"content": "a"}}]})
    assert meet(playing(good, STOP, DONE)).failure is None


@pytest.mark.parametrize("bad", [b"{broken", b"42", b'"text"', b"[" * 100_000, b"null"])
def test_f14_data_that_is_no_json_object_fails_the_stream_with_its_offset(bad):
    first = chunk("a")
    record = meet(playing(first, b"data: " + bad + b"\n\n", chunk("b"), STOP, DONE))
    assert record.failure == "protocol_error"
    assert f"byte {len(first)}" in record.failure_detail
    assert record.content_chunks == 2, "the rest of the stream is still read"


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085", "\x0b", "\x1c"])
def test_f15_unicode_line_separators_are_text(mark):
    text = f"a{mark}b"
    raw = (
        b"data: "
        + json.dumps(
            {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}, ensure_ascii=False
        ).encode()
    )
    if ord(mark) < 0x20:
        raw = raw.replace(mark.encode(), json.dumps(mark).strip('"').encode())
    record = meet(playing(raw + b"\n\n", STOP, DONE))
    assert record.failure is None
    assert record.content_chunks == 1
    assert record.retained_text == text


FRAMED = "".join(
    [
        ": a comment\n\n",
        "event: message\nid: 7\nretry: 100\n",
        'data: {"id": "x", "choices": [{"index": 0,\ndata:"delta": {"content": "grüße 🚀"}}]}\n\n',
        "\n\n: another\ndata:" + '{"choices": [{"index": 0, "delta": {"content": "!"}}]}' + "\n\n",
        'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n',
    ]
)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("size", [1, 2, 7, 100_000])
@pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"], ids=["", "BOM"])
def test_f16_framing(end, size, bom):
    body = bom + FRAMED.replace("\n", end).encode()

    async def fault(exchange: Exchange) -> None:
        await exchange.request()
        exchange.writer.write(OK_HEAD)
        for start in range(0, len(body), size):
            exchange.writer.write(http_chunk(body[start : start + size]))
            await exchange.writer.drain()
        await exchange.send(LAST_CHUNK)

    record = meet(fault)
    assert record.failure is None
    assert record.retained_text == "grüße 🚀!"
    assert record.content_chunks == 2
    assert record.finish_reason == "stop"


def test_f17_a_line_without_end_is_cut_off():
    sent = 0

    async def fault(exchange: Exchange) -> None:
        nonlocal sent
        await exchange.stream(chunk("a"))
        exchange.writer.write(http_chunk(b"data: "))
        for _ in range(320):
            exchange.writer.write(http_chunk(b"x" * 65536))
            await exchange.writer.drain()
            sent += 65536

    record = meet(fault)
    assert record.failure == "event_too_large"
    assert record.content_chunks == 1
    assert sent < 20 << 20, "we hang up at the limit, not at the end"


def test_f17_the_limit_is_of_one_event_not_of_the_stream():
    big = chunk("x" * 200_000)
    record = meet(playing(*[big] * 8, STOP, DONE), tokens=100)
    assert 8 * len(big) > DEFAULT_MAX_EVENT_BYTES
    assert record.failure is None


def test_f23_reasoning_only():
    record = meet(playing(chunk(reasoning_content="hm"), chunk(reasoning="so"), STOP, DONE))
    assert record.failure is None
    assert record.first_token_ns is not None
    assert record.first_visible_ns is None
    assert record.content_chunks == 2


def test_f23_reasoning_then_answer():
    record = meet(playing(chunk(reasoning="hm"), chunk("yes"), STOP, DONE))
    assert record.first_visible_ns > record.first_token_ns
    assert record.retained_text == "yes"


def test_f23_role_and_empty_chunks_are_no_tokens():
    record = meet(playing(chunk("", role="assistant"), chunk(""), chunk("a"), chunk(""), STOP, DONE))
    assert record.content_chunks == 1
    assert record.first_chunk_ns < record.first_token_ns == record.last_token_ns
    assert record.gaps_ns == []


def test_f23_tool_calls_only():
    name = chunk(tool_calls=[{"index": 0, "id": "c", "type": "function", "function": {"name": "f"}}])
    arguments = chunk(tool_calls=[{"index": 0, "function": {"arguments": '{"a":1}'}}])
    empty = chunk(tool_calls=[{"index": 0, "function": {"arguments": ""}}])
    record = meet(playing(name, arguments, empty, chunk(finish="tool_calls"), DONE))
    assert record.failure is None
    assert record.content_chunks == 2
    assert record.first_visible_ns is None
    assert record.finish_reason == "tool_calls"


def test_f23_a_stream_without_a_token_failed():
    record = meet(playing(chunk("", role="assistant"), STOP, usage(completion_tokens=0), DONE))
    assert record.failure == "empty_stream"
    assert record.first_token_ns is None
    assert record.gaps_ns == []


@pytest.mark.parametrize(
    ("last", "got"),
    [
        ((), (None, None, None, None)),
        ((data({"choices": [], "usage": None}),), (None, None, None, None)),
        ((usage(prompt_tokens=5),), (5, None, None, None)),
        ((usage(prompt_tokens=5, completion_tokens=2, prompt_tokens_details=None),), (5, 2, None, None)),
        (
            (
                usage(
                    prompt_tokens=5,
                    completion_tokens=2,
                    prompt_tokens_details={"cached_tokens": 4},
                    completion_tokens_details={"reasoning_tokens": 1},
                ),
            ),
            (5, 2, 4, 1),
        ),
        ((usage(prompt_tokens="many", completion_tokens=2.0),), (None, 2, None, None)),
    ],
    ids=["missing", "null", "half", "no details", "all", "wrong types"],
)
def test_f23_usage(last, got):
    record = meet(playing(chunk("a"), chunk("b"), STOP, *last, DONE))
    assert record.failure is None
    counts = (record.prompt_tokens, record.completion_tokens, record.cached_tokens, record.reasoning_tokens)
    assert counts == got


def test_f23_several_choices():
    def of(index: int, text: str, finish: str | None = None) -> dict[str, object]:
        return {"index": index, "delta": {"content": text}, "finish_reason": finish}

    record = meet(
        playing(
            data({"id": "n", "choices": [of(0, "a"), of(1, "b")]}),
            data({"id": "n", "choices": [of(1, "c", "length")]}),
            data({"id": "n", "choices": [of(0, "d", "stop")]}),
            DONE,
        )
    )
    assert record.failure is None
    assert record.content_chunks == 3
    assert record.finish_reason == "stop", "of the lowest choice"
    assert record.server_request_id == "n"


def test_f23_chunks_of_several_tokens_and_shared_receives():
    async def fault(exchange: Exchange) -> None:
        await exchange.stream(chunk("one two three "), chunk("four ") + chunk("five six"))
        await exchange.send(http_chunk(STOP + usage(completion_tokens=6) + DONE), LAST_CHUNK)

    record = meet(fault)
    assert record.content_chunks == 3
    assert record.completion_tokens == 6
    assert record.shared_receive_chunks == 1
    assert record.gaps_ns[1] == 0


@pytest.mark.parametrize(
    "content",
    [[{"type": "text", "text": "a"}], [{"type": "thinking", "thinking": "a"}], "a\ud83d"],
    ids=["parts", "thinking part", "lone surrogate"],
)
def test_f23_odd_content_is_still_content(content):
    raw = (
        b"data: " + json.dumps({"choices": [{"index": 0, "delta": {"content": content}}]}).encode() + b"\n\n"
    )
    record = meet(playing(raw, STOP, DONE))
    assert record.failure is None
    assert record.content_chunks == 1


def test_f23_legacy_completions_text():
    text = data({"id": "cmpl-1", "choices": [{"index": 0, "text": "a", "finish_reason": None}]})
    record = meet(
        playing(text, text, data({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}), DONE)
    )
    assert record.failure is None
    assert record.content_chunks == 2
    assert record.first_visible_ns == record.first_token_ns


def test_bad_utf_8_is_replaced_not_fatal():
    record = meet(playing(chunk("a?b").replace(b"?", b"\xff"), STOP, DONE))
    assert record.failure is None
    assert record.retained_text == "a\ufffdb"


def test_bytes_after_done_are_nothing():
    with (
        serve(playing(chunk("a"), STOP, DONE, b"data: {broken\n\n")) as server,
        client_of(server.url) as client,
    ):
        assert client.send().failure is None
