"""`kvprobe quality` against servers that break: what was not answered is no loss, and nothing hangs."""

from __future__ import annotations

import contextlib
import json
import math
import signal
import socket
import subprocess
import threading
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from kvprobe.cli.main import main
from kvprobe.quality import exchange
from kvprobe.quality.asking import GIVE_UP
from kvprobe.quality.divergence import divergence
from kvprobe.quality.given import read_answer
from kvprobe.quality.items import Item
from kvprobe.quality.model import quality_schema
from tests.e2e.conftest import command
from tests.quality.odd_server import Behaviour, Body, asked, chat, echo, odd_server, question

ITEMS = 60


class Comparison:
    """`kvprobe quality` between two odd servers, in this process."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file = folder / "questions.jsonl"
        self.file.write_text(asked(ITEMS))
        self._capsys = capsys

    def of(self, a: Behaviour, b: Behaviour, *argv: str) -> tuple[int, Any]:
        with odd_server(a) as one, odd_server(b) as other:
            args = ["quality", "--baseline", one.url, "--candidate", other.url, "--dataset", str(self.file)]
            code = main([*args, "--items", str(ITEMS), *argv])
        out = self._capsys.readouterr().out
        if "--json" not in argv:
            return code, out
        found = json.loads(out)
        if found["schema"] == "kvprobe.quality/1":
            jsonschema.validate(found, quality_schema())
        return code, found


@pytest.fixture
def comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Comparison:
    return Comparison(tmp_path, capsys)


def dies_after(count: int) -> Behaviour:
    return lambda body, number: echo(body, number) if number <= count else None


def garbage_after(count: int) -> Behaviour:
    return lambda body, number: echo(body, number) if number <= count else b"\xff\xfe not JSON"


@pytest.mark.parametrize("breaks", [dies_after(20), garbage_after(20)])
def test_a_server_that_breaks_midway_has_lost_no_quality(comparison: Comparison, breaks: Behaviour) -> None:
    for name, sides in (("candidate", (echo, breaks)), ("baseline", (breaks, echo))):
        code, found = comparison.of(*sides, "--json")
        assert code == 4
        assert found["verdict"] == "n_too_small"
        assert found["diagnosis"]["primary"] == "unknown"
        validity = found["diagnosis"]["validity"]
        assert validity["valid"] is False
        assert f"the {name} left" in validity["reasons"][0]
        assert "not asked" not in validity["reasons"][0]  # but what the first of them met
        together = found["passes"][0]["tests"][0]
        assert together["n"] < 30
        assert together["only_baseline"] == together["only_candidate"] == 0


def test_a_dead_server_is_not_asked_to_the_end(comparison: Comparison) -> None:
    with odd_server(dies_after(5)) as broken:
        args = ["--dataset", str(comparison.file), "--items", str(ITEMS), "--json", "--at-once", "2"]
        with odd_server(echo) as whole:
            assert main(["quality", "--baseline", whole.url, "--candidate", broken.url, *args]) == 4
        assert broken.asked <= 5 + GIVE_UP + 2 + 1


def test_the_page_of_an_invalid_comparison_says_so(comparison: Comparison) -> None:
    code, page = comparison.of(echo, dies_after(20))
    assert code == 4
    assert page.startswith("INVALID")
    assert "not judged" in page


def test_single_refusals_are_left_out_and_told(comparison: Comparison) -> None:
    """Of the very first question too, by a status that also says `no log probabilities`."""

    def picky(body: Body, number: int) -> Any:
        if question(body).endswith("7") or number == 1:
            return 400, b'{"error": {"message": "content filter \x1b[2J"}}'
        return echo(body, number)

    code, found = comparison.of(picky, picky, "--json")
    assert code == 0
    assert found["verdict"] == "no_loss_shown"
    assert found["passes"][0]["tests"][0]["n"] == ITEMS - 6
    assert found["passes"][0]["unpaired"] == [0, 0]
    assert any("6 by both" in warning for warning in found["warnings"])
    _, page = comparison.of(picky, picky)
    assert "content filter" in page
    assert "\x1b[2J" not in page


def test_few_of_one_side_are_counted_as_if_they_hid_a_loss(comparison: Comparison) -> None:
    """3 of 60 by the candidate alone: valid, and no more than 5 points may hide there."""

    def picky(body: Body, number: int) -> Any:
        return (400, b"{}") if question(body)[-2:] in ("07", "17", "27") else echo(body, number)

    assert comparison.of(echo, picky, "--json", "--margin", "0.1")[1]["verdict"] == "no_loss_shown"
    assert comparison.of(echo, picky, "--json", "--margin", "0.05")[1]["verdict"] == "n_too_small"
    assert comparison.of(echo, echo, "--json", "--margin", "0.05")[1]["verdict"] == "no_loss_shown"


def test_a_server_that_asks_for_patience_gets_it_and_keeps_its_log_probabilities(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "DEFAULT_WAIT_S", 0.01)

    def busy(body: Body, number: int) -> Any:
        if number % 3 == 0:
            return 429, b"{}"
        text = question(body).partition(": ")[2]
        told = {"content": [{"token": text, "logprob": -0.1}]} if body.get("logprobs") else None
        return chat(text, logprobs=told)

    code, found = comparison.of(busy, busy, "--json", "--at-once", "1")
    assert (code, found["verdict"]) == (0, "no_loss_shown")
    assert found["passes"][0]["unanswered"] == [0, 0]
    assert found["passes"][0]["divergence"]["logprob_tokens"] == ITEMS


def without_logprobs(body: Body, number: int) -> Any:
    """Refuses the parameter, as many servers do."""
    return (400, b'{"error": "logprobs is not supported"}') if "logprobs" in body else echo(body, number)


def test_a_server_that_refuses_log_probabilities_is_asked_without(comparison: Comparison) -> None:
    code, found = comparison.of(without_logprobs, echo, "--json")
    assert (code, found["verdict"]) == (0, "no_loss_shown")
    assert any("no log probabilities" in warning for warning in found["warnings"])


@pytest.mark.parametrize(
    "value", ["NaN", "-Infinity", "-1" + "0" * 400, '"x"', "true", "{}", "[1]", "null", "7.5"]
)
def test_numbers_that_are_no_log_probabilities(value: str) -> None:
    entry = b'"logprobs": {"content": [{"token": "a", "logprob": %s, "top_logprobs": [7]}]}, "index"'
    given = read_answer(chat("a").replace(b'"index"', entry % value.encode()))
    assert (given.text, given.error) == ("a", None)
    assert (given.logprobs, given.tokens, given.alternatives) == (None, None, None)
    assert divergence([given], [given]).logprob_difference is None


@pytest.mark.parametrize("text", [None, "", [{"type": "text"}], [], {"a": 1}, 7])
def test_what_is_no_text_is_an_empty_answer(text: Any) -> None:
    given = read_answer(chat(text))
    assert (given.text, given.error) == ("", None)


def test_hostile_texts_are_answers_and_are_not_shown(comparison: Comparison) -> None:
    """Half a surrogate pair, escapes, a very long text: answered, and wrong."""
    texts = ("\ud800", "\x1b]0;x\x07<script>", "\u00e9" * 50_000)

    def hostile(body: Body, number: int) -> bytes:
        return chat(texts[number % 3])

    code, found = comparison.of(echo, hostile, "--json")
    assert (code, found["verdict"]) == (0, "loss")
    code, page = comparison.of(hostile, hostile)
    assert code == 0
    assert "\x1b" not in page


def test_text_parts_are_a_text() -> None:
    assert read_answer(chat([{"type": "text", "text": "a"}, {"type": "image"}, {"text": "b"}])).text == "ab"


@pytest.mark.parametrize(
    "body",
    [b"[" * 200_000, b"", b"null", b"[]", b'{"choices": []}', b'{"choices": [7]}', b'{"choices": ""}'],
)
def test_a_body_of_another_form_is_no_answer(body: bytes) -> None:
    given = read_answer(body)
    assert given.broken
    assert given.error is not None


def test_a_server_of_another_form_is_a_target_error(comparison: Comparison) -> None:
    code, found = comparison.of(lambda b, n: b"[" * 200_000, echo, "--json")
    assert code == 3
    assert found["schema"] == "kvprobe.error/1"


def test_an_answer_without_end_is_left_at_a_bound(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "MAX_ANSWER_BYTES", 1 << 16)
    code, found = comparison.of(lambda body, number: chat("x" * (1 << 20)), echo, "--json")
    assert code == 3
    assert "longer than" in found["errors"][0]["message"]


def test_an_answer_that_comes_drop_by_drop_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each drop is in time; the whole never comes."""
    monkeypatch.setattr(exchange, "ANSWER_TIMEOUT_S", 0.5)
    over = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            with contextlib.suppress(OSError):
                while not over.wait(0.02):
                    connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as listener, httpx.Client(trust_env=False) as client:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        given = exchange.Exchange(url, "m", client).ask(Item("1", "k", "?", "x", "exact", 8))
        over.set()
        thread.join(10)
    assert given.broken
    assert "no whole answer" in (given.error or "")


def test_answers_that_name_another_model_are_told(comparison: Comparison) -> None:
    def routed(body: Body, number: int) -> bytes:
        return echo(body, number).replace(b'"model": "m"', b'"model": "other"')

    _, found = comparison.of(echo, routed, "--json")
    assert any("answers name other" in warning for warning in found["warnings"])


def test_one_server_under_two_names_is_told_and_shows_no_difference(
    comparison: Comparison, capsys: pytest.CaptureFixture[str]
) -> None:
    with odd_server(echo) as one:
        other = one.url.replace("127.0.0.1", "localhost")
        argv = ["--dataset", str(comparison.file), "--items", str(ITEMS), "--json"]
        assert main(["quality", "--baseline", one.url, "--candidate", other, *argv]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "no_loss_shown"
    assert found["passes"][0]["divergence"]["identical"] == 1.0
    assert any("one port under two names" in warning for warning in found["warnings"])


def test_a_bad_file_is_told_before_any_server_is_asked(tmp_path: Path) -> None:
    argv = ["--dataset", str(tmp_path / "none"), "--json"]
    assert (
        main(["quality", "--baseline", "http://127.0.0.1:9", "--candidate", "http://127.0.0.1:10", *argv])
        == 2
    )


def test_one_question_only(comparison: Comparison) -> None:
    comparison.file.write_text(asked(1))
    code, found = comparison.of(echo, echo, "--json")
    assert (code, found["verdict"], found["items"]) == (0, "n_too_small", 1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_keeps_what_was_got(tmp_path: Path, number: int, code: int) -> None:
    """Both servers stop answering after 45 questions: the process hangs on them, and is interrupted."""
    stuck, free = threading.Event(), threading.Event()

    def stops(body: Body, count: int) -> bytes:
        if count > 45:
            stuck.set()
            free.wait(60)
        return echo(body, count)

    file = tmp_path / "q.jsonl"
    file.write_text(asked(ITEMS))
    with odd_server(stops) as one, odd_server(stops) as other:
        argv = ["quality", "--baseline", one.url, "--candidate", other.url, "--dataset", str(file)]
        process = subprocess.Popen(
            command(*argv, "--items", str(ITEMS), "--json"), stdout=subprocess.PIPE, text=True
        )
        assert stuck.wait(60)
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)  # not as long as a question may take
        free.set()
    assert process.returncode == code
    found = json.loads(out)
    jsonschema.validate(found, quality_schema())
    assert found["status"] == "partial"
    assert 32 <= found["passes"][0]["tests"][0]["n"] < ITEMS
    assert "stopped by a signal" in found["warnings"][0]
    assert math.isclose(found["passes"][0]["tests"][0]["difference"], 0.0)
