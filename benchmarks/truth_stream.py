"""What truth_server.py streams, and what it remembers of it."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

WORDS = ("river", "stone", "amber", "cloud", "north", "cedar", "lantern", "quiet", "copper", "meadow")


@dataclass(slots=True)
class Row:
    """The truth about one request."""

    id: str
    received_ns: int
    writes_ns: list[int] = field(default_factory=list)
    """When the transport had taken each content chunk."""
    before_ns: list[int] = field(default_factory=list)
    """Just before it was given to the transport: no client can have it earlier."""
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
        gaps_ms = [(b - a) / 1e6 for r in whole for a, b in pairwise(r.writes_ns)]
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

    def __init__(
        self,
        options: argparse.Namespace,
        truth: Truth,
        write: Callable[[bytes], None],
        close: Callable[[bool], None],
    ) -> None:
        self._options = options
        self._truth = truth
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
        self._truth.begin(row)
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
            before_ns = time.monotonic_ns()
            if options.split:
                self._put(data[: len(data) // 2])
                self._put(data[len(data) // 2 :])
            else:
                self._put(data)
            self._note_written(before_ns)

    def _note_written(self, before_ns: int) -> None:
        """A chunk that was held back left together with those after it."""
        self._row.writes_ns += [time.monotonic_ns()] * self._held_chunks
        self._row.before_ns += [before_ns] * self._held_chunks
        self._held_chunks = 0

    def _end(self, *, done: bool) -> None:
        data, self._held = self._held, b""
        if done:
            data += self._event({}, finish="length")
            if self._usage is not None:
                data += self._document({"choices": [], "usage": self._usage})
            data += b"data: [DONE]\n\n"
        if data:
            before_ns = time.monotonic_ns()
            self._put(data)
            self._note_written(before_ns)
        self._write(b"0\r\n\r\n")
        self._finish()
        self._close(False)

    def _finish(self) -> None:
        self._timer = None
        self._truth.end(self._row)

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
