"""The reference client: bare aiohttp on uvloop that stamps each piece as it is handed over.

Nothing but the load and the stamps: what a measuring client can hope to cost. A child process of
client_truth.py: options as JSON in argv[1], prints `ready`, waits for a line on stdin, prints its
rows as one JSON line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Coroutine
from typing import Any

import aiohttp


async def one_request(session: aiohttp.ClientSession, url: str, body: bytes) -> dict[str, Any]:
    """One stream, parsed after it has ended."""
    stamps: list[tuple[int, bytes]] = []
    request: dict[str, int] = {}
    headers = {"Content-Type": "application/json"}
    async with session.post(url, data=body, headers=headers, trace_request_ctx=request) as response:
        while data := await response.content.readany():
            stamps.append((time.monotonic_ns(), data))
    return {**request, **read_stream(stamps)}


def stamp_sending() -> aiohttp.TraceConfig:
    """Sent means: with the connection in hand, as in our own client."""

    async def stamp(_: aiohttp.ClientSession, context: Any, __: Any) -> None:
        context.trace_request_ctx["sent_ns"] = time.monotonic_ns()

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(stamp)
    trace.on_connection_reuseconn.append(stamp)
    return trace


def read_stream(stamps: list[tuple[int, bytes]]) -> dict[str, Any]:
    """Id and stamps of the content chunks."""
    rest, identity, token_ns = b"", None, []
    for stamp_ns, data in stamps:
        *events, rest = (rest + data).split(b"\n\n")
        for event in events:
            if not event.startswith(b"data: {"):
                continue
            chunk = json.loads(event[6:])
            identity = chunk["id"]
            if any(choice["delta"].get("content") for choice in chunk["choices"]):
                token_ns.append(stamp_ns)
    return {"id": identity, "token_ns": token_ns}


async def load(options: dict[str, Any]) -> None:
    """`streams` users, each `rounds` requests one after the other."""
    body = json.dumps(options["body"]).encode()
    rows: list[dict[str, Any]] = []

    async def user() -> None:
        for _ in range(options["rounds"]):
            rows.append(await one_request(session, options["url"], body))

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, trace_configs=[stamp_sending()]) as session:
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        await asyncio.gather(*(user() for _ in range(options["streams"])))
    print(json.dumps(rows), flush=True)


def run(main: Coroutine[Any, Any, None]) -> None:
    """On uvloop when it is there."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main)


if __name__ == "__main__":
    run(load(json.loads(sys.argv[1])))
