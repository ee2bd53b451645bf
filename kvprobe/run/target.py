"""Is there an OpenAI-compatible server at this address, may we load it, and which model is meant?

Every refusal is a `TargetError` (exit 3) before any load is sent.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from kvprobe.errors import Problem, TargetError, UsageError

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


def normalise_url(text: str) -> str:
    """`http://host:port[/path]` without `/v1`; raises `UsageError` for anything else."""
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError as error:
        raise UsageError(Problem("bad_target", f"`{text}` is no URL: {error}", _URL_FIX)) from error
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(Problem("bad_target", f"`{text}` is no http(s) URL", _URL_FIX))
    if parts.username or parts.password:
        raise UsageError(
            Problem(
                "secret_in_url",
                "the target URL carries a user name or password",
                "take it out; pass a key with --api-key-env VARIABLE",
            )
        )
    if parts.query or parts.fragment:
        raise UsageError(Problem("bad_target", "the target URL carries a query or fragment", _URL_FIX))
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{host}{f':{port}' if port is not None else ''}{path}"


_URL_FIX = "write it as http://127.0.0.1:8000"


def guard(base_url: str, *, own_target: bool) -> None:
    """Refuse to load a host that is not this machine unless the user says that it is theirs."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise TargetError(
            Problem("dns", f"cannot resolve the host `{host}`: {error}", "check the name, or use an address")
        ) from error
    addresses = {ipaddress.ip_address(str(info[4][0]).split("%")[0]) for info in found}
    if any(not _is_loopback(a) for a in addresses) and not own_target:
        where = ", ".join(sorted(map(str, addresses)))
        raise TargetError(
            Problem(
                "guard",
                f"`{host}` is not this machine ({where}): a load test can take a server down",
                "add --i-own-this-target if you may load it",
            )
        )


def _is_loopback(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def api_key(api_key_env: str | None) -> str | None:
    """The key out of the named variable; it is never stored or printed."""
    if api_key_env is None:
        return None
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
    return key


def control_client(key: str | None, *, insecure: bool) -> httpx.Client:
    """The client of the control plane (models, tokenizer). Proxy variables are not obeyed: the
    load goes straight to the target, and what prepares it must meet the same server."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(
        headers=headers,
        timeout=httpx.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
        verify=not insecure,
        trust_env=False,
        follow_redirects=False,
    )


def preflight(client: httpx.Client, base_url: str, model: str | None) -> Target:
    """Ask `/v1/models` and choose the model; raises `TargetError` with what to do."""
    url = f"{base_url}/v1/models"
    response = _get(client, url)
    _check_status(response, url)
    cards = _model_cards(response, url)
    names = tuple(str(c["id"]) for c in cards)
    chosen = _choose(names, model)
    length = cards[names.index(chosen)].get("max_model_len")
    return Target(
        base_url=base_url,
        model=chosen,
        models=names,
        max_model_len_tokens=length if isinstance(length, int) and not isinstance(length, bool) else None,
        server_header=response.headers.get("server"),
    )


def _get(client: httpx.Client, url: str) -> httpx.Response:
    try:
        return client.get(url)
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
                f"{url} accepted the connection and sent nothing for {READ_TIMEOUT_S:g} s",
                _START_FIX,
            )
        ) from error
    except httpx.HTTPError as error:
        raise TargetError(
            Problem("not_openai", f"{url} does not speak HTTP: {error}", _OPENAI_FIX)
        ) from error


_START_FIX = "start the server, or check host and port"
_OPENAI_FIX = "name the base URL of an OpenAI-compatible server, such as http://127.0.0.1:8000"


def _check_status(response: httpx.Response, url: str) -> None:
    status = response.status_code
    if status in (401, 403):
        raise TargetError(
            Problem(
                "auth",
                f"{url} answered {status}: the key is missing or refused",
                "put the key in an environment variable and name it with --api-key-env VARIABLE",
            )
        )
    if response.is_redirect:
        raise TargetError(
            Problem(
                "redirect_refused",
                f"{url} redirects to {response.headers.get('location', '?')}; redirects are not followed",
                "name the final address with --target",
            )
        )
    if status >= 500:
        raise TargetError(
            Problem("status", f"{url} answered {status}: {response.text[:200]}", "look at the server's log")
        )
    if status != 200:
        raise TargetError(
            Problem("not_openai", f"{url} answered {status}: no OpenAI-compatible server", _OPENAI_FIX)
        )


def _model_cards(response: httpx.Response, url: str) -> list[dict[str, Any]]:
    """The `data` list of `/v1/models`, each with an `id`."""
    problem = Problem("not_openai", f"{url} did not answer with a list of models in JSON", _OPENAI_FIX)
    if len(response.content) > MAX_BODY_BYTES:
        raise TargetError(problem)
    try:
        body = response.json()
    except (ValueError, RecursionError) as error:
        raise TargetError(problem) from error
    data = body.get("data") if isinstance(body, dict) else None
    if not isinstance(data, list) or not all(
        isinstance(c, dict) and isinstance(c.get("id"), str) for c in data
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
