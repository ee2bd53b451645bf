#!/usr/bin/env python3
"""A known-truth OpenAI-style SSE server: it computes nothing and writes down when each chunk left.

A client that measures is judged against it: chunk k of a request is due at
`received + ttft + k * itl` on an absolute schedule, and what is recorded is the instant when the
transport had taken the bytes, not the plan. Raw asyncio, no web framework, so that the judge costs
as little CPU as possible. Switches play the traps that real servers set for clients.

    python benchmarks/truth_server.py --port 0 --ttft 200 --itl 20 --tokens 32

prints one JSON line with its URL when it listens. `GET /truth` gives the record as JSON (`?rows=1`
with every request: id, received_ns, writes_ns), `POST /truth/reset` forgets it. All instants are
CLOCK_MONOTONIC nanoseconds, which the processes of one machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from typing import cast

from truth_options import parse_options
from truth_stream import Answer, Row, Truth

MAX_HEAD_BYTES = 65536
MAX_BODY_BYTES = 64 << 20


class Server:
    """Options, truth, and the count of completions that switches with `every` go by."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.truth = Truth(options.truth)
        self.count = 0

    def page(self, method: str, path: str, query: str) -> tuple[str, str] | None:
        """Body and content type of a small page; None when there is none."""
        if path == "/truth":
            return json.dumps(self.truth.summary(with_rows="rows=1" in query)), "application/json"
        if path == "/truth/reset" and method == "POST":
            self.truth.reset()
            return "{}", "application/json"
        if path == "/v1/models":
            model = {"id": self.options.model, "object": "model", "max_model_len": 32768}
            return json.dumps({"object": "list", "data": [model]}), "application/json"
        if path == "/metrics":
            return self._metrics(), "text/plain; version=0.0.4"
        if path in ("/", "/health"):
            return '{"status":"ok"}', "application/json"
        return None

    def _metrics(self) -> str:
        usage = min(1.0, self.truth.open / self.options.kv_slots)
        values = {
            "num_requests_running": self.truth.open,
            "num_requests_waiting": 0,
            "kv_cache_usage_perc": usage,
        }
        labels = f'{{model_name="{self.options.model}",engine="0"}}'
        return "".join(f"# TYPE vllm:{n} gauge\nvllm:{n}{labels} {v}\n" for n, v in values.items())


class HttpConnection(asyncio.Protocol):
    """Just enough HTTP/1.1: keep-alive, bodies with a Content-Length, one request at a time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer = bytearray()
        self._answer: Answer | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None:
            self._answer.abandon()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._take_requests()

    def _take_requests(self) -> None:
        while self._answer is None:
            end = self._buffer.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES)
            if end < 0:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    self._close(abort=True)
                return
            lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
            length = headers.get("content-length", "0")
            size = int(length) if length.isdigit() else MAX_BODY_BYTES + 1
            if size > MAX_BODY_BYTES:
                self._close(abort=True)
                return
            if len(self._buffer) < end + 4 + size:
                return
            body = bytes(self._buffer[end + 4 : end + 4 + size])
            del self._buffer[: end + 4 + size]
            method, _, target = lines[0].partition(" ")
            self._handle(method, target.partition(" ")[0], body)

    def _handle(self, method: str, target: str, body: bytes) -> None:
        path, _, query = target.partition("?")
        if method == "POST" and path in ("/v1/chat/completions", "/v1/completions"):
            self._complete(path.endswith("chat/completions"), body)
            return
        page = self._server.page(method, path, query)
        if page is None:
            self._reply(404, json.dumps({"error": {"message": f"there is no {path}", "code": 404}}))
        else:
            self._reply(200, *page)

    def _complete(self, chat: bool, body: bytes) -> None:
        server, options = self._server, self._server.options
        row = Row("", time.monotonic_ns())
        try:
            request = json.loads(body)
        except ValueError:
            self._reply(400, '{"error":{"message":"the body is no JSON","code":400}}')
            return
        server.count += 1
        if options.status and server.count % options.status_every == 0:
            self._reply(
                options.status, json.dumps({"error": {"message": "as asked", "code": options.status}})
            )
            return
        if not request.get("stream"):
            self._reply(400, '{"error":{"message":"only streams are served here","code":400}}')
            return
        row.id = f"truth-{server.count}"
        self._answer = Answer(options, server.truth, self._write, self._answered)
        self._answer.start(row, request, chat, server.count)

    def _answered(self, abort: bool) -> None:
        self._answer = None
        if abort:
            self._close(abort=True)
        else:
            self._take_requests()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _close(self, *, abort: bool) -> None:
        if self._transport is not None:
            self._transport.abort() if abort else self._transport.close()

    def _reply(self, status: int, body: str, kind: str = "application/json") -> None:
        data = body.encode()
        head = f"HTTP/1.1 {status} Status\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
        self._write(head.encode() + data)


async def serve(options: argparse.Namespace) -> None:
    """Serve until a signal or `--max-seconds`."""
    loop = asyncio.get_running_loop()
    state = Server(options)
    listener = await loop.create_server(
        lambda: HttpConnection(state), options.host, options.port, backlog=1024
    )
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    port = listener.sockets[0].getsockname()[1]
    line = {"event": "listening", "url": f"http://{options.host}:{port}", "pid": os.getpid()}
    print(json.dumps(line), flush=True)
    try:
        await asyncio.wait_for(stop.wait(), options.max_seconds)
    except TimeoutError:
        print("truth_server: its time is up", file=sys.stderr)
    listener.close()
    state.truth.reset()


def main() -> None:
    """uvloop when it is there: the judge should be the last to be late."""
    options = parse_options(__doc__)
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(options))
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(options))


if __name__ == "__main__":
    main()
