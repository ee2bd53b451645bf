"""The OpenAPI description that the server gives of itself, from the very types that it parses by."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from reference_server import __version__
from reference_server.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

_POSTS: dict[str, tuple[type, str]] = {
    "/v1/chat/completions": (ChatRequest, "Generate a chat message."),
    "/v1/completions": (CompletionRequest, "Continue a prompt."),
    "/tokenize": (TokenizeRequest, "Token ids of a prompt or of messages."),
    "/detokenize": (DetokenizeRequest, "Text of token ids."),
}
_GETS = {
    "/v1/models": ("application/json", "The served model."),
    "/version": ("application/json", "The server's version."),
    "/openapi.json": ("application/json", "This description."),
    "/metrics": ("text/plain", "Prometheus exposition."),
    "/health": (None, "200 while the engine lives."),
}
_STREAMED = ("/v1/chat/completions", "/v1/completions")
_REFUSALS = {
    "400": "The request cannot be understood, or could never be served.",
    "401": "A key is needed.",
    "404": "No such model or path.",
    "405": "Another method is served here.",
    "408": "Too late: the request's body, or the answer.",
    "413": "The body is too large.",
    "429": "Too many requests are open.",
    "431": "The headers are too large.",
    "500": "The request failed.",
    "503": "The engine died.",
}
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
        }
    },
}


@cache
def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    kinds = [kind for kind, _ in _POSTS.values()]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {}
    for (path, (_, text)), schema in zip(_POSTS.items(), schemas, strict=True):
        content: dict[str, Any] = {"application/json": {"schema": {}}}
        if path in _STREAMED:
            content["text/event-stream"] = {"schema": {}}
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        paths[path] = {"post": _operation(text, content, requestBody=body)}
    for path, (media, text) in _GETS.items():
        paths[path] = {"get": _operation(text, {media: {"schema": {}}} if media else None)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "kvprobe reference server", "version": __version__},
        "paths": paths,
        "components": {"schemas": {**components, "Error": _ERROR_SCHEMA}},
    }


def _operation(text: str, content: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    answers: dict[str, Any] = {"200": {"description": "Done.", **({"content": content} if content else {})}}
    answers |= {code: {"description": why, "content": error} for code, why in _REFUSALS.items()}
    return {"summary": text, "responses": answers, **more}
