"""Where the target is: what the guard has seen, else what the resolver says, asked once per process."""

from __future__ import annotations

import contextlib
import socket
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from kvprobe.checked_addresses import addresses_of


def resolved(host: str, port: int) -> list[Any]:
    """Addresses of the target: those that the guard has looked at, where it has."""
    return _looked_up(addresses_of(host) or (host,), port)


@lru_cache(maxsize=8)
def _looked_up(names: tuple[str, ...], port: int) -> list[Any]:
    """What the resolver says of each name or address, asked once per process.

    gevent resolves in a thread pool; with hundreds of users that start together the look-ups would
    queue behind each other and be measured as connect time.
    """
    tcp = (0, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    return [info for name in names for info in socket.getaddrinfo(name, port, *tcp)]


def resolve_ahead(base_url: str) -> None:
    """Look the target up before hundreds of users do it at once; if that fails, each will say so."""
    parts = urlsplit(base_url)
    with contextlib.suppress(OSError):
        resolved(parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
