"""The injection kit: raw socket servers that do one wrong thing, always in the same way.

A fault is an async function that gets an `Exchange` (one accepted connection) and plays its script
on it. `serve(fault)` runs it on a free loopback port in a thread with an event loop of its own;
no HTTP library stands between the script and the wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

OK_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def data(document: object) -> bytes:
    """An SSE event with a JSON document."""
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def chunk(text: str | None = None, *, finish: str | None = None, **delta: object) -> bytes:
    """A chat chunk as an SSE event."""
    if text is not None:
        delta["content"] = text
    return data({"id": "fault-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def usage(**counts: object) -> bytes:
    """A usage chunk as an SSE event."""
    return data({"id": "fault-1", "choices": [], "usage": counts})


def http_chunk(body: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%b\r\n" % (len(body), body)


def answer(body: bytes, kind: str = "application/json", status: str = "200 OK", extra: str = "") -> bytes:
    """A whole response with a Content-Length."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n{extra}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@dataclass
class Exchange:
    """One accepted connection, from the server's side."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    number: int
    """Connections accepted before this one."""

    async def request(self) -> bytes:
        """Head and body of the next request. Raises IncompleteReadError when the client has gone."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return head + await self.reader.readexactly(length)

    async def send(self, *pieces: bytes) -> None:
        """Write each piece on its own, with the loop in between so that it leaves on its own."""
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            await asyncio.sleep(0.005)

    async def stream(self, *events: bytes) -> None:
        """The request read, the head of a stream sent, then each event as a chunk of the body."""
        await self.request()
        await self.send(OK_HEAD, *(http_chunk(event) for event in events))

    async def reset(self, after_s: float = 0.1) -> None:
        """Close with RST: linger 0 makes the kernel throw the connection away.

        The peer's kernel may throw away what it has not read by then, so the peer is given time.
        """
        await asyncio.sleep(after_s)
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def hang(self) -> None:
        """Do nothing until the client gives up."""
        await self.reader.read()


Fault = Callable[[Exchange], Awaitable[None]]


@dataclass
class FaultServer:
    """Where it listens, and what it has seen."""

    url: str = ""
    connections: int = 0
    failures: list[BaseException] = field(default_factory=list)


@contextlib.contextmanager
def serve(fault: Fault, tls: ssl.SSLContext | None = None) -> Iterator[FaultServer]:
    """Run `fault` for every connection. An error inside a script fails the test at the end."""
    state = FaultServer()
    started = threading.Event()
    stop = asyncio.Event()
    loop = asyncio.new_event_loop()
    writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        exchange = Exchange(reader, writer, state.connections)
        state.connections += 1
        writers.append(writer)
        try:
            await fault(exchange)
            if not writer.is_closing():
                writer.close()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.transport.abort()  # the client hung up, as many tests want it to
        except asyncio.CancelledError:
            return  # the test is over; asyncio's streams would log a cancelled handler as an error
        except Exception as error:
            state.failures.append(error)

    async def main() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls, limit=1 << 20)
        port = server.sockets[0].getsockname()[1]
        state.url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        started.set()
        await stop.wait()
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        for writer in writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)  # a transport closes its socket in a later turn of the loop

    def run() -> None:
        try:
            loop.run_until_complete(main())
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="fault-server", daemon=True)
    thread.start()
    assert started.wait(10)
    try:
        yield state
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
    assert not state.failures, state.failures


def playing(*events: bytes, end: bytes = LAST_CHUNK) -> Fault:
    """A stream of these events, ended in good order and kept open for a next request."""

    async def fault(exchange: Exchange) -> None:
        while True:
            await exchange.stream(*events)
            await exchange.send(end)

    return fault


def answering(response: bytes) -> Fault:
    """The same fixed response to every request."""

    async def fault(exchange: Exchange) -> None:
        while True:
            await exchange.request()
            await exchange.send(response)

    return fault
