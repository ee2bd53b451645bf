"""A metrics server on a real socket whose answer a test can change while it runs."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

RECORDINGS = Path(__file__).parent / "recordings"
VLLM = (RECORDINGS / "vllm_0.32_after_preemption.txt").read_text()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, PageServer)
        server.seen.append(dict(self.headers))
        if server.answer is not None:
            server.answer(self)
            return
        body = server.page.encode()
        self.send_response(server.status)
        self.send_header("content-type", server.content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Quiet: the tests' output is for failures."""


class PageServer(http.server.ThreadingHTTPServer):
    """Serves `page` at any path; `answer` takes over a request altogether."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.page = VLLM
        self.status = 200
        self.content_type = "text/plain; version=0.0.4; charset=utf-8"
        self.answer: Callable[[http.server.BaseHTTPRequestHandler], None] | None = None
        self.seen: list[dict[str, str]] = []

    def handle_error(self, *_args: object) -> None:
        """A client that goes away is what some tests are about."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/metrics"


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer() as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.01,))
        thread.start()
        yield served
        served.shutdown()
        thread.join()
