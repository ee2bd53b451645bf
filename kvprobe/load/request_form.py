"""The form of a request: its bytes, and the limits that it runs under."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kvprobe.load.job import PlannedRequest
from kvprobe.load.sse import DEFAULT_MAX_EVENT_BYTES


@dataclass(frozen=True, slots=True)
class Timeouts:
    """All finite, seconds: to connect, from sending to the first token, between data events, in all."""

    connect_s: float
    first_token_s: float
    gap_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """What all requests of a run have in common. `head` ends before Content-Length's value."""

    chat: bool
    model: str
    timeouts: Timeouts
    head: str
    fields: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request body; they win over ours."""
    worker: str = "0"
    max_event_bytes: int = DEFAULT_MAX_EVENT_BYTES
    cancel_share: float = 0.0
    """Of the measured requests, so many are given up by us after `cancel_after` content chunks."""
    cancel_after: int = 0
    seed: int = 1
    obey_retry_after: bool = False

    def cancels(self, planned: PlannedRequest) -> bool:
        """Whether this request is one to give up: follows from seed and index alone, as lengths do."""
        if not self.cancel_share or planned.warmup:
            return False
        text = f"{self.seed}\0cancel\0{planned.index}"
        number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
        return number < self.cancel_share * (1 << 56)


def request_head(host: str, path: str, api_key: str | None) -> str:
    """The constant part of the request head. Raises ValueError when the key cannot be a header."""
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {host}",
        "User-Agent: kvprobe",
        "Accept: text/event-stream, application/json",
        "Accept-Encoding: identity",
        "Content-Type: application/json",
    ]
    if api_key is not None:
        if not api_key.isascii() or not api_key.isprintable():
            raise ValueError("the API key holds characters that a header cannot carry")
        lines.append(f"Authorization: Bearer {api_key}")
    return "\r\n".join(lines) + "\r\n"


def build_request(planned: PlannedRequest, spec: StreamSpec, request_id: str) -> bytes:
    """The bytes of one request, head and body, sent in one piece."""
    body: dict[str, Any] = {"model": spec.model}
    if spec.chat:
        body["messages"] = planned.messages or [{"role": "user", "content": planned.prompt or ""}]
    else:
        body["prompt"] = planned.text()
    body["max_tokens"] = planned.asked_completion_tokens
    body["stream"] = True
    body["stream_options"] = {"include_usage": True}
    body |= spec.fields
    encoded = msgspec.json.encode(body)
    head = f"{spec.head}X-Request-Id: {request_id}\r\nContent-Length: {len(encoded)}\r\n\r\n"
    return head.encode("ascii") + encoded
