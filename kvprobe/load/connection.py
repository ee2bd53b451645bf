"""One keep-alive connection to the target, on geventhttpclient's socket pool and parser.

geventhttpclient's own response object reads in small blocks and hands over lines; both hide when
the bytes landed. So the pool gives the socket, the parser only parses, and the bytes are received
here: one clock reading per receive, taken before anything else is done with them.
"""

from __future__ import annotations

import _socket
import select
import socket
import ssl
import time
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import gevent
import gevent.ssl
from geventhttpclient.client import HTTPClient, HTTPClientPool
from geventhttpclient.connectionpool import ConnectionPool, SSLConnectionPool
from geventhttpclient.response import HTTPParseError

from kvprobe.load.look_up import resolved
from kvprobe.load.response_parser import ResponseParser

RECEIVE_BYTES = 65536
MAX_HEAD_BYTES = 65536
_READ = 1  # the event that gevent's io watchers call READ


class PeerClosed(Exception):
    """The server closed the connection in an orderly way (FIN)."""


class HeadTooLarge(Exception):
    """The response head is larger than any honest one."""


@lru_cache(maxsize=2)
def _shared_ssl_context(insecure: bool) -> ssl.SSLContext:
    """The process's one context: to build one costs some 64 ms of CPU, which would freeze the loop."""
    context: ssl.SSLContext = gevent.ssl.create_default_context()
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class _LoadPoolHabits:
    """What both kinds of pool do differently here."""

    _connection_host: str
    _connection_port: int

    def _resolve(self) -> list[Any]:
        return resolved(self._connection_host, self._connection_port)

    def after_connect(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def _is_socket_alive(self, sock: socket.socket | None) -> bool:
        """Whether a kept socket is still open with nothing to read.

        (select, the pool's own way, cannot look at descriptors above 1,023.) Bytes that nobody asked
        for are as bad as an end.
        """
        if sock is None or sock.fileno() < 0:
            return False
        plain = getattr(sock, "_sock", None)  # what a socket of gevent wraps; a TLS one has none
        if not isinstance(plain, _socket.socket):
            poller = _system_poll()
            poller.register(sock.fileno(), select.POLLIN)
            return not poller.poll(0)
        try:
            plain.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)  # cheaper than a poll object
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False


def _system_poll() -> Any:
    """The unpatched poll object: with a zero timeout it never blocks, so gevent need not know."""
    from gevent.monkey import get_original

    return get_original("select", "poll")()


class _PlainPool(_LoadPoolHabits, ConnectionPool):  # type: ignore[misc]
    pass


class _TlsPool(_LoadPoolHabits, SSLConnectionPool):  # type: ignore[misc]
    pass


def open_client(base_url: str, *, insecure: bool = False, connect_timeout_s: float = 10.0) -> HTTPClient:
    """A client of one connection for the scheme, host and port of `base_url`; connects later."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    client = HTTPClient(host, port, concurrency=1, connection_timeout=connect_timeout_s)
    options: dict[str, Any] = {"size": 1, "connection_timeout": connect_timeout_s}
    if tls:
        # The pool sets check_hostname on what the factory returns to `not insecure`: for a shared
        # context the same value every time.
        client._connection_pool = _TlsPool(
            host,
            port,
            host,
            port,
            insecure=insecure,
            ssl_context_factory=lambda cafile=None: _shared_ssl_context(insecure),
            **options,
        )
    else:
        client._connection_pool = _PlainPool(host, port, host, port, **options)
    return client


class UserClientPool(HTTPClientPool):  # type: ignore[misc]
    """A `client_pool` for Locust's FastHttpUser that makes clients as `open_client` does."""

    def __init__(self, *, insecure: bool, connect_timeout_s: float) -> None:
        super().__init__()
        self._options: dict[str, Any] = {"insecure": insecure, "connect_timeout_s": connect_timeout_s}

    def get_client(self, url: Any) -> HTTPClient:
        """The client for the URL's host and port, made at first use."""
        parts = urlsplit(str(url))
        key = (parts.hostname or "", parts.port)
        if key not in self.clients:
            self.clients[key] = open_client(str(url), **self._options)
        return self.clients[key]


class Connection:
    """What one user sends through: take a socket, send, receive stamped bytes, give it back.

    Deadlines: gevent would start and stop a timer for every receive. Here one alarm per exchange is
    set to a deadline and only looked at again when it rings; a deadline that has moved on meanwhile
    costs one needless ring instead of a timer per chunk.
    """

    def __init__(self, client: HTTPClient) -> None:
        self._pool = client._connection_pool
        self._hub = gevent.get_hub()
        self._socket: Any = None
        self._idle: Any = None
        self._readable: Any = None  # watcher of a plain socket; a TLS one may hold bytes back itself
        self._alarm: gevent.Timeout | None = None
        self._alarm_ns = 0
        self.reused = False
        """Whether the connection carried an earlier request."""
        self._carried = False
        self.parser = ResponseParser()
        self.receives = 0
        self.received_bytes = 0
        self.sent_ns = 0
        self.first_receive_ns: int | None = None
        self._broken: HTTPParseError | None = None

    def acquire(self) -> None:
        """Take the kept socket, or connect. Raises OSError (refused, DNS, TLS, timeout, EMFILE)."""
        self.receives = 0
        self.received_bytes = 0
        self.first_receive_ns = None
        self._broken = None
        self._socket = self._pool.get_socket()
        known = self._socket is self._idle
        self._idle = None
        self.reused = known and self._carried
        self.parser = ResponseParser()
        if not known:
            self._carried = False
            self._drop_watcher()
            if not isinstance(self._socket, gevent.ssl.SSLSocket):
                self._readable = self._hub.loop.io(self._socket.fileno(), _READ)

    def connect(self) -> None:
        """Connect ahead of the first request, so that it only has to be sent. Raises as `acquire`."""
        self.acquire()
        sock, self._socket = self._socket, None
        self._idle = sock
        self._pool.return_socket(sock)

    def send(self, request: bytes, timeout_s: float) -> None:
        """Send all of it, `sent_ns` being the instant just before. Raises OSError."""
        sock = self._socket
        self._carried = True
        sock.settimeout(timeout_s)
        self.sent_ns = time.monotonic_ns()
        try:
            sock.sendall(request)
        finally:
            sock.settimeout(None)  # from here on the alarm keeps the time

    def receive(self, deadline_ns: int) -> int:
        """Receive once and parse; returns the instant when the bytes were there, ns.

        New body bytes are in `parser.body`. Raises TimeoutError after `deadline_ns`, OSError,
        `PeerClosed`, `HeadTooLarge`, and HTTPParseError: this one with the next call after the bytes
        that broke the rules, so that what stood before them in one receive is read first.
        """
        if self._broken is not None:
            raise self._broken
        data, now_ns = self._receive_bytes(deadline_ns)
        if not data:
            raise PeerClosed
        if self.first_receive_ns is None:
            self.first_receive_ns = now_ns
        self.receives += 1
        self.received_bytes += len(data)
        try:
            self.parser.feed(data)
        except HTTPParseError as error:
            self._broken = error
        if self.received_bytes > MAX_HEAD_BYTES and not self.parser.head_complete:
            raise HeadTooLarge
        return now_ns

    def _receive_bytes(self, deadline_ns: int) -> tuple[bytes, int]:
        while True:
            if self._alarm is None or deadline_ns < self._alarm_ns:
                self._set_alarm(deadline_ns)
            try:
                if self._readable is not None:
                    self._hub.wait(self._readable)
                data: bytes = self._socket.recv(RECEIVE_BYTES)
                return data, time.monotonic_ns()
            except gevent.Timeout as rung:
                if rung is not self._alarm:
                    raise
                self._clear_alarm()
                if time.monotonic_ns() >= deadline_ns:
                    raise TimeoutError("timed out") from None

    def take_body(self) -> list[bytes]:
        """Body pieces since the last call."""
        body = self.parser.body
        if body:
            self.parser.body = []
        return body

    def release(self) -> None:
        """Give the socket back: kept when the response was read to its end, else closed."""
        self._clear_alarm()
        sock, self._socket = self._socket, None
        if sock is None:
            return
        if self.parser.message_complete and not self.parser.should_close():
            self._idle = sock
            self._pool.return_socket(sock)
        else:
            self._drop_watcher()
            self._pool.release_socket(sock)

    def close(self) -> None:
        """Close the kept socket."""
        self._idle = None
        self._drop_watcher()
        self._pool.close()

    def _set_alarm(self, deadline_ns: int) -> None:
        self._clear_alarm()
        left_s = max(deadline_ns - time.monotonic_ns(), 0) / 1e9
        self._alarm = gevent.Timeout.start_new(left_s)
        self._alarm_ns = deadline_ns

    def _clear_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.close()
            self._alarm = None

    def _drop_watcher(self) -> None:
        """Before its descriptor is closed: the number may be another socket's a moment later."""
        if self._readable is not None:
            self._readable.close()
            self._readable = None
