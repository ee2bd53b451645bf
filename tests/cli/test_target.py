"""The target before the load: real sockets that refuse, lie, redirect or hang."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvprobe.cli.main import main
from kvprobe.errors import Exit, TargetError, UsageError
from kvprobe.run import target as targets


@contextmanager
def answering(
    status: int, body: str, content_type: str = "application/json", **headers: str
) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(data)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

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


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def run_against(url: str, out: Path, *more: str) -> int:
    return main(["run", "shared_prefix", "--target", url, "--out", str(out), "-q", *more])


def test_f1_connection_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs"
    started = time.monotonic()
    assert run_against(f"http://127.0.0.1:{free_port()}", out) == Exit.TARGET
    assert time.monotonic() - started < 5
    text = capsys.readouterr().err
    assert "error[connect]" in text
    assert "fix: start the server" in text
    assert not out.exists()


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (200, "<html><body>hello</body></html>", "not_openai"),
        (200, '{"hello": 1}', "not_openai"),
        (200, '{"data": [1]}', "not_openai"),
        (200, "[" * 100_000, "not_openai"),
        (200, '{"data": []}', "model"),
        (200, '{"data": [{"id": "a"}, {"id": "b"}]}', "model"),
        (404, "{}", "not_openai"),
        (401, "{}", "auth"),
        (403, "{}", "auth"),
        (503, "warming up", "status"),
    ],
)
def test_what_is_no_server_to_load(
    status: int, body: str, code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(status, body) as url:
        assert run_against(url, tmp_path / "runs") == Exit.TARGET
    assert f"error[{code}]" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_a_redirect_is_not_followed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(302, "", Location="http://192.0.2.1/v1/models") as url:
        assert run_against(url, tmp_path / "runs") == Exit.TARGET
    assert "redirect_refused" in capsys.readouterr().err


def test_an_unknown_model_lists_what_is_served(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, '{"data": [{"id": "llama"}]}') as url:
        assert run_against(url, tmp_path / "runs", "--model", "mistral") == Exit.TARGET
    assert "it offers: llama" in capsys.readouterr().err


def test_a_port_that_does_not_speak_http(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"220 mail.example ESMTP\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert run_against(url, tmp_path / "runs") == Exit.TARGET
        thread.join()
    assert "error[not_openai]" in capsys.readouterr().err


def test_a_server_that_accepts_and_says_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "READ_TIMEOUT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert run_against(url, tmp_path / "runs") == Exit.TARGET
    assert "error[timeout]" in capsys.readouterr().err


def test_another_machine_needs_the_owners_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """192.0.2.1 is reserved for documentation; the guard refuses before any packet is sent."""
    assert run_against("http://192.0.2.1:8000", tmp_path / "runs") == Exit.TARGET
    text = capsys.readouterr().err
    assert "error[guard]" in text
    assert "--i-own-this-target" in text


def test_a_name_that_does_not_resolve() -> None:
    with pytest.raises(TargetError) as caught:
        targets.guard("http://no-such-host.invalid", own_target=True)
    assert caught.value.problems[0].code == "dns"


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1",
        "http://",
        "http://127.0.0.1:99999",
        "http://u:secret@127.0.0.1",
        "http://127.0.0.1/?key=1",
        "http://a..b/",
        f"http://{'a' * 70}.example",
    ],
)
def test_urls_that_cannot_be_targets(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError) as caught:
        targets.normalise_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("127.0.0.1:8000/v1", "http://127.0.0.1:8000"),
        ("http://localhost/api/v1/", "http://localhost/api"),
        ("http://[::1]:80/v1", "http://[::1]:80"),
    ],
)
def test_url_forms(given: str, base: str) -> None:
    assert targets.normalise_url(given) == base


def test_a_missing_api_key_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(UsageError, match="NO_SUCH_KEY"):
        targets.api_key("NO_SUCH_KEY")


def test_a_key_with_a_line_end_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "canary-secret\n")
    with pytest.raises(UsageError) as caught:
        targets.api_key("SOME_KEY")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("given", ["sk-canary-0123456789", "", "canaryCanary0123456789abcdef", "A B"])
def test_a_key_in_the_place_of_its_variable_s_name_is_not_shown(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        targets.api_key(given)
    (problem,) = caught.value.problems
    assert (problem.code, problem.path) == ("bad_option", "--api-key-env")
    assert "canary" not in f"{problem}"


@pytest.mark.parametrize(
    ("cards", "length"),
    [
        ('{"id": "m"}, {"id": "m", "max_model_len": 7}', None),
        ('{"id": "m", "max_model_len": -5}', None),
        ('{"id": "m", "max_model_len": true}', None),
        ('{"id": "m", "max_model_len": 2048}', 2048),
    ],
)
def test_a_model_that_is_listed_twice_is_one_and_a_limit_is_a_positive_number(
    cards: str, length: int | None
) -> None:
    client = targets.control_client(None, insecure=False)
    with answering(200, '{"data": [' + cards + "]}") as url, client:
        found = targets.preflight(client, url, None)
    assert (found.models, found.max_model_len_tokens) == (("m",), length)


def test_a_model_without_a_name_is_none() -> None:
    client = targets.control_client(None, insecure=False)
    with answering(200, '{"data": [{"id": ""}]}') as url, client, pytest.raises(TargetError) as caught:
        targets.preflight(client, url, None)
    assert caught.value.problems[0].code == "not_openai"


@pytest.mark.parametrize("pause_s", [0.0, 0.1])
def test_a_body_that_never_ends_is_left_at_a_bound(
    pause_s: float, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As fast as it can, and one byte now and then: the bounds are of size and of time."""
    monkeypatch.setattr(targets, "READ_TIMEOUT_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
                while True:
                    connection.sendall(b" " if pause_s else b" " * 65536)
                    time.sleep(pause_s)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        started = time.monotonic()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert run_against(url, tmp_path / "runs") == Exit.TARGET
        thread.join()
    assert time.monotonic() - started < 10
    assert ("error[timeout]" if pause_s else "error[not_openai]") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (500, "no: canary-secret", {}),
        (302, "", {"Location": "http://127.0.0.1:9/canary-secret"}),
        (200, '{"data": [{"id": "canary-secret"}, {"id": "b"}]}', {}),
    ],
)
def test_a_server_that_sends_the_key_back(
    status: int,
    body: str,
    headers: dict[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOME_KEY", "canary-secret")
    with answering(status, body, **headers) as url:
        assert run_against(url, tmp_path / "runs", "--api-key-env", "SOME_KEY") == Exit.TARGET
    text = capsys.readouterr().err
    assert "canary" not in text
    assert "[key]" in text


def test_a_metrics_url_keeps_its_query_for_itself() -> None:
    url = targets.page_url("127.0.0.1:9090/metrics?token=secret")
    assert url == "http://127.0.0.1:9090/metrics?token=secret"
    assert targets.without_query(url) == "http://127.0.0.1:9090/metrics"
