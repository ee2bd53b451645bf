"""An httpx transport that connects to the addresses that the guard has looked at, and to no others."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

from kvprobe.checked_addresses import addresses_of


class _CheckedBackend(httpcore.SyncBackend):
    """Only the look-up differs: TLS and the Host header still speak of the name."""

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        """The first address that answers; each has its `timeout`, as with the system's own look-up."""
        failure: Exception | None = None
        for address in addresses_of(host) or (host,):
            try:
                return super().connect_tcp(address, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = failure or error
        assert failure is not None
        raise failure


class CheckedTransport(httpx.HTTPTransport):
    """For `httpx.Client(transport=...)`; no proxy is used. Certificates are checked against the same store
    as the load's (the system's, or SSL_CERT_FILE), so that both meet the same answer."""

    def __init__(self, *, insecure: bool = False, limits: httpx.Limits | None = None) -> None:
        context = ssl.create_default_context()
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        bounds = limits or httpx.Limits(max_connections=100, max_keepalive_connections=20)
        super().__init__(verify=context, limits=bounds)
        self._pool = httpcore.ConnectionPool(
            ssl_context=context,
            max_connections=bounds.max_connections,
            max_keepalive_connections=bounds.max_keepalive_connections,
            keepalive_expiry=bounds.keepalive_expiry,
            network_backend=_CheckedBackend(),
        )
