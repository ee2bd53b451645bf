"""The checks of the target against servers whose streams and counts are wrong."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import Callable

import httpx
import pytest

from kvprobe.doctor import asking, prefix_probe, target
from kvprobe.doctor.asking import Answer, stream_one
from kvprobe.doctor.model import Check
from kvprobe.doctor.prefix_probe import Repeat, Reuse
from kvprobe.load.chunks import Usage
from tests.faults.kit import DONE, OK_HEAD, Exchange, answer, answering, chunk, http_chunk, serve, usage

ONE = chunk("a", finish="length")


def asked(response: bytes) -> Answer:
    """What comes of one request to a server that always answers so."""
    with serve(answering(response)) as server, httpx.Client(trust_env=False) as client:
        return stream_one(client, server.url, "m", "x", 8)


def events(*pieces: bytes) -> bytes:
    return answer(b"".join(pieces), "text/event-stream")


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (events(b"data: ", b"x" * (1 << 21)), "larger than"),
        (answer(b'{"choices": []}'), "application/json, not an event stream"),
        (
            answer(gzip.compress(ONE + DONE), "text/event-stream", extra="Content-Encoding: gzip\r\n"),
            "compressed (gzip)",
        ),
        (
            answer(b"", status="307 Elsewhere", extra="Location: http://other/x?key=canary-3\r\n"),
            "redirects to http://other/x, which is not followed",
        ),
    ],
    ids=["an event without end", "no stream", "compressed", "a redirect"],
)
def test_an_answer_that_is_no_stream_is_said_to_be_none(response: bytes, said: str) -> None:
    found = asked(response)
    assert found.error is not None
    assert said in found.error
    assert "canary-3" not in found.error
    assert target.stream(found).status == "fail"


def test_a_refusal_that_never_ends_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_TIMEOUT_S", 0.3)
    waited_for: list[bool] = []

    async def trickle(exchange: Exchange) -> None:
        with contextlib.suppress(ConnectionError):
            await exchange.request()
            await exchange.send(OK_HEAD.replace(b"200 OK", b"500 No"))
            for _ in range(100):
                await exchange.send(http_chunk(b"x"))
                await asyncio.sleep(0.05)
            waited_for.append(True)

    with serve(trickle) as server, httpx.Client(trust_env=False) as client:
        found = stream_one(client, server.url, "m", "x", 8)
    assert found.status == 500
    assert found.error is not None
    assert not waited_for


def test_an_answer_that_stays_open_behind_its_end_is_not_waited_for() -> None:
    async def stay(exchange: Exchange) -> None:
        await exchange.stream(ONE, DONE)
        await exchange.hang()

    with serve(stay) as server, httpx.Client(trust_env=False) as client:
        found = stream_one(client, server.url, "m", "x", 8)
    assert (found.done, found.error) == (True, None)


def test_usage_that_is_stated_in_full_and_then_empty_counts() -> None:
    full = usage(prompt_tokens=9, completion_tokens=1, prompt_tokens_details={"cached_tokens": 4})
    found = asked(events(ONE, full, usage(prompt_tokens=None), DONE))
    assert target.usage(found).status == "ok"
    assert asking.cached_tokens(found.usage) == 4


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((0, 0, None), "text came"),
        ((9, 0, None), "text came"),
        ((9, 5_000, None), "max_tokens was 8"),
        ((9, 1, 16), "more than all of it"),
        ((9, 8, 9), None),
    ],
)
def test_counts_that_cannot_be_are_told(counts: tuple[int, int, int | None], said: str | None) -> None:
    prompt, completion, cached = counts
    stated = Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)
    check = target.usage(Answer(status=200, first_token_s=0.1, usage=stated))
    assert check.status == ("ok" if said is None else "warn")
    assert said is None or said in check.text


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Check]:
    """What is said of these repeats: (prompt tokens, cached of the first, cached of the second)."""

    def judge(*repeats: tuple[int, int | None, int | None]) -> Check:
        found = Reuse([Repeat(*numbers) for numbers in repeats], units=(16,))
        monkeypatch.setattr(prefix_probe, "probe", lambda *_, **__: found)
        with httpx.Client() as client:
            return target.prefix_cache(target.Asked(client, "http://x", "m", "", {}, False), "m")

    return judge


def test_hits_that_cannot_be_are_not_believed(judged: Callable[..., Check]) -> None:
    assert judged((100, 0, 500)).status == "unknown"
    same = judged((100, 96, 96), (180, 96, 96))
    assert (same.status, "never saw" in same.text) == ("unknown", True)
    # A template that all prompts begin with was cached before; the repeat took more.
    assert judged((100, 32, 96)).status == "ok"


def test_the_hits_that_are_told_are_those_of_the_prompt_that_is_told(judged: Callable[..., Check]) -> None:
    text = judged((300, 0, 288), (700, 0, 688), (410, 0, 400)).text
    assert "a repeat of 700 tokens took 688" in text


def test_a_server_that_leaves_out_a_hit_of_nothing(judged: Callable[..., Check]) -> None:
    """vLLM's detail is null where no token was cached, as below one block."""
    found = judged((200, None, None), (700, None, 544))
    assert (found.status, "a repeat of 700 tokens took 544" in found.text) == ("ok", True)
    assert judged((200, None, None), (700, None, None)).status == "unknown"


def test_a_slow_server_gets_no_further_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_probe, "BUDGET_S", -1.0)
    sent: list[str] = []

    def ask(text: str) -> Answer:
        sent.append(text)
        return Answer(status=200, usage=Usage(prompt_tokens=100, cached_tokens=96))

    assert len(prefix_probe.probe(ask, 1).repeats) == 1
    assert len(sent) == 2


def test_a_host_name_that_no_name_can_be_is_no_crash() -> None:
    check = target.tls(f"https://{'a' * 70}.example", insecure=False)
    assert check.status == "unknown"
