"""Connections: clients that go away, send ahead, or send no whole request."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
from collections.abc import Awaitable, Callable

import httpx
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from reference_server.connection import connections
from reference_server.limits import Limits
from reference_server.wire import json_response
from tests.reference_server.server_process import ServerProcess, until
from tests.reference_server.test_http import CHAT, chat

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(scope="module")
def slow() -> object:
    """A server whose steps are long: each computes 512 tokens of a prompt that takes sixteen."""
    with ServerProcess("--kv-memory", "64MiB", "--no-prefix-caching") as process:
        yield process


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("ahead", [b"", b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b"x" * 300_000])
def test_a_client_that_goes_away_frees_its_blocks_within_one_step(
    slow: ServerProcess, stream: bool, reset: bool, ahead: bytes
) -> None:
    """By the server's own count of steps; before a byte of the answer, whatever was sent behind it."""
    connection = slow.post_raw(CHAT, chat("x" * 8000, max_tokens=100, stream=stream))
    connection.sendall(ahead)
    until(lambda: slow.metric("num_requests_running") == 1)
    steps, gone = slow.metric("engine_steps_total"), slow.log().count(" up: the client went away")
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    until(lambda: slow.metric("num_requests_running") == 0, 60)
    assert slow.log().count(" up: the client went away") == gone + 1
    assert slow.metric("kv_blocks_used") == 0
    # The step under way is counted when it ends, and one may have begun between the count and the close.
    assert slow.metric("engine_steps_total") <= steps + 2
    assert slow.metric("generation_tokens_total") == 0


def test_requests_sent_ahead_are_answered_in_order(server: ServerProcess) -> None:
    with server.post_raw(CHAT, chat("one", max_tokens=2)) as connection:
        connection.sendall(GET.replace(b"GET /", b"GET /version"))
        connection.sendall(
            GET.replace(b"GET /", b"GET /nowhere").replace(b"x\r\n\r\n", b"x\r\nConnection: close\r\n\r\n")
        )
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    places = [answer.index(part) for part in (b"chat.completion", b'"version"', b"Not Found")]
    assert places == sorted(places)


def test_endless_bytes_behind_a_request_cut_the_connection(slow: ServerProcess) -> None:
    connection = slow.post_raw(CHAT, chat("x" * 8000, max_tokens=100))
    with connection, pytest.raises(OSError, match=r"reset|[Bb]roken pipe"):
        connection.sendall(b"x" * 64 * 1024**2)
    until(lambda: slow.metric("num_requests_running") + slow.metric("num_requests_waiting") == 0, 60)
    assert "bytes ahead of its answer" in slow.log()


async def _app(scope: Scope, receive: Receive, send: Send) -> None:
    await json_response({"path": scope["path"]})(scope, receive, send)


Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _talk(limits: Limits, talk: Talk) -> None:
    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(_app, http=connections(limits), lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve(sockets=[listener]))
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        try:
            await talk(reader, writer)
        finally:
            writer.close()
            server.should_exit = True
            await serving
            listener.close()

    asyncio.run(main())


async def _json_of(reader: asyncio.StreamReader) -> dict[str, object]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body: dict[str, object] = json.loads(await reader.readexactly(length))
    return body


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: x\r\nX-Slow: 1"])
def test_a_head_that_does_not_arrive_gets_408(sent: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        body = await _json_of(reader)
        assert body["error"]["code"] == 408  # type: ignore[index]
        assert await reader.read() == b""

    _talk(Limits(head_seconds=0.1), talk)


def test_an_idle_connection_between_requests_is_kept() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            writer.write(GET)
            assert await _json_of(reader) == {"path": "/"}
            await asyncio.sleep(0.3)
        writer.write(GET[:9])
        assert (await _json_of(reader))["error"]["code"] == 408  # type: ignore[index]

    _talk(Limits(head_seconds=0.1), talk)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    ],
)
def test_what_is_no_http_gets_a_json_error(sent: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        assert (await _json_of(reader))["error"]["code"] == 400  # type: ignore[index]
        assert await reader.read() == b""

    _talk(Limits(), talk)


def test_a_head_without_an_end_gets_431() -> None:
    """More than the parser keeps, so that no header limit of the application ever sees it."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 500_000)
        assert (await _json_of(reader))["error"]["code"] == 431  # type: ignore[index]

    _talk(Limits(), talk)


def test_what_is_no_http_is_logged_in_the_servers_own_words(slow: ServerProcess) -> None:
    for sent in (b"\x16\x03\x01\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"):
        with socket.create_connection(slow.address, timeout=30) as connection:
            connection.sendall(sent + b"Connection: Upgrade, close\r\n\r\n")
            assert connection.recv(100)
    lines = slow.log().splitlines()
    assert [line for line in lines if not re.match(r"[A-Z]+ \S+ \S+ reference_server\.\w+: ", line)] == []


def test_a_path_with_a_slash_too_many_is_not_found(client: httpx.Client) -> None:
    """No redirect: it would go where the Host header says, and a POST is not sent again."""
    reply = client.post(CHAT + "/", json=chat(), headers={"host": "elsewhere.example"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (404, 404)
    assert "location" not in reply.headers


def test_a_method_that_is_not_served_names_those_that_are(client: httpx.Client) -> None:
    for path, allowed in (("/health", {"GET", "HEAD"}), (CHAT, {"POST"})):
        reply = client.request("DELETE", path)
        assert (reply.status_code, set(reply.headers["allow"].split(", "))) == (405, allowed)
