"""The bytes of answers, in OpenAI's form.

A stream's chunks differ only in a few characters, so what stays the same is encoded once a request:
the event loop shares the CPU with the model.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from starlette.responses import Response

from reference_server.errors import RequestError
from reference_server.sequence import FinishReason

_encode = msgspec.json.encode

DONE = b"data: [DONE]\n\n"


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(_encode(content), status, headers, media_type="application/json")


def error_body(error: RequestError) -> dict[str, Any]:
    return {
        "error": {"message": error.message, "type": error.kind, "param": error.param, "code": error.status}
    }


def error_response(error: RequestError) -> Response:
    # After a refusal before the body was read, the rest of it must not be taken for a new request.
    headers = dict(error.headers)
    if error.status in (408, 413, 431):
        headers["connection"] = "close"
    return json_response(error_body(error), error.status, headers)


def error_event(message: str) -> bytes:
    """An error inside a stream whose status is already sent."""
    return b"data: " + _encode(error_body(RequestError(500, message))) + b"\n\n"


def usage(num_prompt: int, num_output: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": num_prompt,
        "total_tokens": num_prompt + num_output,
        "completion_tokens": num_output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


class ChunkWriter:
    """The server-sent events of one stream."""

    def __init__(self, *, chat: bool, request_id: str, model: str) -> None:
        self._chat = chat
        head = {
            "id": request_id,
            "object": "chat.completion.chunk" if chat else "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._head = b"data: " + _encode(head)[:-1]
        self._before_text = (
            self._head + b',"choices":[{"index":0,' + (b'"delta":{"content":' if chat else b'"text":')
        )
        self._after_text = (b"}" if chat else b"") + b',"logprobs":'
        self._no_text = self._after_text + b'null,"finish_reason":null}]}\n\n'
        self._opened = False

    def token(
        self,
        text: str,
        finished: FinishReason | None,
        stopped_by: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> bytes:
        """One token; the first of a chat comes with the role, in one write."""
        chunk = self._before_text + _encode(text) + self._after_text
        chunk += (b"null" if logprobs is None else _encode(logprobs)) + b',"finish_reason":'
        if finished is None:
            chunk += b"null}]}\n\n"
        else:
            chunk += b'"' + finished.value.encode() + b'","stop_reason":' + _encode(stopped_by) + b"}]}\n\n"
        if self._chat and not self._opened:
            chunk = self._role() + chunk
        self._opened = True
        return chunk

    def opening(self) -> bytes:
        """A chunk before the first token: a chat's role, or no text at all."""
        self._opened = True
        return self._role() if self._chat else self._before_text + b'""' + self._no_text

    def _role(self) -> bytes:
        choices = b',"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        return self._head + choices + b'"finish_reason":null}]}\n\n'

    def usage(self, numbers: dict[str, Any]) -> bytes:
        return self._head + b',"choices":[],"usage":' + _encode(numbers) + b"}\n\n"


def whole_answer(
    *,
    chat: bool,
    request_id: str,
    model: str,
    text: str,
    finished: FinishReason,
    stopped_by: str | None,
    logprobs: dict[str, Any] | None,
    numbers: dict[str, Any],
) -> dict[str, Any]:
    """The answer to a request that does not stream."""
    choice: dict[str, Any] = {"index": 0}
    if chat:
        choice["message"] = {"role": "assistant", "content": text}
    else:
        choice["text"] = text
    choice |= {"logprobs": logprobs, "finish_reason": finished.value, "stop_reason": stopped_by}
    return {
        "id": request_id,
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": numbers,
    }
