"""Single small requests to the target over httpx: one streamed, or one for its usage alone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import httpx

from kvprobe.load.chunks import Usage, read_chunk
from kvprobe.load.sse import EventTooLarge, SseSplitter, parse_event

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


_PLAIN = {"accept-encoding": "identity"}
"""As runs ask; a proxy that compresses would hold tokens back."""
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
        with client.stream("POST", url, json=body, headers=_PLAIN, timeout=ANSWER_TIMEOUT_S) as response:
            answer.status = response.status_code
            answer.error = _refusal(response, start)
            if answer.error is None:
                _follow(response, answer, start)
    except httpx.TimeoutException:
        answer.error = f"nothing came for {ANSWER_TIMEOUT_S:g} s"
    except httpx.HTTPError as error:
        answer.error = f"{type(error).__name__}: {error}"
    return answer


def _refusal(response: httpx.Response, start: float) -> str | None:
    """Why the answer is no event stream, by its head; null where it may be one."""
    if response.status_code != httpx.codes.OK:
        location = response.headers.get("location", "").partition("?")[0][:500]
        said = f"it redirects to {location}, which is not followed" if location else _head(response, start)
        return f"status {response.status_code}: {said}"
    encoding = response.headers.get("content-encoding", "identity").strip().lower()[:100]
    if encoding not in ("", "identity"):
        return f"the answer is compressed ({encoding}), although it was asked for as it is"
    return None


def _head(response: httpx.Response, start: float) -> str:
    data = bytearray()
    for piece in response.iter_bytes():
        data += piece
        if len(data) > 2_048 or time.monotonic() - start > ANSWER_TIMEOUT_S:
            break
    return bytes(data[:2_048]).decode("utf-8", "replace")


def _follow(response: httpx.Response, answer: Answer, start: float) -> None:
    splitter = SseSplitter()
    received = 0
    for piece in response.iter_raw():
        received += len(piece)
        try:
            events = splitter.feed(piece)
        except EventTooLarge as error:
            answer.error = str(error)
            return
        for raw in events:
            data = parse_event(raw.block).data
            if data is not None:
                _read(data, answer, start)
        if answer.done:
            return  # a server that leaves the answer open behind it is not waited for
        if received > MAX_ANSWER_BYTES or time.monotonic() - start > ANSWER_TIMEOUT_S:
            answer.error = "the answer does not end"
            return
    kind = response.headers.get("content-type", "").partition(";")[0].strip()[:100]
    if answer.first_token_s is None and answer.error is None and kind != "text/event-stream":
        answer.error = f"the answer is {kind or 'of no stated type'}, not an event stream"


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
    for stated in meaning.usages:
        answer.usage = _joined(answer.usage, stated)
    if not meaning.visible and not meaning.hidden:
        answer.empty_first = answer.empty_first or not answer.chunks_with_text
        return
    answer.chunks_with_text += 1
    answer.visible = answer.visible or bool(meaning.visible)
    if answer.first_token_s is None:
        answer.first_token_s = time.monotonic() - start


def _joined(known: Usage | None, stated: Usage) -> Usage:
    """The larger counts, as a run takes them: a server may state usage in full and then empty."""
    if known is None:
        return stated

    def larger(one: int | None, other: int | None) -> int | None:
        return other if one is None else max(one, other or 0)

    return Usage(
        prompt_tokens=larger(known.prompt_tokens, stated.prompt_tokens),
        completion_tokens=larger(known.completion_tokens, stated.completion_tokens),
        cached_tokens=larger(cached_tokens(known), cached_tokens(stated)),
    )


def cached_tokens(usage: Usage | None) -> int | None:
    """Prompt tokens that came from the prefix cache, by the usage block; null when it does not say."""
    if usage is None:
        return None
    details = usage.prompt_tokens_details
    stated = details.cached_tokens if details is not None else None
    for alias in (usage.cached_tokens, usage.prompt_cache_hit_tokens):
        stated = alias if stated is None else stated
    return stated
