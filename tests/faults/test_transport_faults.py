"""F4-F8, F18, F22 and their neighbours: what the wire does to a stream, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from dataclasses import replace

import pytest

from kvprobe.load import stream
from tests.faults.client import PATIENT, client_of, meet
from tests.faults.kit import (
    DONE,
    LAST_CHUNK,
    OK_HEAD,
    Exchange,
    answer,
    chunk,
    http_chunk,
    playing,
    serve,
    usage,
)

WHOLE = (
    chunk("one "),
    chunk("two "),
    chunk(finish="stop"),
    usage(prompt_tokens=3, completion_tokens=2),
    DONE,
)


async def reset_at_once(exchange: Exchange) -> None:
    await exchange.request()
    await exchange.reset()


async def close_at_once(exchange: Exchange) -> None:
    await exchange.request()


async def reset_in_the_head(exchange: Exchange) -> None:
    await exchange.request()
    await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Ty")
    await exchange.reset()


@pytest.mark.parametrize("fault", [reset_at_once, close_at_once, reset_in_the_head])
def test_f4_reset_before_headers(fault):
    with serve(fault) as server, client_of(server.url) as client:
        record = client.send()
        assert server.connections == 1, "a new connection that fails is a failure, not a reason to retry"
    assert record.failure == "reset_before_headers"
    assert record.sent_ns is not None
    assert record.first_token_ns is None
    assert record.status_code is None


def test_f5_reset_mid_stream_keeps_the_partial_tokens():
    async def fault(exchange: Exchange) -> None:
        await exchange.stream(chunk("a"), chunk("b"), chunk("c"))
        await exchange.reset()

    record = meet(fault)
    assert record.failure == "reset_mid_stream"
    assert "3 content chunks came" in record.failure_detail
    assert record.content_chunks == 3
    assert record.retained_text == "abc"
    assert record.completion_tokens is None
    assert record.finish_reason is None


@pytest.mark.parametrize("end", [b"", LAST_CHUNK], ids=["FIN", "end of the chunked body"])
def test_f6_clean_end_without_finish_is_truncated(end):
    async def fault(exchange: Exchange) -> None:
        await exchange.stream(chunk("a"), chunk("b"))
        await exchange.send(end)

    record = meet(fault)
    assert record.failure == "truncated"
    assert "2 content chunks came" in record.failure_detail


def test_f6_half_an_event_at_the_end_is_truncated_and_not_a_token():
    async def fault(exchange: Exchange) -> None:
        await exchange.stream(chunk("a"), chunk("b")[:20])
        await exchange.send(LAST_CHUNK)

    record = meet(fault)
    assert record.failure == "truncated"
    assert record.content_chunks == 1


@pytest.mark.parametrize("last", [DONE, chunk(finish="length")], ids=["DONE", "finish reason"])
def test_fin_after_the_end_was_said_is_no_failure(last):
    async def fault(exchange: Exchange) -> None:
        await exchange.stream(chunk("a"), last)

    assert meet(fault).failure is None


def test_an_unterminated_done_counts():
    record = meet(playing(chunk("a"), b"data: [DONE]"))
    assert record.failure is None
    assert record.content_chunks == 1


def test_a_body_that_ends_with_the_connection_is_whole():
    async def fault(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", *WHOLE)

    record = meet(fault)
    assert record.failure is None
    assert record.completion_tokens == 2


def test_f7_hang_before_the_first_byte():
    async def fault(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.hang()

    record = meet(fault, replace(PATIENT, first_token_s=0.2))
    assert record.failure == "timeout_first"
    assert record.first_byte_ns is None
    assert 0.2e9 <= record.end_ns - record.sent_ns < 3e9


@pytest.mark.parametrize("early", [chunk("", role="assistant"), b": ping\n\n", chunk("")])
def test_f7_a_role_chunk_or_a_comment_is_no_first_token(early):
    async def fault(exchange: Exchange) -> None:
        await exchange.stream(early)
        await exchange.hang()

    record = meet(fault, replace(PATIENT, first_token_s=0.5, gap_s=0.05))
    assert record.failure == "timeout_first"
    assert record.first_byte_ns is not None
    assert record.first_token_ns is None


def test_f8_hang_mid_stream():
    async def fault(exchange: Exchange) -> None:
        await exchange.stream(chunk("a"), chunk("b"), chunk("c"))
        await exchange.hang()

    record = meet(fault, replace(PATIENT, gap_s=0.2))
    assert record.failure == "timeout_gap"
    assert "3 content chunks came" in record.failure_detail
    assert len(record.gaps_ns) == 2
    assert 0.2e9 <= record.end_ns - record.last_token_ns < 4e9, "not the later limit of the first token"


def test_f8_comments_do_not_keep_a_stream_alive():
    async def fault(exchange: Exchange) -> None:
        await exchange.stream(chunk("a"))
        while True:
            await exchange.send(http_chunk(b": still here\n\n"))
            await asyncio.sleep(0.02)

    record = meet(fault, replace(PATIENT, gap_s=0.2, total_s=4.0))
    assert record.failure == "timeout_gap"


def test_the_whole_request_has_a_limit():
    async def fault(exchange: Exchange) -> None:
        await exchange.stream()
        while True:
            await exchange.send(http_chunk(chunk("a")))
            await asyncio.sleep(0.05)

    record = meet(fault, replace(PATIENT, total_s=0.4), tokens=1000)
    assert record.failure == "timeout_total"
    assert record.content_chunks > 0


def test_f19_endless_stream_is_stopped_by_its_chunks():
    async def fault(exchange: Exchange) -> None:
        await exchange.stream()
        while True:
            exchange.writer.write(http_chunk(chunk("a")) * 50)
            await exchange.writer.drain()

    record = meet(fault, tokens=100)
    assert record.failure == "protocol_error"
    assert "endless" in record.failure_detail
    assert 200 <= record.content_chunks < 1200


def test_a_server_that_never_ends_the_body_after_done_is_no_failure():
    async def fault(exchange: Exchange) -> None:
        await exchange.stream(*WHOLE)
        await exchange.hang()

    record = meet(fault)
    assert record.failure is None
    assert record.completion_tokens == 2


@pytest.mark.parametrize(
    ("head", "body", "kind"),
    [
        (OK_HEAD, b"zz\r\nhello\r\n", "decode"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", b"", "decode"),
        (
            OK_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"),
            b"3\r\n\x1f\x8b\x08\r\n",
            "decode",
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n", b"", "protocol_error"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"a" * 200_000, b"", "protocol_error"),
    ],
    ids=["chunk size", "Content-Length", "gzip", "not HTTP", "endless head"],
)
def test_f18_broken_http(head, body, kind):
    async def fault(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(head, body)
        await exchange.hang()

    assert meet(fault).failure == kind


def test_f22_a_redirect_is_refused_and_not_followed():
    async def elsewhere(exchange: Exchange) -> None:
        await exchange.request()

    with serve(elsewhere) as other:

        async def fault(exchange: Exchange) -> None:
            await exchange.request()
            location = f"Location: {other.url}/v1/chat/completions\r\n"
            await exchange.send(answer(b"", status="307 Temporary Redirect", extra=location))

        record = meet(fault)
        assert other.connections == 0
    assert record.failure == "redirect_refused"
    assert other.url in record.failure_detail
    assert record.status_code == 307


@pytest.mark.parametrize(
    ("status", "kind", "extra"),
    [
        ("401 Unauthorized", "auth", ""),
        ("403 Forbidden", "auth", ""),
        ("404 Not Found", "status", ""),
        ("429 Too Many Requests", "throttled", "Retry-After: 7\r\n"),
        ("500 Internal Server Error", "status", ""),
        ("503 Service Unavailable", "status", ""),
    ],
)
def test_statuses(status, kind, extra):
    body = b'{"error": "as asked"}' + b" " * 10_000

    async def fault(exchange: Exchange) -> None:
        while True:
            await exchange.request()
            await exchange.send(answer(body, status=status, extra=extra + "X-Request-Id: abc\r\n"))

    with serve(fault) as server, client_of(server.url) as client:
        record = client.send()
        assert client.send().failure == kind
        assert server.connections == 1, "an answer that was read to its end keeps the connection"
    assert record.failure == kind
    assert record.status_code == int(status[:3])
    assert "as asked" in record.failure_detail
    assert record.server_request_id == "abc"
    if kind == "throttled":
        assert "Retry-After: 7" in record.failure_detail


def test_refused_connection():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with client_of(f"http://127.0.0.1:{port}") as client:
        record = client.send()
    assert record.failure == "connect"
    assert record.sent_ns is None


def test_unknown_name():
    with client_of("http://no-such-host.invalid:80") as client:
        assert client.send().failure == "dns"


def test_f24_no_descriptor_left_is_the_clients_fault():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[socket.socket] = []
    with serve(playing(*WHOLE)) as server, client_of(server.url) as client:
        client.send()
        client.connection.close()
        with client_of(server.url) as late:
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
                with contextlib.suppress(OSError):  # EMFILE ends it
                    while True:
                        taken.append(socket.socket())
                record = late.send()
            finally:
                for sock in taken:
                    sock.close()
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert record.failure == "client_fd"


def test_connections_are_kept():
    with serve(playing(*WHOLE)) as server, client_of(server.url) as client:
        records = [client.send() for _ in range(3)]
        assert server.connections == 1
    assert [r.failure for r in records] == [None] * 3
    assert client.connection.reused


def test_a_stale_kept_connection_is_retried_once_on_a_new_one():
    async def fault(exchange: Exchange) -> None:
        await exchange.stream(*WHOLE)
        await exchange.send(LAST_CHUNK)
        if exchange.number == 0:
            await exchange.request()  # takes the second request, as far as TCP goes, and hangs up
            await exchange.reset()

    with serve(fault) as server, client_of(server.url) as client:
        first, second = client.send(), client.send()
        assert server.connections == 2
    assert first.failure is None
    assert second.failure is None
    assert not client.connection.reused


def test_a_connection_made_ahead_is_new_until_it_carried_a_request():
    with serve(reset_at_once) as server, client_of(server.url) as client:
        client.connection.connect()
        record = client.send()
        assert server.connections == 1
    assert record.failure == "reset_before_headers"


@pytest.mark.parametrize(
    ("bytes_before", "kind"),
    [(OK_HEAD + http_chunk(chunk("a")), "reset_mid_stream"), (OK_HEAD[:20], "reset_before_headers")],
    ids=["stream", "head"],
)
def test_a_reset_after_bytes_is_never_retried(bytes_before, kind):
    async def fault(exchange: Exchange) -> None:
        await exchange.stream(*WHOLE)
        await exchange.send(LAST_CHUNK)
        await exchange.request()
        await exchange.send(bytes_before)
        await exchange.reset()

    with serve(fault) as server, client_of(server.url) as client:
        client.send()
        record = client.send()
        assert client.connection.reused
        assert server.connections == 1
    assert record.failure == kind


def test_a_server_that_had_the_request_and_then_died_is_not_asked_again(monkeypatch):
    """Only a quick close says that the kept connection was stale."""
    monkeypatch.setattr(stream, "STALE_S", 0.05)

    async def fault(exchange: Exchange) -> None:
        await exchange.stream(*WHOLE)
        await exchange.send(LAST_CHUNK)
        await exchange.request()
        await exchange.reset(after_s=0.3)

    with serve(fault) as server, client_of(server.url) as client:
        client.send()
        record = client.send()
        assert server.connections == 1
    assert record.failure == "reset_before_headers"


def test_an_early_refusal_of_a_large_request_is_seen():
    """The server answers 413 and hangs up while we are still sending."""

    async def fault(exchange: Exchange) -> None:
        await exchange.reader.read(100)
        await exchange.send(answer(b'{"error": "too large"}', status="413 Content Too Large"))
        exchange.writer.transport.close()

    with serve(fault) as server, client_of(server.url, fields={"padding": "x" * 4_000_000}) as client:
        record = client.send()
    assert record.failure in ("status", "reset_before_headers")
