"""Is there an OpenAI-compatible server at this address, may we load it, and which model is meant?

Every refusal is a `TargetError` (exit 3) before any load is sent.
"""

from __future__ import annotations

import json
import os
import re
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx

from kvprobe.checked_transport import CheckedTransport
from kvprobe.errors import Problem, TargetError, UsageError
from kvprobe.evidence.secrets import hide
from kvprobe.run.target_guard import guard as guard

CONNECT_TIMEOUT_S = 4.0
READ_TIMEOUT_S = 10.0
MAX_BODY_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True)
class Target:
    """A server that answered `/v1/models` and offers `model`."""

    base_url: str
    """Without `/v1` and without a trailing slash."""
    model: str
    models: tuple[str, ...]
    max_model_len_tokens: int | None
    server_header: str | None
    reachable_by_proxy: str | None = None
    root: str | None = None
    """Where the server says that the model lies: a directory of its machine, or a name."""
    model_config: dict[str, Any] | None = None
    """The model's config.json, where the server tells it."""


def normalise_url(text: str) -> str:
    """`http://host:port[/path]` without `/v1`; raises `UsageError` for anything else."""
    parts = _url_parts(text, "target")
    if parts.query or parts.fragment:
        raise UsageError(Problem("bad_target", "the target URL carries a query or fragment", _URL_FIX))
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{_origin(parts)}{path}"


def page_url(text: str) -> str:
    """The URL of a page such as /metrics; a query may stand in it. `UsageError` for anything else."""
    parts = _url_parts(text, "metrics")
    return f"{_origin(parts)}{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"


def without_query(url: str) -> str:
    """For what is kept and shown: a query can hold a secret."""
    return url.partition("?")[0]


def _url_parts(text: str, what: str) -> SplitResult:
    """Messages show nothing of the text where a password or a key could stand."""
    url = text if "://" in text else f"http://{text}"
    if "@" in re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]:
        raise UsageError(
            Problem(
                "secret_in_url",
                f"the {what} URL carries a user name or password",
                "take it out; pass a key with --api-key-env VARIABLE",
            )
        )
    shown = re.split(r"[?#]", text, maxsplit=1)[0]
    try:
        parts = urlsplit(url)
        _ = parts.port
        httpx.URL(url)
        # Labels of 1 to 63 characters: the look-up would fail on others.
        (parts.hostname or "").encode("idna")
    except (ValueError, httpx.InvalidURL) as error:
        raise UsageError(Problem(f"bad_{what}", f"`{shown}` is no URL: {error}", _URL_FIX)) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(Problem(f"bad_{what}", f"`{shown}` is no http(s) URL", _URL_FIX))
    return parts


def _origin(parts: SplitResult) -> str:
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{f':{parts.port}' if parts.port is not None else ''}"


_URL_FIX = "write it as http://127.0.0.1:8000"


_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,23}|[A-Z_][A-Z0-9_]{0,99}")
"""A long word in mixed case is sooner a key than a name."""


def api_key(api_key_env: str | None) -> str | None:
    """The key out of the named variable; it is never stored or printed."""
    if api_key_env is None:
        return None
    if not _VARIABLE.fullmatch(api_key_env):
        # Most likely the key itself: it is not shown, and wherever it may still come by it is hidden.
        hide(api_key_env)
        raise UsageError(
            Problem(
                "bad_option",
                "--api-key-env takes the name of an environment variable, and what was given is none",
                "export LLM_KEY=… and give --api-key-env LLM_KEY, never the key itself",
                "--api-key-env",
            )
        )
    key = os.environ.get(api_key_env)
    if not key:
        raise UsageError(
            Problem(
                "missing_api_key",
                f"the environment variable {api_key_env} is not set",
                f"export {api_key_env}=… or leave out --api-key-env",
            )
        )
    if any(ord(c) < 0x21 or ord(c) > 0x7E for c in key):
        raise UsageError(
            Problem(
                "bad_api_key",
                f"the value of {api_key_env} holds a space or a character that no HTTP header may carry",
                "set it again without line end or quotes",
            )
        )
    hide(key)
    return key


def control_client(key: str | None, *, insecure: bool) -> httpx.Client:
    """The client of the control plane (models, tokenizer). Proxy variables are not obeyed: the
    load goes straight to the target, and what prepares it must meet the same server."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(
        headers=headers,
        timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        transport=CheckedTransport(insecure=insecure),
        trust_env=False,
        follow_redirects=False,
    )


def preflight(client: httpx.Client, base_url: str, model: str | None) -> Target:
    """Ask `/v1/models` and choose the model; raises `TargetError` with what to do."""
    url = f"{base_url}/v1/models"
    answer = _get(client, url)
    _check_status(answer, url)
    cards = _model_cards(answer, url)
    names = tuple(dict.fromkeys(str(c["id"]) for c in cards))
    chosen = _choose(names, model)
    card = next(c for c in cards if c["id"] == chosen)
    length, root, config = (card.get(name) for name in ("max_model_len", "root", "model_config"))
    return Target(
        base_url=base_url,
        model=chosen,
        models=names,
        max_model_len_tokens=length if type(length) is int and length > 0 else None,
        server_header=answer.server,
        root=root if isinstance(root, str) else None,
        model_config=config if isinstance(config, dict) else None,
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    """A response that was read to its end within the bounds."""

    status: int
    redirect: str
    server: str | None
    body: bytes


def _get(client: httpx.Client, url: str) -> _Answer:
    try:
        return _fetch(client, url)
    except httpx.ConnectTimeout as error:
        raise TargetError(
            Problem("connect", f"no answer from {url} within {CONNECT_TIMEOUT_S:g} s", _START_FIX)
        ) from error
    except httpx.ConnectError as error:
        code = "tls" if "SSL" in str(error) or "certificate" in str(error).lower() else "connect"
        fix = "correct the certificate, or add --insecure" if code == "tls" else _START_FIX
        raise TargetError(Problem(code, f"cannot connect to {url}: {error}", fix)) from error
    except httpx.TimeoutException as error:
        raise TargetError(
            Problem(
                "timeout",
                f"{url} accepted the connection and did not answer within {READ_TIMEOUT_S:g} s",
                _START_FIX,
            )
        ) from error
    except httpx.HTTPError as error:
        raise TargetError(
            Problem("not_openai", f"{url} does not speak HTTP: {error}", _OPENAI_FIX)
        ) from error


def _fetch(client: httpx.Client, url: str) -> _Answer:
    """A body that never ends is left at the bound of its size or of its time."""
    deadline = time.monotonic() + READ_TIMEOUT_S
    body = bytearray()
    with client.stream("GET", url) as response:
        for chunk in response.iter_bytes():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                message = f"{url} answered with more than {MAX_BODY_BYTES:,} bytes"
                raise TargetError(Problem("not_openai", message, _OPENAI_FIX))
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("the answer takes too long")
        redirect = response.headers.get("location", "?")
        return _Answer(
            response.status_code,
            redirect=redirect,
            server=response.headers.get("server"),
            body=bytes(body),
        )


_START_FIX = "start the server, or check host and port"
_OPENAI_FIX = "name the base URL of an OpenAI-compatible server, such as http://127.0.0.1:8000"


def _check_status(answer: _Answer, url: str) -> None:
    status = answer.status
    if status in (401, 403):
        raise TargetError(
            Problem(
                "auth",
                f"{url} answered {status}: the key is missing or refused",
                "put the key in an environment variable and name it with --api-key-env VARIABLE",
            )
        )
    if 300 <= status < 400:
        where = without_query(answer.redirect)
        raise TargetError(
            Problem(
                "redirect_refused",
                f"{url} redirects to {where}; redirects are not followed",
                "name the final address with --target",
            )
        )
    if status >= 500:
        said = answer.body.decode("utf-8", "replace")[:200]
        raise TargetError(Problem("status", f"{url} answered {status}: {said}", "look at the server's log"))
    if status != 200:
        raise TargetError(
            Problem("not_openai", f"{url} answered {status}: no OpenAI-compatible server", _OPENAI_FIX)
        )


def _model_cards(answer: _Answer, url: str) -> list[dict[str, Any]]:
    """The `data` list of `/v1/models`, each with an `id` that is no empty text."""
    problem = Problem("not_openai", f"{url} did not answer with a list of models in JSON", _OPENAI_FIX)
    try:
        body = json.loads(answer.body)
    except (ValueError, RecursionError) as error:
        raise TargetError(problem) from error
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, list) or not all(
        isinstance(c, dict) and isinstance(c.get("id"), str) and c["id"] for c in data
    ):
        raise TargetError(problem)
    if not data:
        raise TargetError(Problem("model", f"{url} lists no model", "load a model on the server"))
    return data


def _choose(names: tuple[str, ...], wanted: str | None) -> str:
    if wanted is None:
        if len(names) == 1:
            return names[0]
        raise TargetError(
            Problem(
                "model",
                f"the server offers several models: {', '.join(names[:10])}",
                "choose one with --model NAME",
            )
        )
    if wanted not in names:
        raise TargetError(
            Problem(
                "model",
                f"the server does not offer `{wanted}`",
                f"it offers: {', '.join(names[:10])}; choose with --model",
            )
        )
    return wanted
