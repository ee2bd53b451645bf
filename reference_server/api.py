"""The HTTP side: OpenAI's endpoints, vLLM's `/tokenize`, health and metrics."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reference_server import __version__
from reference_server.answer import Answer, AnswerForm
from reference_server.config import ServerConfig
from reference_server.detokenizer import TextStream
from reference_server.engine import Engine
from reference_server.errors import RequestError
from reference_server.limits import BearerKey, HeaderLimit, Limits, parse_json, read_body, read_json
from reference_server.logprobs import ChatLogprobs, CompletionLogprobs, Form
from reference_server.metrics import Metrics
from reference_server.models.tokenizer import Tokenizer
from reference_server.openapi import document
from reference_server.parameters import refuse_unserved
from reference_server.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
    resolve_max_tokens,
)
from reference_server.refusals import log_refusal
from reference_server.sampler import TokenChooser
from reference_server.sequence import Sequence, Timeline
from reference_server.sick import answer_kind
from reference_server.streams import TokenStream
from reference_server.wire import error_response, json_response

GenerationT = TypeVar("GenerationT", ChatRequest, CompletionRequest)

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Api:
    """The handlers. They run on the event loop and compute nothing but tokens of text."""

    def __init__(
        self, config: ServerConfig, engine: Engine, tokenizer: Tokenizer, metrics: Metrics, limits: Limits
    ) -> None:
        self._config = config
        self._engine = engine
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._limits = limits
        self._created = int(time.time())
        self._open = 0
        self._answer_kind = answer_kind(config.ailments)
        # Requests without a seed of their own still repeat from one start of the server to the next.
        self._seeds = itertools.count(config.seed)

    def app(self) -> Starlette:
        post = {
            "/v1/chat/completions": self.chat,
            "/v1/completions": self.completions,
            "/tokenize": self.tokenize,
            "/detokenize": self.detokenize,
        }
        get = {
            "/v1/models": self.models,
            "/health": self.health,
            "/version": self.version,
            "/metrics": self.metrics,
            "/openapi.json": self.openapi,
        }
        routes = [Route(path, handler, methods=["POST"]) for path, handler in post.items()]
        routes += [Route(path, handler, methods=["GET"]) for path, handler in get.items()]
        middleware = [Middleware(HeaderLimit, limits=self._limits)]
        if self._config.api_key is not None:
            middleware.append(Middleware(BearerKey, key=self._config.api_key))
        app = Starlette(
            routes=routes,
            middleware=middleware,
            exception_handlers={RequestError: _refused, HTTPException: _http_error, Exception: _broken},
        )
        # A redirect would be made of the Host header, and clients repeat no POST.
        app.router.redirect_slashes = False
        return app

    async def chat(self, request: Request) -> Answer:
        async with self._slot() as slot:
            body = await self._read(request, ChatRequest)
            return slot.hand_over(self._answer(body, chat=True))

    async def completions(self, request: Request) -> Answer:
        async with self._slot() as slot:
            body = await self._read(request, CompletionRequest)
            return slot.hand_over(self._answer(body, chat=False))

    async def _read(self, request: Request, kind: type[GenerationT]) -> GenerationT:
        raw = await read_body(request, self._limits)
        body = parse_json(raw, kind, self._limits)
        refuse_unserved(raw)
        return body

    async def tokenize(self, request: Request) -> Response:
        body = await read_json(request, TokenizeRequest, self._limits)
        self._check_model(body.model)
        tokens = body.encode(self._tokenizer)
        return json_response(
            {
                "count": len(tokens),
                "max_model_len": self._config.max_model_len,
                "tokens": tokens,
                "token_strs": None,
            }
        )

    async def detokenize(self, request: Request) -> Response:
        body = await read_json(request, DetokenizeRequest, self._limits)
        self._check_model(body.model)
        if not all(0 <= token < self._tokenizer.vocabulary_size for token in body.tokens):
            raise RequestError(400, "tokens has ids outside the vocabulary", param="tokens")
        return json_response({"prompt": self._tokenizer.decode(body.tokens)})

    async def models(self, request: Request) -> Response:
        card = {
            "id": self._config.served_model,
            "object": "model",
            "created": self._created,
            "owned_by": "kvprobe",
            "root": self._config.served_model,
            "parent": None,
            "max_model_len": self._config.max_model_len,
            "model_config": self._engine.state.model_config,
        }
        return json_response({"object": "list", "data": [card]})

    async def health(self, request: Request) -> Response:
        if self._engine.death is not None:
            raise RequestError(503, "the engine died")
        return Response(status_code=200)

    async def version(self, request: Request) -> Response:
        return json_response({"version": __version__})

    async def openapi(self, request: Request) -> Response:
        return json_response(document())

    async def metrics(self, request: Request) -> Response:
        return Response(self._metrics.page(), media_type=METRICS_TYPE)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[_Slot]:
        """One of the open requests that are allowed; given back here unless an answer took it."""
        if self._open >= self._limits.streams:
            raise RequestError(
                429,
                f"{self._limits.streams} requests are open already; try again",
                headers={"retry-after": "1"},
                own_words=True,
            )
        self._open += 1
        slot = _Slot(self._close_one)
        try:
            yield slot
        finally:
            if not slot.handed_over:
                self._close_one()

    def _close_one(self) -> None:
        self._open -= 1

    def _answer(self, body: ChatRequest | CompletionRequest, *, chat: bool) -> Answer:
        if self._engine.death is not None:
            raise RequestError(503, "the engine died")
        self._check_model(body.model)
        body.check()
        tokens = body.encode(self._tokenizer)
        allocator = self._engine.allocator
        max_tokens = resolve_max_tokens(
            body.wanted_tokens(),
            num_prompt_tokens=len(tokens),
            max_model_len=self._config.max_model_len,
            capacity_tokens=allocator.capacity_tokens,
            block_size=allocator.block_size,
        )
        request_id = ("chatcmpl-" if chat else "cmpl-") + secrets.token_hex(8)
        sequence = Sequence(
            request_id=request_id,
            tokens=tokens,
            num_prompt_tokens=len(tokens),
            max_tokens=max_tokens,
            chooser=TokenChooser(body.sampling(next(self._seeds))),
            text=TextStream(self._tokenizer, body.stops()),
            chain=self._engine.chain(body.cache_salt),
            timeline=Timeline(arrived=time.monotonic()),
            stop_tokens=frozenset() if body.ignore_eos else self._tokenizer.eos_tokens,
            min_tokens=body.checked_min_tokens(max_tokens),
            logprobs=body.alternatives(),
        )
        stream = TokenStream(request_id, self._limits.queued_events, self._engine.abort)
        form = AnswerForm(
            self._config.served_model,
            chat,
            body.stream,
            body.include_usage,
            logprobs=None if sequence.logprobs is None else _logprobs_form(self._tokenizer, chat=chat),
        )
        return self._answer_kind(
            self._engine,
            sequence,
            stream,
            form,
            write_seconds=self._limits.write_seconds,
            deadline_seconds=self._limits.request_seconds,
        )

    def _check_model(self, model: str | None) -> None:
        if model is not None and model != self._config.served_model:
            raise RequestError(
                404,
                f"The model `{model[:100]}` does not exist. Available: {self._config.served_model}.",
                param="model",
            )


def _logprobs_form(tokenizer: Tokenizer, *, chat: bool) -> Form:
    return ChatLogprobs(tokenizer) if chat else CompletionLogprobs(tokenizer)


class _Slot:
    """The right to keep a request open, passed on to its answer."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close
        self.handed_over = False

    def hand_over(self, answer: Answer) -> Answer:
        self.handed_over = True
        answer.on_close = self._close
        return answer


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    log_refusal(error)
    return error_response(error)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    refusal = RequestError(error.status_code, error.detail, headers=error.headers)
    log_refusal(refusal)
    return error_response(refusal)


async def _broken(request: Request, error: Exception) -> Response:
    # Uvicorn closes behind a handler that failed: the client should not send another request into that.
    words = "an internal error; see the server's log"
    return error_response(RequestError(500, words, headers={"connection": "close"}))
