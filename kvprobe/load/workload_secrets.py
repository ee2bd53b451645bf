"""Keys of a request body that look like a secret: they belong into an environment variable."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_NAMES = {
    "accesskey",
    "accesstoken",
    "apikey",
    "authorization",
    "authtoken",
    "bearer",
    "bearertoken",
    "clientsecret",
    "credentials",
    "hftoken",
    "passwd",
    "password",
    "privatekey",
    "proxyauthorization",
    "refreshtoken",
    "secret",
    "secretkey",
    "xapikey",
}


def is_secret(key: str) -> bool:
    """Whether a key of this name holds a secret (case, `-` and `_` do not matter)."""
    return key.lower().replace("-", "").replace("_", "") in _NAMES


def secret_keys(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of such keys at any depth of a JSON value (whose depth the YAML reader bounds)."""
    if isinstance(value, dict):
        for key, child in value.items():
            if is_secret(str(key)):
                yield (*path, key)
            else:
                yield from secret_keys(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from secret_keys(child, (*path, index))
