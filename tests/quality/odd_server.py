"""A server over real sockets that answers as a test says: well, oddly, or not at all."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Body = dict[str, Any]
Behaviour = Callable[[Body, int], "bytes | tuple[int, bytes] | None"]
"""From a request's body and its number to a 200's body, to (status, body), or to null: the connection ends
without an answer."""


class _Handler(BaseHTTPRequestHandler):
    server: OddServer

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send(200, json.dumps({"data": [{"id": "m", "max_model_len": 4096}]}).encode())
        else:
            self._send(404, b"{}")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if not self.path.endswith("completions") or "max_tokens" not in body or "seed" not in body:
            self._send(404, b"{}")  # what is asked besides, to count tokens
            return
        made = self.server.behaviour(body, self.server.next_number())
        if made is None:
            self.close_connection = True
            return
        self._send(*((200, made) if isinstance(made, bytes) else made))

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class OddServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, behaviour: Behaviour) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behaviour = behaviour
        self._lock = threading.Lock()
        self.asked = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def next_number(self) -> int:
        with self._lock:
            self.asked += 1
            return self.asked

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that went away


@contextmanager
def odd_server(behaviour: Behaviour) -> Iterator[OddServer]:
    server = OddServer(behaviour)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def chat(text: Any, **more: Any) -> bytes:
    """A whole answer of `/v1/chat/completions`."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"} | more
    return json.dumps({"id": "x", "object": "chat.completion", "model": "m", "choices": [choice]}).encode()


def question(body: Body) -> str:
    return str(body["messages"][0]["content"])


def echo(body: Body, number: int) -> bytes:
    """The right answer to the questions of `asked`: what stands behind the colon."""
    return chat(question(body).partition(": ")[2])


def asked(count: int) -> str:
    """Questions whose answer is in them, as JSON lines."""
    rows = [{"prompt": f"say: {1000 + n}", "answer": str(1000 + n), "match": "number"} for n in range(count)]
    return "".join(json.dumps(row) + "\n" for row in rows)
