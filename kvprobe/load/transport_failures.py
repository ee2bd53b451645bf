"""From what the operating system, TLS or the HTTP parser said to a kind of MEASURING's closed list."""

from __future__ import annotations

import errno
import os
import socket
import ssl

from geventhttpclient.response import HTTPParseError

from kvprobe.evidence.records import FailureKind
from kvprobe.load.connection import HeadTooLarge, PeerClosed

MAX_DETAIL_CHARS = 2048
_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)


class StreamFailure(Exception):
    """The request failed: a kind and what is known beside it (raw foreign text, bounded)."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.detail = detail[:MAX_DETAIL_CHARS]


class GivenUp(StreamFailure):
    """The workload wants this stream to be given up here."""

    def __init__(self) -> None:
        super().__init__("cancelled_at_end", "given up by plan")


def connect_failure(error: Exception) -> StreamFailure:
    """Why no connection came about."""
    if _out_of_descriptors(error):
        return StreamFailure("client_fd", f"{error}: the client is out of file descriptors (ulimit -n)")
    if isinstance(error, socket.gaierror):
        return StreamFailure("dns", str(error))
    if isinstance(error, TimeoutError):
        return StreamFailure("connect", "timed out")
    if isinstance(error, ssl.SSLError):
        if "timed out" in str(error):
            return StreamFailure("connect", "timed out in the TLS handshake")
        return StreamFailure("tls", _tls_detail(error))
    return StreamFailure("connect", str(error) or type(error).__name__)


def head_failure(error: Exception) -> StreamFailure:
    """Why the head of the response did not come; timeouts are the caller's."""
    if isinstance(error, PeerClosed):
        return StreamFailure("reset_before_headers", "the server closed the connection before its headers")
    if isinstance(error, HeadTooLarge):
        return StreamFailure("protocol_error", "the response head is too large")
    if isinstance(error, HTTPParseError):
        about_length = "Content-Length" in str(error) or "Transfer-Encoding" in str(error)
        return StreamFailure("decode" if about_length else "protocol_error", f"HTTP: {_first(error)}")
    if isinstance(error, ssl.SSLError):
        return StreamFailure("tls", _tls_detail(error))
    return StreamFailure("reset_before_headers", str(error) or type(error).__name__)


def body_failure(error: Exception) -> StreamFailure:
    """Why the body of the response broke off; timeouts are the caller's."""
    if isinstance(error, PeerClosed):
        return StreamFailure("truncated", "the server closed the connection")
    if isinstance(error, HTTPParseError):
        return StreamFailure("decode", f"HTTP: {_first(error)}")
    if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError):
        return StreamFailure("tls", _tls_detail(error))
    return StreamFailure("reset_mid_stream", str(error) or type(error).__name__)


def _first(error: Exception) -> str:
    return str(error.args[0]) if error.args else type(error).__name__


def _tls_detail(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verification failed: {error.verify_message} (code {error.verify_code})"
    return error.reason or str(error)


def _out_of_descriptors(error: Exception) -> bool:
    """EMFILE itself, or a look-up that failed because it could not open a file."""
    if isinstance(error, socket.gaierror):
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as refused:
            return refused.errno in _DESCRIPTORS
        return False
    return isinstance(error, OSError) and error.errno in _DESCRIPTORS
