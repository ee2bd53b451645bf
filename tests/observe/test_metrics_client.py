"""Scraping over real sockets: every fault is a typed failure, none an exception."""

from __future__ import annotations

import gzip
import http.server
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kvprobe.observe.metrics import MAX_PAGE_BYTES, MetricsClient, Scrape


@pytest.fixture
def client(server: Any) -> Iterator[MetricsClient]:
    made = MetricsClient(server.url, {"authorization": "Bearer k3y"}, timeout_s=0.5)
    yield made
    made.close()


def kind(scrape: Scrape) -> str | None:
    assert (scrape.page is None) != (scrape.failure is None)
    return scrape.failure.kind if scrape.failure else None


def test_a_page_comes_with_the_instant_half_way(server: Any, client: MetricsClient) -> None:
    before = time.monotonic_ns()
    scrape = client.scrape()
    after = time.monotonic_ns()
    assert scrape.page is not None
    assert scrape.page.engine == "vllm"
    assert (
        before
        <= scrape.t_ns - scrape.duration_s * 5e8
        < scrape.t_ns + scrape.duration_s * 5e8
        <= after + 1000
    )
    assert server.seen[0]["authorization"] == "Bearer k3y"
    assert server.seen[0]["accept-encoding"] == "identity"


def test_one_connection_is_kept(server: Any, client: MetricsClient) -> None:
    ports: set[int] = set()

    def remember(handler: http.server.BaseHTTPRequestHandler) -> None:
        ports.add(handler.client_address[1])
        send(handler, b"vllm:num_requests_running 1\n")

    server.answer = remember
    assert [kind(client.scrape()) for _ in range(3)] == [None, None, None]
    assert len(ports) == 1


def send(handler: http.server.BaseHTTPRequestHandler, body: bytes, **headers: str) -> None:
    handler.send_response(200)
    for name, value in {"content-length": str(len(body)), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        client = MetricsClient(f"http://127.0.0.1:{taken.getsockname()[1]}/metrics")
        assert kind(client.scrape()) == "unreachable"
        client.close()


@pytest.mark.parametrize(
    "url", ["nonsense", "ftp://127.0.0.1/x", "http://[::1", "http://127.0.0.1:99999/", ""]
)
def test_a_url_that_is_none_is_unreachable(url: str) -> None:
    client = MetricsClient(url)
    assert kind(client.scrape()) == "unreachable"
    client.close()


@pytest.mark.parametrize("status", [301, 401, 404, 500])
def test_other_statuses_are_not_followed(server: Any, client: MetricsClient, status: int) -> None:
    server.status = status
    scrape = client.scrape()
    assert kind(scrape) == "status"
    assert scrape.failure is not None
    assert str(status) in scrape.failure.text
    assert ("redirects" in scrape.failure.text) == (status == 301)


@pytest.mark.parametrize(
    ("content_type", "page", "expected"),
    [
        ("text/html; charset=utf-8", "vllm:num_requests_running 1\n", "not_prometheus"),
        ("application/json", "{}", "not_prometheus"),
        ("text/plain", "<html><body>hello</body></html>", "not_prometheus"),
        ("text/plain", "", "not_prometheus"),
        ("text/plain", "# TYPE node_cpu counter\nnode_cpu 1\n", "unknown_engine"),
    ],
)
def test_what_is_no_page_of_an_engine(
    server: Any, client: MetricsClient, content_type: str, page: str, expected: str
) -> None:
    server.content_type, server.page = content_type, page
    assert kind(client.scrape()) == expected


def test_json_at_metrics_says_where_another_engine_has_its_page(server: Any, client: MetricsClient) -> None:
    """trtllm-serve answers /metrics with statistics of its iterations, in JSON."""
    server.content_type, server.page = "application/json", "[]"
    failure = client.scrape().failure
    assert failure is not None
    assert "/prometheus/metrics" in failure.text


def test_a_server_that_never_answers(server: Any, client: MetricsClient) -> None:
    server.answer = lambda _handler: time.sleep(2)
    begin = time.monotonic()
    assert kind(client.scrape()) == "timeout"
    assert time.monotonic() - begin < 1.9


def test_a_server_that_trickles_cannot_hold_us(server: Any, client: MetricsClient) -> None:
    def trickle(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("content-length", "1000000")
        handler.end_headers()
        for _ in range(40):
            handler.wfile.write(b"#\n")
            handler.wfile.flush()
            time.sleep(0.1)

    server.answer = trickle
    begin = time.monotonic()
    assert kind(client.scrape()) == "timeout"
    assert time.monotonic() - begin < 3


def test_a_page_without_end_is_refused(server: Any, client: MetricsClient) -> None:
    server.answer = lambda handler: send(handler, b"x" * (MAX_PAGE_BYTES + 100_000))
    assert kind(client.scrape()) == "too_large"


def test_a_compressed_bomb_is_refused(server: Any, client: MetricsClient) -> None:
    bomb = gzip.compress(b"x" * (20 * MAX_PAGE_BYTES))
    server.answer = lambda handler: send(handler, bomb, content_encoding="gzip")
    assert kind(client.scrape()) == "too_large"


def test_a_connection_that_breaks_mid_page_is_no_page(server: Any, client: MetricsClient) -> None:
    def cut(handler: http.server.BaseHTTPRequestHandler) -> None:
        send(handler, b"vllm:num_requests_running 12", content_length="500")
        handler.close_connection = True

    server.answer = cut
    assert kind(client.scrape()) == "unreachable"


def test_it_recovers_when_the_server_does(server: Any, client: MetricsClient) -> None:
    server.status = 503
    assert kind(client.scrape()) == "status"
    server.status = 200
    assert kind(client.scrape()) is None


def test_bytes_that_are_no_utf8_do_not_hurt(server: Any, client: MetricsClient) -> None:
    server.answer = lambda handler: send(handler, b'vllm:x{a="\xff\xfe"} 1\nvllm:num_requests_running 2\n')
    scrape = client.scrape()
    assert scrape.page is not None
    assert scrape.page.readings == [("engine.requests_running", {}, 2.0)]
