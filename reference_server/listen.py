"""The listening socket. Imports nothing heavy, so that a port in use is known at once."""

from __future__ import annotations

import errno
import socket

from reference_server.config import ServerConfig, refuse_open_host
from reference_server.errors import ConfigError

BACKLOG = 2048


def listen(config: ServerConfig) -> socket.socket:
    """A bound and listening socket; raises `ConfigError`. Early clients wait in its backlog."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        refuse_open_host(config.host, str(address[0]), config.api_key)
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--host {config.host}: {getattr(error, 'strerror', None) or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"port {config.port} on {config.host} is in use; "
                "choose another with --port, or 0 for a free one"
            ) from error
        raise ConfigError(f"cannot listen on {config.host} port {config.port}: {error.strerror}") from error
    return listener
