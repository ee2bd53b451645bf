"""Single small requests to the target over httpx: one streamed, or one for its usage alone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import httpx

from kvprobe.load.chunks import Usage, read_chunk
from kvprobe.load.sse import SseSplitter, parse_event

ANSWER_TIMEOUT_S = 120.0
MAX_ANSWER_BYTES = 1 << 20
MAX_EVENTS = 2_000


@dataclass(slots=True)
class Answer:
    """What came of one request; null where it did not come."""

    status: int
    first_token_s: float | None = None
    chunks_with_text: int = 0
    finish_reason: str | None = None
    done: bool = False
    usage: Usage | None = None
    error: str | None = None
    empty_first: bool = False
    """A chunk without text (the role) came before the first one with text."""
    visible: bool = False
    """Some of the text was answer text, not reasoning."""


Endpoint = Literal["chat", "completions"]
_PATHS: dict[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


def stream_one(
    client: httpx.Client, base_url: str, model: str, text: str, max_tokens: int, endpoint: Endpoint = "chat"
) -> Answer:
    """One request, streamed, usage asked for. Never raises for the target."""
    body: dict[str, object] = {
        "model": model,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body |= {"messages": [{"role": "user", "content": text}]} if endpoint == "chat" else {"prompt": text}
    start = time.monotonic()
    answer = Answer(status=0)
    try:
        url = base_url + _PATHS[endpoint]
        with client.stream("POST", url, json=body, timeout=ANSWER_TIMEOUT_S) as response:
            answer.status = response.status_code
            if response.status_code != httpx.codes.OK:
                answer.error = f"status {answer.status}: {_head(response)}"
                return answer
            _follow(response, answer, start)
    except httpx.TimeoutException:
        answer.error = f"nothing came for {ANSWER_TIMEOUT_S:g} s"
    except httpx.HTTPError as error:
        answer.error = f"{type(error).__name__}: {error}"
    return answer


def _head(response: httpx.Response) -> str:
    data = bytearray()
    for piece in response.iter_bytes():
        data += piece
        if len(data) > 2_048:
            break
    return bytes(data[:2_048]).decode("utf-8", "replace")


def _follow(response: httpx.Response, answer: Answer, start: float) -> None:
    splitter = SseSplitter()
    received = 0
    for piece in response.iter_raw():
        received += len(piece)
        for raw in splitter.feed(piece):
            data = parse_event(raw.block).data
            if data is not None:
                _read(data, answer, start)
        if received > MAX_ANSWER_BYTES or time.monotonic() - start > ANSWER_TIMEOUT_S:
            answer.error = "the answer does not end"
            return


def _read(data: bytes, answer: Answer, start: float) -> None:
    if data.strip() == b"[DONE]":
        answer.done = True
        return
    try:
        meaning = read_chunk(data)
    except ValueError:
        answer.error = answer.error or "an event of the stream is not JSON"
        return
    if meaning.is_error:
        answer.error = answer.error or f"an error inside the stream: {data[:500].decode('utf-8', 'replace')}"
    if meaning.finish is not None:
        answer.finish_reason = meaning.finish[1]
    if meaning.usages:
        answer.usage = meaning.usages[-1]
    if not meaning.visible and not meaning.hidden:
        answer.empty_first = answer.empty_first or not answer.chunks_with_text
        return
    answer.chunks_with_text += 1
    answer.visible = answer.visible or bool(meaning.visible)
    if answer.first_token_s is None:
        answer.first_token_s = time.monotonic() - start


def cached_tokens(usage: Usage | None) -> int | None:
    """Prompt tokens that came from the prefix cache, by the usage block; null when it does not say."""
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    stated = details.cached_tokens if details is not None else None
    for alias in (usage.cached_tokens, usage.prompt_cache_hit_tokens):
        stated = alias if stated is None else stated
    return stated
