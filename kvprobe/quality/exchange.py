"""One question over HTTP: the request's body, and an answer that is read within bounds."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

from kvprobe.quality.given import Given, read_answer
from kvprobe.quality.items import Item

ANSWER_TIMEOUT_S = 300.0
CONNECT_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 4 << 20
MAX_ERROR_CHARS = 300
SEED = 1
TOP = 5
"""Alternatives asked for beside the chosen token, where the server gives any."""
DEFAULT_WAIT_S = 1.0
_PATIENCE = (429, 503)
_WITHOUT = (400, 404, 422, 501)
"""How servers refuse log probabilities; asked again without, one that minded only those answers."""
_ACCESS = (401, 403)


@dataclass(slots=True)
class Exchange:
    """Where one server is asked, and how."""

    base_url: str
    model: str
    client: httpx.Client
    endpoint: str = "chat"
    logprobs: bool = True
    """Asked for until the server refuses them."""

    def ask(self, item: Item) -> Given:
        """Never raises for the server: what went wrong stands in `error`."""
        wanted = self.logprobs
        given = self._post(item, logprobs=wanted)
        if given.refused and wanted:
            without = self._post(item, logprobs=False)
            if without.error is None:
                self.logprobs = False
                return without
        return given

    def _post(self, item: Item, *, logprobs: bool) -> Given:
        path = "/v1/chat/completions" if self.endpoint == "chat" else "/v1/completions"
        try:
            # Escaped to ASCII: a dataset may hold half a surrogate pair, which UTF-8 has no form for.
            content = json.dumps(self._body(item, logprobs=logprobs)).encode()
            status, headers, body = self._exchanged(f"{self.base_url}{path}", content)
        except (httpx.HTTPError, httpx.StreamError) as error:
            return Given(error=f"{type(error).__name__}: {error}", broken=True)
        if body is None:
            return Given(error=f"the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB", broken=True)
        if status == httpx.codes.OK:
            return read_answer(body)
        said = " ".join(body[: 4 * MAX_ERROR_CHARS].decode("utf-8", "replace").split())[:MAX_ERROR_CHARS]
        return Given(
            error=f"status {status}: {said}",
            broken=status >= 500 or status in _ACCESS or status < 400,
            refused=status in _WITHOUT,
            wait_s=_wait_s(headers) if status in _PATIENCE else None,
        )

    def _body(self, item: Item, *, logprobs: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": item.max_tokens,
            "temperature": 0,
            "seed": SEED,
            "stream": False,
        }
        if self.endpoint == "chat":
            body["messages"] = [{"role": "user", "content": item.text}]
            return body | ({"logprobs": True, "top_logprobs": TOP} if logprobs else {})
        body["prompt"] = item.text
        return body | ({"logprobs": TOP} if logprobs else {})

    def _exchanged(self, url: str, content: bytes) -> tuple[int, httpx.Headers, bytes | None]:
        """Status, headers and body; null for a body beyond the bound. Raises `httpx.HTTPError`."""
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
        headers = {"content-type": "application/json"}
        body = bytearray()
        with self.client.stream("POST", url, content=content, headers=headers, timeout=timeout) as response:
            for chunk in response.iter_bytes():
                body += chunk
                if len(body) > MAX_ANSWER_BYTES:
                    return response.status_code, response.headers, None
                if time.monotonic() > deadline:  # drop by drop is no answer either
                    raise httpx.ReadTimeout(f"no whole answer within {ANSWER_TIMEOUT_S:g} s")
        return response.status_code, response.headers, bytes(body)


def _wait_s(headers: httpx.Headers) -> float:
    stated = headers.get("retry-after", "")
    return float(stated) if stated.isascii() and stated.isdigit() else DEFAULT_WAIT_S
