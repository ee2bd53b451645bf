"""llama.cpp's /slots and /props: what is told, what is not, and servers that refuse."""

from __future__ import annotations

import http.server
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvprobe.observe.metrics import MetricsClient
from kvprobe.observe.slots import SLOT_SERIES, read_slots, read_version

RECORDINGS = Path(__file__).parent / "recordings"
LLAMA = (RECORDINGS / "llama_cpp_b11434_after.txt").read_bytes()
IDLE = (RECORDINGS / "llama_cpp_slots_idle.json").read_bytes()
CUT = (RECORDINGS / "llama_cpp_slots_busy.json").read_bytes()
PROPS = (RECORDINGS / "llama_cpp_props.json").read_bytes()
FIRST = json.loads(CUT[: CUT.index(b',{"id":1')] + b"]")
"""The busy slot of the recording, which was cut after it."""


def of(body: bytes) -> dict[str, float]:
    return {metric: value for metric, _, value in read_slots(body)}


def test_a_busy_slot_of_the_recording() -> None:
    assert of(json.dumps([*FIRST, *json.loads(IDLE)[1:]]).encode()) == {
        "engine.slots": 4,
        "engine.slots_busy": 1,
        "engine.slot_context_tokens": 512,
        # 61 tokens of the prompt are in, 26 were made.
        "engine.slot_tokens": 87,
        "engine.slot_usage_ratio_max": 87 / 512,
    }


def test_idle_slots() -> None:
    got = of(IDLE)
    assert set(got) == set(SLOT_SERIES)
    assert (got["engine.slots"], got["engine.slots_busy"], got["engine.slot_usage_ratio_max"]) == (4, 0, 0)


@pytest.mark.parametrize(
    "body",
    [b"", CUT, b"{}", b"[]", b"[1]", b'[{"id":0}]', b'{"error":{"code":503}}', b"[" * 100_000, b"\xff"],
)
def test_anything_else_gives_no_reading(body: bytes) -> None:
    assert read_slots(body) == []


def test_steps_of_any_shape_do_not_hurt() -> None:
    for steps in (None, 5, "x", [], [{}], {"n_decoded": "x"}, [{"n_decoded": 3}], {"n_decoded": 3}):
        slot = {"n_ctx": 0, "is_processing": True, "next_token": steps}
        assert of(json.dumps([slot]).encode())["engine.slot_usage_ratio_max"] == 0


def test_the_version_of_props() -> None:
    assert read_version(PROPS) == "b0-unknown"
    for body in (b"", b"[]", b"{}", b'{"build_info":5}', b'{"build_info":""}', b"[" * 100_000):
        assert read_version(body) is None


Answers = dict[str, tuple[int, bytes]]


@pytest.fixture
def llama(server: Any) -> Callable[[Answers], list[str]]:
    """A server of these pages; returns the list of the paths that it was asked for."""

    def serve(answers: Answers) -> list[str]:
        asked: list[str] = []

        def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
            asked.append(handler.path)
            status, body = answers.get(handler.path, (404, b""))
            handler.send_response(status)
            handler.send_header("content-length", str(len(body)))
            handler.end_headers()
            handler.wfile.write(body)

        server.answer = answer
        return asked

    return serve


def scrape(url: str, times: int = 1) -> list[Any]:
    client = MetricsClient(url)
    try:
        return [client.scrape() for _ in range(times)]
    finally:
        client.close()


def test_a_scrape_of_llama_cpp_asks_for_its_slots_too(server: Any, llama: Any) -> None:
    asked = llama({"/metrics": (200, LLAMA), "/slots": (200, IDLE), "/props": (200, PROPS)})
    first, second = scrape(server.url, 2)
    for looked in (first, second):
        assert looked.page.version == "b0-unknown"
        assert looked.page.look("engine.slots") == 4
        assert looked.page.names["engine.slots"] == "GET /slots"
    assert asked.count("/slots") == 2
    assert asked.count("/props") == 1


def test_slots_that_are_switched_off_are_asked_for_once(server: Any, llama: Any) -> None:
    asked = llama({"/metrics": (200, LLAMA), "/slots": (501, b""), "/props": (403, b"")})
    for looked in scrape(server.url, 3):
        assert looked.page.engine == "llama.cpp"
        assert "engine.slots" not in looked.page.names
    assert (asked.count("/slots"), asked.count("/props")) == (1, 1)


def test_slots_that_are_busy_are_asked_for_again(server: Any, llama: Any) -> None:
    answers = {"/metrics": (200, LLAMA), "/slots": (503, b""), "/props": (200, PROPS)}
    asked = llama(answers)
    client = MetricsClient(server.url)
    client.scrape()
    answers["/slots"] = (200, IDLE)
    page = client.scrape().page
    client.close()
    assert page is not None
    assert page.look("engine.slots") == 4
    assert asked.count("/slots") == 2


def test_other_engines_are_not_asked(server: Any, llama: Any) -> None:
    asked = llama({"/metrics": (200, b"vllm:num_requests_running 1\n")})
    scrape(server.url)
    assert asked == ["/metrics"]


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"/": (200, b"Ollama is running")}, "Ollama exports no metrics"),
        ({}, "SGLang has one only with --enable-metrics"),
        ({"/metrics": (501, b"{}")}, "llama.cpp has one only with --metrics"),
        ({"/metrics": (401, b"")}, "the page wants a key"),
    ],
)
def test_an_engine_without_metrics_is_named_or_the_switch_is(
    server: Any, llama: Any, answers: Answers, words: str
) -> None:
    asked = llama(answers)
    first, second = scrape(server.url, 2)
    assert first.failure is not None
    assert words in first.failure.text
    assert second.failure == first.failure
    assert asked.count("/") <= 1
