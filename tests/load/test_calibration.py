"""Calibration against real HTTP servers that speak each dialect, and against broken ones."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import httpx
import pytest

from kvprobe.load import calibration
from kvprobe.load.calibration import calibrate
from kvprobe.load.job import Calibration
from kvprobe.load.prompts import PromptSource
from kvprobe.load.token_view import split_pieces
from kvprobe.load.tool_list import TOOL_LINES
from kvprobe.load.workload import load_workload
from tests.faults.kit import Exchange, serve

Answer = tuple[int, bytes]
Handler = Callable[[str, dict[str, Any], dict[str, str]], Answer]


@contextmanager
def serving(handle: Handler) -> Iterator[tuple[str, list[str]]]:
    """A server on a free loopback port; gives its URL and the paths it was asked for."""
    asked: list[str] = []

    class Server(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet, or each call waits for a delayed acknowledgement

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append(self.path)
            status, data = handle(self.path, body, dict(self.headers))
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Words:
    """A toy tokenizer: pieces of at most five characters of a word, the space with the word."""

    def __init__(self, width: int = 5) -> None:
        self.width = width
        self.ids: dict[str, int] = {}

    def encode(self, text: str) -> list[int]:
        parts = [p[i : i + self.width] for p in split_pieces(text) for i in range(0, len(p), self.width)]
        return [self.ids.setdefault(part, 100 + len(self.ids)) for part in parts]

    def chat(self, messages: list[dict[str, str]]) -> list[int]:
        """Start mark, three marks for a role, one at each end, three to ask for an answer."""
        ids = [1]
        for message in messages:
            role = {"system": 3, "user": 4, "assistant": 7}[message["role"]]
            ids += [2, role, 5, *self.encode(message["content"]), 6]
        return [*ids, 2, 7, 5]


def vllm(tokenizer: Words) -> Handler:
    def handle(path: str, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        if path != "/tokenize" or body.get("model") != "tiny" or headers.get("Authorization") != "Bearer k":
            return 404, b"{}"
        if "messages" in body:
            ids = tokenizer.chat(body["messages"])
        else:
            ids = ([1] if body.get("add_special_tokens", True) else []) + tokenizer.encode(body["prompt"])
        return 200, json.dumps({"count": len(ids), "max_model_len": 4096, "tokens": ids}).encode()

    return handle


def llama(tokenizer: Words) -> Handler:
    def handle(path: str, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        if path == "/apply-template":
            return 200, json.dumps({"prompt": json.dumps(body["messages"])}).encode()
        if path != "/tokenize" or "content" not in body:
            return 400, b'{"error": {"code": 400}}'
        if body.get("parse_special"):
            ids = tokenizer.chat(json.loads(body["content"]))
        else:
            ids = ([1] if body.get("add_special") else []) + tokenizer.encode(body["content"])
        return 200, json.dumps({"tokens": ids}).encode()

    return handle


def measure(url: str, endpoint: str = "chat", key: str | None = "k") -> Calibration:
    with httpx.Client() as client:
        return calibrate(url, "tiny", endpoint, key, client, PromptSource.vocabulary)


@pytest.mark.parametrize("width", [1, 5, 50], ids=["characters", "parts", "words"])
@pytest.mark.parametrize("form", [vllm, llama])
def test_both_dialects_give_exact_sizes_in_few_calls(form: Callable[[Words], Handler], width: int) -> None:
    tokenizer = Words(width)
    with serving(form(tokenizer)) as (url, asked):
        calibration = measure(url)
        assert len(asked) < 40
    assert calibration.source == "tokenize"
    assert calibration.check_relative_error == 0
    assert set(calibration.word_tokens) == set(PromptSource.vocabulary)
    for piece, tokens in calibration.word_tokens.items():
        assert tokens == len(tokenizer.encode(piece)), piece
    # Around one user message: start, three before, one after, three to ask for an answer.
    assert (calibration.template_tokens, calibration.template_prefix_tokens) == (8, 4)
    assert (calibration.system_template_tokens, calibration.system_template_prefix_tokens) == (12, 4)


@pytest.mark.parametrize("kind", ["shared_prefix", "distinct", "mixed_lengths", "timestamp_first"])
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_what_is_asked_is_what_the_server_counts(kind: str, endpoint: str) -> None:
    tokenizer = Words()
    with serving(vllm(tokenizer)) as (url, _):
        calibration = measure(url, endpoint)
    source = PromptSource(load_workload(kind, [("endpoint", endpoint)]), calibration, "salt")
    for index in range(45):
        request = source.request(index)
        if request.messages is not None:
            true = len(tokenizer.chat(request.messages))
        else:
            true = 1 + len(tokenizer.encode(request.prompt or ""))
        assert request.asked_prompt_tokens == true


class Digits(Words):
    """As several real ones: a token a word, a token a digit, the space before digits its own."""

    PIECES = re.compile(r"\n (?=\d)| (?=\d)|\d| ?[^\W\d]+|[\s\S]")

    def encode(self, text: str) -> list[int]:
        return [self.ids.setdefault(part, 100 + len(self.ids)) for part in self.PIECES.findall(text)]


@pytest.mark.parametrize("tokenizer", [Digits(), Words(1), Words(50)], ids=["digits", "bytes", "words"])
def test_prompts_with_a_time_part_where_the_tokenizer_parts_them(tokenizer: Words) -> None:
    """The stand-in tokens of a changing first line agree as far as the server's own do."""
    with serving(vllm(tokenizer)) as (url, _):
        calibration = measure(url)
    source = PromptSource(load_workload("timestamp_first"), calibration, "salt")
    order = range(10, 30)
    rows = [list(row) for _, row in source.token_rows(order)]
    true = [tokenizer.chat(source.request(index).messages or []) for index in order]
    assert [len(row) for row in rows] == [len(ids) for ids in true]
    assert [common(a, b) for a, b in pairwise(rows)] == [common(a, b) for a, b in pairwise(true)]


def common(one: list[int], other: list[int]) -> int:
    """Leading tokens that two rows share."""
    return next(at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)


def test_completions_count_the_mark_at_the_start() -> None:
    with serving(vllm(Words())) as (url, _):
        calibration = measure(url, "completions")
    assert (calibration.template_tokens, calibration.template_prefix_tokens) == (1, 1)


@pytest.mark.parametrize("width", [1, 50])
def test_line_breaks_that_merge_are_measured_word_by_word(width: int) -> None:
    class Merging(Words):
        """A line break and the character after it are one token."""

        def encode(self, text: str) -> list[int]:
            if "\n" not in text:
                return super().encode(text)
            lines = text.split("\n")
            rest = [super(Merging, self).encode(line[1:]) for line in lines[1:]]
            merged = [[self.ids.setdefault("\n" + line[:1], 100 + len(self.ids))] for line in lines[1:]]
            return super().encode(lines[0]) + [
                i for pair in zip(merged, rest, strict=True) for p in pair for i in p
            ]

    tokenizer = Merging(width)
    with serving(vllm(tokenizer)) as (url, asked):
        calibration = measure(url)
        assert len(asked) < 90
    assert calibration.source == "tokenize"
    assert calibration.check_relative_error is not None
    # Pieces that were not asked for are sized by their length: right for characters, near for words.
    assert calibration.check_relative_error <= (0.0 if width == 1 else 0.06)


def test_a_tokenizer_that_is_not_additive_is_told() -> None:
    class Shrinking(Words):
        """Every second token vanishes in long texts."""

        def encode(self, text: str) -> list[int]:
            ids = super().encode(text)
            return ids[::2] if len(ids) > 100 and "\n" not in text else ids

    with serving(vllm(Shrinking())) as (url, _):
        error = measure(url).check_relative_error
    assert error is not None
    assert error > 0.5


def test_a_template_that_refuses_system_messages() -> None:
    tokenizer = Words()
    base = vllm(tokenizer)

    def handle(path: str, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        if any(m["role"] == "system" for m in body.get("messages", ())):
            return 400, b'{"error": "system role not supported"}'
        return base(path, body, headers)

    with serving(handle) as (url, _):
        calibration = measure(url)
    assert (calibration.template_tokens, calibration.system_template_tokens) == (8, 8)


def test_a_chat_that_cannot_be_tokenised_leaves_the_words() -> None:
    base = vllm(Words())

    def handle(path: str, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        return (500, b"no") if "messages" in body else base(path, body, headers)

    with serving(handle) as (url, _):
        calibration = measure(url)
    assert calibration.source == "tokenize"
    assert calibration.template_tokens is None
    assert (
        PromptSource(load_workload("shared_prefix"), calibration, "s").request(5).asked_prompt_tokens == 2096
    )


BROKEN: dict[str, Answer] = {
    "absent": (404, b"not found"),
    "refused": (401, b"{}"),
    "html": (200, b"<html>"),
    "no list": (200, b'{"tokens": 5}'),
    "no numbers": (200, b'{"tokens": ["a"]}'),
    "empty": (200, b'{"tokens": []}'),
    "array": (200, b"[1, 2]"),
    "deep": (200, b"[" * 100_000),
    "endless": (200, b'{"tokens": [' + b"1, " * 3_000_000 + b"1]}"),
    "redirect": (302, b""),
    "not utf-8": (200, b"\xff\xfe{}"),
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN.keys())
def test_broken_endpoints_are_never_fatal(answer: Answer) -> None:
    with serving(lambda path, body, headers: answer) as (url, _):
        calibration = measure(url)
    assert calibration.source == "assumed"
    assert calibration.template_tokens is None
    source = PromptSource(load_workload("distinct"), calibration, "s")
    assert source.request(3).asked_prompt_tokens == pytest.approx(2100, abs=2)


def test_nobody_listening_is_not_fatal() -> None:
    began = time.monotonic()
    assert measure("http://127.0.0.1:9").source == "assumed"
    assert time.monotonic() - began < 30


def test_an_answer_that_drips_in_holds_nothing_up(monkeypatch):
    monkeypatch.setattr(calibration, "TIMEOUT_S", 0.3)

    async def fault(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            await exchange.send(b" ")

    begin = time.monotonic()
    with serve(fault) as server, httpx.Client(trust_env=False) as client:
        result = calibrate(server.url, "m", "chat", None, client, PromptSource.vocabulary)
    assert result.source == "assumed"
    assert time.monotonic() - begin < 20, "and not the 500 s that the answers would take"


def test_a_slow_tokenizer_is_given_up_as_a_whole(monkeypatch):
    monkeypatch.setattr(calibration, "BUDGET_S", 0.2)

    def handle(path: str, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        time.sleep(0.15)
        return 200, b'{"tokens": [1, 2, 3]}'

    with serving(handle) as (url, asked), httpx.Client(trust_env=False) as client:
        result = calibrate(url, "tiny", "chat", "k", client, PromptSource.vocabulary)
    assert result.source == "assumed"
    assert len(asked) < 10


def test_history_and_whole_lines_are_measured_when_asked_for() -> None:
    tokenizer = Words(50)
    with serving(vllm(tokenizer)) as (url, _), httpx.Client() as client:
        pieces = (*PromptSource.vocabulary, *TOOL_LINES)
        found = calibrate(url, "tiny", "chat", "k", client, pieces, history=True)
        plain = calibrate(url, "tiny", "chat", "k", client, PromptSource.vocabulary)
    # Four marks around each of two messages.
    assert found.turn_template_tokens == 8
    assert plain.turn_template_tokens == 0
    assert plain.default_word_tokens == found.default_word_tokens
    for line in TOOL_LINES:
        assert found.word_tokens[line] == len(tokenizer.encode(line))
    assert {k: v for k, v in found.word_tokens.items() if k not in TOOL_LINES} == plain.word_tokens
