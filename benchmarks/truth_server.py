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
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

MAX_HEAD_BYTES = 65536
MAX_BODY_BYTES = 64 << 20
WORDS = ("river", "stone", "amber", "cloud", "north", "cedar", "lantern", "quiet", "copper", "meadow")


@dataclass(slots=True)
class Row:
    """The truth about one request."""

    id: str
    received_ns: int
    writes_ns: list[int] = field(default_factory=list)
    tokens: int = 0
    aborted: bool = False


def quantile(values: list[float], q: float) -> float | None:
    """Linear interpolation between closest ranks; None without values."""
    if not values:
        return None
    values = sorted(values)
    position = q * (len(values) - 1)
    low = int(position)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (position - low)


class Truth:
    """What the server remembers; rows go to a file when it is reset and at the end."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.rows: list[Row] = []
        self.open = 0
        self.peak_open = 0

    def begin(self, row: Row) -> None:
        self.open += 1
        self.peak_open = max(self.peak_open, self.open)

    def end(self, row: Row) -> None:
        self.open -= 1
        self.rows.append(row)

    def reset(self) -> None:
        if self._path is not None and self.rows:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(asdict(row)) + "\n" for row in self.rows)
        self.rows = []
        self.peak_open = self.open

    def summary(self, *, with_rows: bool) -> dict[str, Any]:
        whole = [row for row in self.rows if row.writes_ns and not row.aborted]
        ttft_ms = [(row.writes_ns[0] - row.received_ns) / 1e6 for row in whole]
        gaps_ms = [(b - a) / 1e6 for r in whole for a, b in zip(r.writes_ns, r.writes_ns[1:], strict=False)]
        cpu = os.times()
        document: dict[str, Any] = {
            "requests": len(self.rows),
            "completed": len(whole),
            "open": self.open,
            "peak_open": self.peak_open,
            "ttft_ms": {"p50": quantile(ttft_ms, 0.5), "p99": quantile(ttft_ms, 0.99)},
            "gap_ms": {"p50": quantile(gaps_ms, 0.5), "p99": quantile(gaps_ms, 0.99)},
            "server_cpu_s": cpu.user + cpu.system,
        }
        if with_rows:
            document["rows"] = [asdict(row) for row in self.rows]
        return document


class Answer:
    """One streamed answer, written on its absolute schedule."""

    def __init__(self, server: Server, write: Callable[[bytes], None], close: Callable[[bool], None]) -> None:
        self._options = server.options
        self._server = server
        self._write = write
        self._close = close
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._held = b""
        self._held_chunks = 0
        self._chunk = 0

    def start(self, row: Row, request: dict[str, Any], chat: bool, count: int) -> None:
        """Send the head and what comes at once, and schedule the first chunk."""
        options = self._options
        asked = request.get("max_completion_tokens") or request.get("max_tokens") or options.tokens
        self._left = min(asked, options.tokens) if options.cap else asked
        self._row, self._chat, self._asked = row, chat, self._left
        self._chunks = -(-self._left // options.tokens_per_chunk)
        self._random = random.Random(options.seed * 1_000_003 + count)
        self._stalls = bool(options.stall_ms) and count % options.stall_every == 0
        wants = request.get("stream_options") or {}
        self._usage = self._usage_of(request) if wants.get("include_usage") and not options.no_usage else None
        self._server.truth.begin(row)
        head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
        self._write(f"{head}Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        if options.comment:
            self._put(b": ping\n\n")
        if chat and options.role_chunk == "immediate":
            self._put(self._event({"role": "assistant", "content": ""}))
        self._due = self._loop.time() + options.ttft / 1e3
        self._timer = self._loop.call_at(self._due, self._step)

    def abandon(self) -> None:
        """The client is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._row.aborted = True
            self._finish()

    def _usage_of(self, request: dict[str, Any]) -> dict[str, Any]:
        text = json.dumps(request.get("messages", request.get("prompt", "")))
        prompt = max(1, len(text) // 4)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": self._asked,
            "total_tokens": prompt + self._asked,
            "prompt_tokens_details": {"cached_tokens": 0},
        }

    def _step(self) -> None:
        options, k = self._options, self._chunk
        if options.error_after is not None and k >= options.error_after:
            self._put(b'data: {"error":{"message":"the engine died","type":"server_error","code":500}}\n\n')
            self._row.aborted = True
            self._end(done=options.error_done)
            return
        if options.drop_after is not None and k >= options.drop_after:
            self._row.aborted = True
            self._finish()
            self._close(True)
            return
        tokens = min(options.tokens_per_chunk, self._left)
        self._left -= tokens
        self._chunk = k + 1
        self._send_chunk(k, tokens)
        if self._chunk >= self._chunks:
            self._end(done=True)
            return
        gap_ms = options.itl
        if self._stalls and self._chunk == options.stall_at:
            gap_ms += options.stall_ms
        if options.jitter:
            gap_ms *= 1 + self._random.uniform(-options.jitter, options.jitter)
        self._due += gap_ms / 1e3
        self._timer = self._loop.call_at(self._due, self._step)

    def _send_chunk(self, k: int, tokens: int) -> None:
        options = self._options
        text = "".join(self._random.choice(WORDS) + " " for _ in range(tokens))
        key = options.reasoning_key if k < options.reasoning else "content"
        event = self._event({key: text})
        if k == 0 and self._chat and options.role_chunk == "with-first":
            event = self._event({"role": "assistant", "content": ""}) + event
        self._held += event
        self._held_chunks += 1
        self._row.tokens += tokens
        if (k + 1) % options.coalesce == 0 or k + 1 == self._chunks:
            data, self._held = self._held, b""
            if options.split:
                self._put(data[: len(data) // 2])
                self._put(data[len(data) // 2 :])
            else:
                self._put(data)
            self._note_written()

    def _note_written(self) -> None:
        """A chunk that was held back left together with those after it."""
        self._row.writes_ns += [time.monotonic_ns()] * self._held_chunks
        self._held_chunks = 0

    def _end(self, *, done: bool) -> None:
        data, self._held = self._held, b""
        if done:
            data += self._event({}, finish="length")
            if self._usage is not None:
                data += self._document({"choices": [], "usage": self._usage})
            data += b"data: [DONE]\n\n"
        if data:
            self._put(data)
            self._note_written()
        self._write(b"0\r\n\r\n")
        self._finish()
        self._close(False)

    def _finish(self) -> None:
        self._timer = None
        self._server.truth.end(self._row)

    def _event(self, delta: dict[str, str], finish: str | None = None) -> bytes:
        said = {"delta": delta} if self._chat else {"text": delta.get("content", "")}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
        return self._document({"choices": [choice]})

    def _document(self, fields: dict[str, Any]) -> bytes:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        document = {"id": self._row.id, "object": kind, "created": 1, "model": self._options.model, **fields}
        return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"

    def _put(self, data: bytes) -> None:
        self._write(b"%x\r\n%b\r\n" % (len(data), data))


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
        self._answer = Answer(server, self._write, self._answered)
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


def positive(text: str) -> int:
    """An integer of at least 1, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def parse_options(argv: list[str] | None = None) -> argparse.Namespace:
    """The switches. Times are in milliseconds."""
    formatter = argparse.RawDescriptionHelpFormatter
    p = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=0, help="0: any free port")
    p.add_argument("--model", default="truth")
    p.add_argument("--ttft", type=float, default=200.0, help="ms from request to first content chunk")
    p.add_argument("--itl", type=float, default=20.0, help="ms between content chunks")
    p.add_argument("--tokens", type=positive, default=32, help="when the request names none")
    p.add_argument("--cap", action="store_true", help="never more than --tokens, whatever is asked")
    p.add_argument("--tokens-per-chunk", type=positive, default=1)
    p.add_argument("--role-chunk", choices=("none", "immediate", "with-first"), default="with-first")
    p.add_argument("--reasoning", type=int, default=0, help="so many first chunks are reasoning")
    p.add_argument("--reasoning-key", choices=("reasoning_content", "reasoning"), default="reasoning_content")
    p.add_argument("--no-usage", action="store_true")
    p.add_argument("--error-after", type=int, help="an error object in the stream after so many chunks")
    p.add_argument("--error-done", action="store_true", help="finish in good order after that error")
    p.add_argument("--drop-after", type=int, help="close the connection after so many chunks")
    p.add_argument("--status", type=int, default=0, help="answer with this status instead")
    p.add_argument("--status-every", type=positive, default=1, help="only every so many requests")
    p.add_argument("--split", action="store_true", help="each write in two")
    p.add_argument("--coalesce", type=positive, default=1, help="so many chunks in one write")
    p.add_argument("--comment", action="store_true", help="an SSE comment at once")
    p.add_argument("--jitter", type=float, default=0.0, help="each gap times 1 +- this")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--stall-at", type=int, default=10, help="the chunk that comes late")
    p.add_argument("--stall-ms", type=float, default=0.0)
    p.add_argument("--stall-every", type=positive, default=1, help="only every so many requests")
    p.add_argument("--kv-slots", type=positive, default=128, help="open requests that count as a full cache")
    p.add_argument("--truth", type=Path, help="append rows to this JSONL file at reset and at the end")
    p.add_argument("--max-seconds", type=float, default=3600.0, help="end by itself")
    return p.parse_args(argv)


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
    options = parse_options()
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(options))
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(options))


if __name__ == "__main__":
    main()
