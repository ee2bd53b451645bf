"""Limits that a request or a client runs into, on a real process; each answers in OpenAI's form."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest

from tests.reference_server.log_lines import undocumented
from tests.reference_server.server_process import ServerProcess, events_of, until
from tests.reference_server.test_http import CHAT, COMPLETIONS, chat, completion


@pytest.fixture(scope="module")
def strict() -> Iterator[ServerProcess]:
    """A small pool, few streams, and the swap pool's option on."""
    with ServerProcess(
        *("--request-deadline", "60", "--kv-memory", "8MiB", "--max-streams", "2"),
        *("--preemption", "swap", "--swap-space", "4MiB", "--allocator", "contiguous-exact"),
    ) as server:
        yield server


def _error(reply: httpx.Response, status: int) -> dict[str, object]:
    assert reply.status_code == status
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == status
    return dict(error)


def test_a_request_beyond_its_deadline_ends_with_an_error() -> None:
    """1,900 tokens in 0.25 s are beyond any machine; a first token in that time is not beyond most."""
    body = completion("x" * 50, max_tokens=1900)
    told = "the request did not finish within 0.25 s"
    limits = ("--request-deadline", "0.25", "--kv-memory", "8MiB", "--max-model-len", "2048")
    with ServerProcess(*limits) as hasty:
        error = _error(httpx.post(hasty.url + COMPLETIONS, json=body, timeout=60), 408)
        assert error["message"] == told
        reply = httpx.post(hasty.url + COMPLETIONS, json={**body, "stream": True}, timeout=60)
        if reply.status_code == 200:
            events = events_of(reply.text)
            assert events[-1]["error"]["message"] == told
            assert 0 < len(events) < 1900
        until(lambda: hasty.metric("num_requests_running") == 0)
        assert hasty.metric("kv_used_bytes") == 0


def test_what_could_never_run_is_refused_at_once(strict: ServerProcess) -> None:
    for body, param in (
        (completion("x" * 2500), "max_tokens"),
        (completion("x" * 9000), "input_tokens"),
        (completion("x", max_tokens=2**30), "max_tokens"),
    ):
        error = _error(httpx.post(strict.url + COMPLETIONS, json=body), 400)
        assert error["param"] == param


def test_depth_body_headers_and_streams(strict: ServerProcess) -> None:
    deep = httpx.post(strict.url + CHAT, content=b"[" * 200 + b"]" * 200)
    assert "nested deeper than 64" in str(_error(deep, 400)["message"])
    _error(httpx.post(strict.url + CHAT, content=b" " * (1024**2 + 1)), 413)
    _error(httpx.get(strict.url + "/health", headers={"x-large": "y" * 33_000}), 431)
    _error(httpx.post(strict.url + CHAT, content=b'{"messages": 1, "model": NaN}'), 400)
    open_ones = [strict.post_raw(CHAT, chat("x", max_tokens=1900, stream=True)) for _ in range(2)]
    try:
        until(lambda: strict.metric("num_requests_running") == 2)
        _error(httpx.post(strict.url + CHAT, json=chat()), 429)
    finally:
        for connection in open_ones:
            connection.close()
    until(lambda: strict.metric("num_requests_running") == 0)


def test_refusals_are_logged_in_our_words_only(strict: ServerProcess) -> None:
    secret = "no-such-model-" + "z" * 20
    httpx.post(strict.url + CHAT, json=chat(model=secret))
    httpx.post(strict.url + CHAT, json=chat(messages=[{"role": secret, "content": secret}]))
    log = strict.log()
    assert secret not in log
    for status in (400, 404, 413, 429, 431):
        assert f"refused with {status}: " in log
    assert re.search(r"refused with 400: The request needs \d+ tokens of KV cache", log)
    messages = [line.split(": ", 1)[1] for line in log.splitlines()]
    # The words of other refusals are those of the answers.
    assert undocumented([m for m in messages if not m.startswith("refused with")]) == []
