"""What a request may cost before it is understood, and who may ask."""

from __future__ import annotations

import asyncio
import hmac
import re
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from reference_server.errors import RequestError
from reference_server.refusals import log_refusal
from reference_server.wire import error_response

BodyT = TypeVar("BodyT")

MIB = 1024**2


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes unless named otherwise.

    A body of 1 MiB is about 30 times the longest prompt of 32,768 one-byte tokens.
    """

    body: int = MIB
    headers: int = 32 * 1024
    header_count: int = 100
    json_depth: int = 64
    head_seconds: float = 10.0
    """For a request's line and headers to arrive, from their first byte or the connection's start."""
    body_seconds: float = 10.0
    """For the body to arrive."""
    write_seconds: float = 30.0
    """For a client to take one piece of an answer, before it is given up."""
    request_seconds: float = 600.0
    """From a request's arrival to its last token."""
    queued_events: int = 1024
    """Tokens that may wait for a client that does not read."""
    streams: int = 512
    """Requests open at once."""


class HeaderLimit:
    """Refuses too many or too large headers, with 431."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = scope["headers"]
            size = sum(len(name) + len(value) for name, value in headers)
            if len(headers) > self._limits.header_count or size > self._limits.headers:
                refusal = RequestError(
                    431,
                    f"at most {self._limits.header_count} headers of {self._limits.headers} bytes together",
                    own_words=True,
                )
                log_refusal(refusal)
                await error_response(refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class BearerKey:
    """Wants `Authorization: Bearer KEY` on everything but health, version and metrics, as vLLM."""

    OPEN_PATHS = frozenset({"/health", "/version", "/metrics"})

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._expected = f"bearer {key}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in self.OPEN_PATHS and not self._allowed(scope):
            refusal = RequestError(
                401, "a valid API key is needed: send it as a bearer token", own_words=True
            )
            log_refusal(refusal)
            await error_response(refusal)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allowed(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = given.partition(b" ")
        return hmac.compare_digest(scheme.lower() + b" " + key.strip(), self._expected)


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body, within its size and time."""
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > limits.body:
        raise _too_large(limits)
    body = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for piece in request.stream():
                body += piece
                if len(body) > limits.body:
                    raise _too_large(limits)
    except TimeoutError:
        raise RequestError(
            408, f"the body did not arrive within {limits.body_seconds:g} s", own_words=True
        ) from None
    except ClientDisconnect:
        raise RequestError(400, "the client went away before its body was read") from None
    return bytes(body)


def _too_large(limits: Limits) -> RequestError:
    return RequestError(413, f"the body is larger than {limits.body} bytes", own_words=True)


async def read_json(request: Request, kind: type[BodyT], limits: Limits) -> BodyT:
    """The body as a typed object."""
    return parse_json(await read_body(request, limits), kind, limits)


def parse_json(body: bytes, kind: type[BodyT], limits: Limits) -> BodyT:
    """A typed object; 400 with the place of the fault otherwise."""
    check_depth(body, limits.json_depth)
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise RequestError(400, str(error)[:500], param=_field_of(str(error))) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(400, f"the body is no valid JSON: {str(error)[:200]}") from error


# A string without an end runs to the end of the body: were it no match, each quote in it would be tried
# anew, and the search would be quadratic.
_STRUCTURE = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[{]|[\]}]', re.DOTALL)
_FIELD = re.compile(r"\$\.([A-Za-z_]{1,64})")


def check_depth(body: bytes, limit: int) -> None:
    """Refuse nesting beyond `limit`, before a recursive parser sees it. Linear in the body."""
    if body.count(b"[") + body.count(b"{") <= limit:
        return
    depth = 0
    for match in _STRUCTURE.finditer(body):
        first = body[match.start()]
        if first in b"[{":
            depth += 1
            if depth > limit:
                raise RequestError(400, f"the JSON body is nested deeper than {limit}", own_words=True)
        elif first in b"]}":
            depth -= 1


def _field_of(message: str) -> str | None:
    found = _FIELD.search(message)
    return found[1] if found else None
