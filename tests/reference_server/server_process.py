"""A real server process on a free port."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import httpx


class ServerProcess:
    """Started on entry, stopped on exit; `log` is what it wrote on stderr."""

    def __init__(
        self,
        *arguments: str,
        environment: dict[str, str] | None = None,
        program: tuple[str, ...] = ("-m", "reference_server"),
    ) -> None:
        """`program`: what Python runs, before the server's `arguments`."""
        self._arguments = arguments
        self._program = program
        self._environment = {**os.environ, "REFERENCE_SERVER_CHECK_INTEGRITY": "1", **(environment or {})}
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self.url = ""

    def __enter__(self) -> ServerProcess:
        self.process = subprocess.Popen(
            [sys.executable, *self._program, "--port", "0", "--stop-with-parent", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=self._environment,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the server did not start: {self.log()}")
        self.ready: dict[str, Any] = json.loads(line)
        self.url = self.ready["url"]
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            self._stderr.close()

    def log(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.removeprefix("http://").rsplit(":", 1)
        return host, int(port)

    def metric(self, name: str) -> float:
        """The sum over a metric's series."""
        page = httpx.get(self.url + "/metrics").text
        values = re.findall(rf"^kvprobe:{name}(?:\{{[^}}]*\}})? (\S+)$", page, re.MULTILINE)
        assert values, name
        return sum(float(value) for value in values)

    def post_raw(
        self, path: str, body: dict[str, Any], headers: dict[str, str] | None = None
    ) -> socket.socket:
        """Send a request on a socket of its own and leave the answer unread."""
        raw = json.dumps(body).encode()
        connection = socket.create_connection(self.address, timeout=30)
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        connection.sendall(head.encode() + f"Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
        return connection


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    """Wait for something that must come to pass; the time is only a stop for a broken server."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to pass"
        time.sleep(0.01)


def events_of(text: str) -> list[dict[str, Any]]:
    """The JSON of a whole event stream, which must end with [DONE]."""
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
