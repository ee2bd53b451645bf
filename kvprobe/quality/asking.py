"""Asking one server all questions: greedy, one seed, answers in the order of the questions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx

from kvprobe.errors import Problem, TargetError
from kvprobe.quality.items import Item

ANSWER_TIMEOUT_S = 300.0
MAX_ANSWER_BYTES = 4 << 20
SEED = 1
TOP = 5
"""Alternatives asked for beside the chosen token, where the server gives any."""


@dataclass(slots=True)
class Given:
    """One answer. `tokens` and `logprobs` are null where the server gives none."""

    text: str = ""
    finish_reason: str | None = None
    tokens: list[str] | None = None
    logprobs: list[float] | None = None
    error: str | None = None


@dataclass(slots=True)
class Side:
    """A server under test."""

    name: str
    base_url: str
    model: str
    client: httpx.Client
    endpoint: str = "chat"
    logprobs: bool = True
    """Asked for until the server refuses them."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, item: Item) -> Given:
        """Never raises for the server: what went wrong stands in `error`."""
        given = self._post(item, logprobs=self.logprobs)
        if given.error is not None and given.error.startswith("status 4") and self.logprobs:
            without = self._post(item, logprobs=False)
            if without.error is None:
                with self._lock:
                    self.logprobs = False
                return without
        return given

    def _post(self, item: Item, *, logprobs: bool) -> Given:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": item.max_tokens,
            "temperature": 0,
            "seed": SEED,
            "stream": False,
        }
        if self.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": item.text}]
            body |= {"logprobs": True, "top_logprobs": TOP} if logprobs else {}
        else:
            body["prompt"] = item.text
            body |= {"logprobs": TOP} if logprobs else {}
        path = "/v1/chat/completions" if self.endpoint == "chat" else "/v1/completions"
        try:
            response = self.client.post(f"{self.base_url}{path}", json=body, timeout=ANSWER_TIMEOUT_S)
        except httpx.HTTPError as error:
            return Given(error=f"{type(error).__name__}: {error}")
        if response.status_code != httpx.codes.OK:
            return Given(error=f"status {response.status_code}: {response.text[:300]}")
        return _read(response)


def _read(response: httpx.Response) -> Given:
    if len(response.content) > MAX_ANSWER_BYTES:
        return Given(error="the answer is far too large")
    try:
        choice = response.json()["choices"][0]
        message = choice.get("message")
        text = message.get("content") if isinstance(message, dict) else choice.get("text")
        if isinstance(message, dict) and not text:
            text = message.get("reasoning_content") or message.get("reasoning")
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
        return Given(error="the answer has another form than OpenAI's")
    given = Given(
        text=text if isinstance(text, str) else "", finish_reason=_text(choice.get("finish_reason"))
    )
    given.tokens, given.logprobs = _logprobs(choice.get("logprobs"))
    return given


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _logprobs(found: Any) -> tuple[list[str] | None, list[float] | None]:
    """Chat's `content` list, or the lists of `/v1/completions`."""
    if not isinstance(found, dict):
        return None, None
    content = found.get("content")
    if isinstance(content, list):
        pairs = [(e.get("token"), e.get("logprob")) for e in content if isinstance(e, dict)]
    elif isinstance(found.get("tokens"), list) and isinstance(found.get("token_logprobs"), list):
        pairs = list(zip(found["tokens"], found["token_logprobs"], strict=False))
    else:
        return None, None
    tokens = [t for t, _ in pairs if isinstance(t, str)]
    values = [float(v) for _, v in pairs if isinstance(v, int | float)]
    return (tokens, values) if pairs and len(tokens) == len(values) == len(pairs) else (None, None)


def ask_all(
    side: Side, questions: Sequence[Item], *, at_once: int, done: Callable[[int], None] = lambda n: None
) -> list[Given]:
    """Answers in order. Raises `TargetError` when the server answers none of the first questions."""
    answered = 0
    lock = threading.Lock()

    def one(item: Item) -> Given:
        nonlocal answered
        given = side.ask(item)
        with lock:
            answered += 1
            done(answered)
        return given

    first = [one(item) for item in questions[:1]]
    if first and first[0].error is not None:
        time.sleep(0.5)
        first = [one(questions[0])]
        if first[0].error is not None:
            message = f"{side.name} ({side.base_url}) does not answer: {first[0].error}"
            raise TargetError(Problem("no_answer", message, "see `kvprobe doctor` for this address"))
    with ThreadPoolExecutor(at_once) as pool:
        return [*first, *pool.map(one, questions[1:])]
