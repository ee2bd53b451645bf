"""An API key stands in no file and on no stream, whatever the server does with it (F61)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd
import pytest

from kvprobe.evidence import secrets
from tests.e2e.conftest import Result, Server, kvprobe

CANARY = "sk-canary-4f1d0b7a"
SHORT = (
    "--set",
    "requests=4",
    "--set",
    "output.tokens=4",
    "--set",
    "prompt.tokens=64",
    "--set",
    "warmup.requests=1",
)


@contextmanager
def echoing(status: int, form: str) -> Iterator[str]:
    """A server that sends the key back; `form` holds `KEY` where it stands."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(200 if self.path == "/v1/models" else 404, '{"data": [{"id": "m"}]}')

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/chat/completions":
                self._send(status, form.replace("KEY", self.headers["Authorization"]))
            else:
                self._send(404, "{}")

        def _send(self, code: int, body: str) -> None:
            self.send_response(code)
            self.send_header("Content-Type", "text/event-stream" if code == 200 else "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("x-request-id", self.headers["Authorization"])
            if code == 307:
                self.send_header("Location", f"http://127.0.0.1:9/{self.headers['Authorization']}")
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run_with_key(url: str, out: Path) -> Result:
    out.mkdir(exist_ok=True)
    argv = ("run", "distinct", "--target", url, "--api-key-env", "PROBE_KEY", "--out", str(out), "-v", *SHORT)
    gates = ("--threshold", "error_rate < 1%", "--threshold", "ttft.p50 < 1s", "--abort", "ttft.p50 > 1h")
    result = kvprobe(*argv, *gates, "--junit", str(out / "junit.xml"), env={"PROBE_KEY": CANARY})
    assert "error_rate" in (out / "junit.xml").read_text()
    return result


def assert_absent(result: Result, out: Path) -> None:
    assert CANARY not in result.out + result.err
    files = [path for path in out.rglob("*") if path.is_file()]
    assert {"requests.parquet", "facts.jsonl", "summary.json"} <= {path.name for path in files}
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]
    # Parquet is compressed: what stands in it shows only when it is read.
    for path in out.rglob("*.parquet"):
        assert CANARY not in pd.read_parquet(path).to_json()


@pytest.mark.parametrize(
    ("status", "form", "masked"),
    [
        (500, '{"error": {"message": "no: KEY"}}', True),
        (401, '{"error": {"message": "bad key KEY"}}', True),
        (307, "", False),
        (200, 'data: {"error": {"message": "KEY"}}\n\n', True),
        (200, "data: {KEY\n\n", False),
        (
            200,
            'data: {"id": "KEY", "choices": [{"index": 0, "delta": {"content": "KEY"}}]}\n\n'
            'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n',
            True,
        ),
    ],
)
def test_a_server_that_sends_the_key_back(status: int, form: str, masked: bool, out: Path) -> None:
    with echoing(status, form) as url:
        result = run_with_key(url, out)
    assert_absent(result, out)
    (rows,) = out.rglob("requests.parquet")
    if masked:
        assert secrets.MASK in pd.read_parquet(rows).to_json()


def test_a_server_that_keeps_it(
    out: Path, start_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVER_KEY", CANARY)
    result = run_with_key(start_server("--api-key-env", "SERVER_KEY").url, out)
    assert result.code in (0, 4, 99), result.err
    assert_absent(result, out)


def test_numbers_are_never_taken_for_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_hidden", set())
    secrets.hide("12345678")
    value = {"t_ns": 912345678, "text": "key 12345678", "12345678": [12345678]}
    assert secrets.occur_in(json.dumps(value).encode())
    assert secrets.masked_value(value) == {"t_ns": 912345678, "text": "key [key]", "[key]": [12345678]}


def test_what_is_no_secret_masks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_hidden", set())
    secrets.hide("none")
    secrets.hide(None)
    assert secrets.masked("none of it") == "none of it"
