"""A server that computes nothing: it streams tokens by the clock, so that whatever is late is the client.

`python -m kvprobe.doctor.null_server` prints its port and ends when its stdin closes. It binds
127.0.0.1 alone. 50 ms to the first token, 20 ms between tokens, 32 tokens.
"""

from __future__ import annotations

import asyncio
import json
import sys

FIRST_TOKEN_S = 0.05
GAP_S = 0.02
TOKENS = 32
MAX_HEADER_BYTES = 32 * 1024
MODEL = "null"
_MODELS = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while head := await _request(reader):
            method, path = head
            if method == "POST" and path.startswith("/v1/"):
                await _stream(writer)
            elif path == "/v1/models":
                _answer(writer, 200, _MODELS)
            else:
                _answer(writer, 404, b"{}")
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
        pass  # the client has gone, or sent what no client of ours sends
    finally:
        writer.close()


async def _request(reader: asyncio.StreamReader) -> tuple[str, str] | None:
    """Method and path of the next request; its body is read and dropped."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    lines = head.split("\r\n")
    length = next((int(x.split(":", 1)[1]) for x in lines if x.lower().startswith("content-length:")), 0)
    await reader.readexactly(length)
    method, path, *_ = lines[0].split(" ")
    return method, path


def _answer(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
    head = f"HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def _stream(writer: asyncio.StreamWriter) -> None:
    """Each token at an instant that was fixed when the request came."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    for number in range(TOKENS):
        due = start + FIRST_TOKEN_S + number * GAP_S
        await asyncio.sleep(max(0.0, due - loop.time()))
        finish = "length" if number == TOKENS - 1 else None
        choice = {"index": 0, "delta": {"content": " word"}, "text": " word", "finish_reason": finish}
        _event(writer, {"id": "n", "choices": [choice]})
        await writer.drain()
    usage = {"prompt_tokens": 8, "completion_tokens": TOKENS, "total_tokens": TOKENS + 8}
    _event(writer, {"id": "n", "choices": [], "usage": usage})
    _chunk(writer, b"data: [DONE]\n\n")
    writer.write(b"0\r\n\r\n")


def _event(writer: asyncio.StreamWriter, value: object) -> None:
    _chunk(writer, b"data: " + json.dumps(value).encode() + b"\n\n")


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


async def main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, limit=MAX_HEADER_BYTES, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    loop = asyncio.get_running_loop()
    async with server:
        await loop.run_in_executor(None, sys.stdin.buffer.read)


if __name__ == "__main__":
    asyncio.run(main())
