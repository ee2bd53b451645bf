"""Log probabilities: against the model written down plainly, in both forms of OpenAI, streamed and whole."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest
import torch

from reference_server.logprobs import ChatLogprobs, CompletionLogprobs, TokenLogprobs, of_choice
from reference_server.models.tiny import random_weights
from reference_server.models.tokenizer import EOS
from reference_server.sampler import SamplingParams
from reference_server.sequence import Sequence
from tests.reference_server.server_process import events_of
from tests.reference_server.server_rig import SMALL, TOKENIZER, Rig, naive_logits
from tests.reference_server.test_http import CHAT, COMPLETIONS, chat, completion


def oracle(sequence: Sequence, position: int, *, may_end: bool) -> torch.Tensor:
    """Log probabilities of the token after `position`, over those that may come."""
    row = naive_logits(SMALL, random_weights(SMALL, 0), sequence.tokens[: position + 1])[position]
    allowed = [t for t in TOKENIZER.sampleable() if may_end or t != EOS]
    out = torch.full_like(row, -math.inf)
    out[allowed] = torch.log_softmax(row[allowed], dim=-1)
    return out


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_the_numbers_are_those_of_a_plain_computation(temperature: float) -> None:
    """In a batch with one that asks for none, and after a preemption that computes tokens again."""
    rig = Rig(blocks=9, max_num_batched_tokens=24)
    params = SamplingParams(temperature=temperature, seed=3)
    asked = [rig.add(text, 24, sampling=params, ignore_eos=i == 0) for i, text in enumerate(("ab" * 20, "c"))]
    silent = rig.add("abc" * 12, 24)
    for sequence, count in zip(asked, (4, 0), strict=True):
        sequence.logprobs = count
    rig.drain()
    assert rig.value("num_preemptions_total") > 0
    assert all(event.logprobs is None for event in rig.events[silent.request_id])
    for sequence in asked:
        told = [event.logprobs for event in rig.events[sequence.request_id]]
        assert len(told) == sequence.num_output_tokens
        for n, each in enumerate(told):
            assert each is not None
            position = sequence.num_prompt_tokens + n - 1
            expected = oracle(sequence, position, may_end=bool(sequence.stop_tokens))
            assert each.token == sequence.tokens[position + 1]
            assert each.logprob == pytest.approx(float(expected[each.token]), abs=2e-4)
            assert len(each.top) == sequence.logprobs
            best = expected.topk(len(each.top)).values.tolist() if each.top else []
            assert [value for _, value in each.top] == pytest.approx(best, abs=2e-4)
            if temperature == 0.0 and each.top:
                assert each.top[0][1] == each.logprob


def test_forbidden_tokens_are_no_alternatives_and_the_rest_sums_to_one() -> None:
    logits = torch.tensor([1.0, -math.inf, 2.0, -math.inf, 0.5])
    found = of_choice(logits, 0, 5)
    assert [token for token, _ in found.top] == [2, 0, 4]
    assert sum(math.exp(value) for _, value in found.top) == pytest.approx(1.0)
    assert found.logprob == dict(found.top)[0]


def test_parts_of_a_character_and_marks_have_names_of_their_own() -> None:
    first, second = "é".encode()
    found = [TokenLogprobs(first, -1.0, ((first, -1.0), (second, -2.0))), TokenLogprobs(EOS, -0.5)]
    lists = CompletionLogprobs(TOKENIZER).told(found)
    assert lists["tokens"] == [f"bytes:\\x{first:02x}", "<|eos|>"]
    assert len(lists["top_logprobs"][0]) == 2
    entries = ChatLogprobs(TOKENIZER).told(found)["content"]
    assert [e["bytes"] for e in entries] == [[first], list(b"<|eos|>")]


def entries_of(body: dict[str, Any], client: httpx.Client) -> tuple[str, list[dict[str, Any]]]:
    chunks = events_of(client.post(CHAT, json={**body, "stream": True}).text)
    text = "".join(c["choices"][0]["delta"]["content"] for c in chunks)
    told = [c["choices"][0]["logprobs"] for c in chunks]
    return text, [entry for each in told if each is not None for entry in each["content"]]


def test_a_chat_tells_them_whole_and_streamed(client: httpx.Client) -> None:
    body = chat("tell me", logprobs=True, top_logprobs=3)
    whole = client.post(CHAT, json=body).json()["choices"][0]
    entries = whole["logprobs"]["content"]
    assert "".join(entry["token"] for entry in entries) == whole["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)
    assert all(entry["top_logprobs"][0]["token"] == entry["token"] for entry in entries)
    assert all(entry["logprob"] <= 0 for entry in entries)
    assert entries_of(body, client) == (whole["message"]["content"], entries)
    plain = client.post(CHAT, json=chat("tell me")).json()["choices"][0]
    assert (plain["message"], plain["logprobs"]) == (whole["message"], None)


def test_completions_tell_them_whole_and_streamed(client: httpx.Client) -> None:
    body = completion("tell me", logprobs=2)
    whole = client.post(COMPLETIONS, json=body).json()["choices"][0]
    lists = whole["logprobs"]
    assert "".join(lists["tokens"]) == whole["text"]
    assert lists["text_offset"] == list(range(6))
    assert all(top[token] == value for top, token, value in zip(
        lists["top_logprobs"], lists["tokens"], lists["token_logprobs"], strict=True
    ))  # fmt: skip
    chunks = events_of(client.post(COMPLETIONS, json={**body, "stream": True}).text)
    told = [c["choices"][0]["logprobs"] for c in chunks]
    assert {key: [x for each in told for x in each[key]] for key in lists} == lists
    alone = client.post(COMPLETIONS, json=completion("tell me", logprobs=0)).json()["choices"][0]
    assert alone["logprobs"]["top_logprobs"] is None
    assert alone["logprobs"]["token_logprobs"] == lists["token_logprobs"]


def test_text_that_a_stop_string_holds_back_loses_no_entry(client: httpx.Client) -> None:
    text = client.post(CHAT, json=chat("tell me", max_tokens=12)).json()["choices"][0]["message"]["content"]
    body = chat("tell me", max_tokens=12, logprobs=True, stop=text[7:10])
    whole = client.post(CHAT, json=body).json()
    assert whole["choices"][0]["finish_reason"] == "stop"
    kept, entries = entries_of(body, client)
    assert kept == whole["choices"][0]["message"]["content"]
    assert len(entries) == whole["usage"]["completion_tokens"]
    assert entries == whole["choices"][0]["logprobs"]["content"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, chat(logprobs=3), "logprobs"),
        (CHAT, chat(logprobs=True, top_logprobs=21), "top_logprobs"),
        (CHAT, chat(logprobs=True, top_logprobs=-1), "top_logprobs"),
        (CHAT, chat(top_logprobs=2), "top_logprobs"),
        (COMPLETIONS, completion(logprobs=True), "logprobs"),
        (COMPLETIONS, completion(logprobs=21), "logprobs"),
        (COMPLETIONS, completion(top_logprobs=2), "top_logprobs"),
    ],
)
def test_what_is_asked_wrongly_is_refused(
    client: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    reply = client.post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("nothing", [{"logprobs": False}, {"logprobs": None, "top_logprobs": 0}])
def test_asking_for_none(client: httpx.Client, nothing: dict[str, Any]) -> None:
    for path, body in ((CHAT, chat(**nothing)), (COMPLETIONS, completion(**nothing))):
        assert client.post(path, json=body).json()["choices"][0]["logprobs"] is None
