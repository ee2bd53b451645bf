"""Parameters: honoured, or refused; never passed over where they would change the answer."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from reference_server.errors import RequestError
from reference_server.models.tokenizer import ByteTokenizer
from reference_server.parameters import NEUTRAL, refuse_unserved
from reference_server.protocol import CompletionRequest
from reference_server.sequence import FinishReason
from tests.reference_server.server_process import events_of
from tests.reference_server.server_rig import Rig
from tests.reference_server.test_core import words
from tests.reference_server.test_http import CHAT, COMPLETIONS, chat, completion

ASKED: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "response_format": {"type": "json_object"},
    "logit_bias": {"65": 100},
    "presence_penalty": 1.5,
    "repetition_penalty": 1.3,
    "top_k": 1,
    "stop_token_ids": [65],
    "n": 0,
    "best_of": 3,
    "prompt_logprobs": 1,
    "guided_json": {},
    "echo": True,
    "truncate_prompt_tokens": 5,
}


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_would_change_the_answer_is_refused(client: httpx.Client, path: str) -> None:
    for name, value in ASKED.items():
        body = chat(**{name: value}) if path == CHAT else completion(**{name: value})
        reply = client.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, name)
        assert name in reply.json()["error"]["message"]


def test_values_that_ask_for_nothing_are_served(client: httpx.Client) -> None:
    nothing = {name: values[0] if values else None for name, values in NEUTRAL.items()}
    nothing |= {"user": "me", "metadata": {"a": "b"}, "priority": 1}
    plain = client.post(CHAT, json=chat()).json()["choices"]
    assert client.post(CHAT, json=chat(**nothing)).json()["choices"] == plain
    assert client.post(CHAT, json=chat(**dict.fromkeys(NEUTRAL))).json()["choices"] == plain


def test_true_is_not_1_and_the_refusal_says_what_is_served() -> None:
    with pytest.raises(RequestError, match="except as 1"):
        refuse_unserved(msgspec.json.encode({"n": True}))
    refuse_unserved(msgspec.json.encode({"top_k": 0.0, "presence_penalty": 0, "tools": []}))


@pytest.mark.parametrize(
    "body",
    [
        b'{"prompt": "a", "n": 1e999}',
        b'{"prompt": "a", "logit_bias": {"1": -1e999}}',
        b'{"prompt": "a", "suffix": "\xff"}',
        b'{"prompt": "a", "chat_template": "\\ud800"}',
        b'{"prompt": "a", "\\udc00": 1}',
    ],
)
def test_what_the_typed_parser_skips_is_no_defect_of_ours(client: httpx.Client, body: bytes) -> None:
    """Numbers beyond a float and text that is none, in parameters that are looked at afterwards."""
    reply = client.post(COMPLETIONS, content=body)
    assert reply.status_code == 400
    assert "no valid JSON" in reply.json()["error"]["message"]


class _Markless(ByteTokenizer):
    """Puts no mark before a text, as Qwen's does not."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())


@pytest.mark.parametrize("prompt", ["", [""], []])
def test_a_prompt_of_no_tokens_is_refused(prompt: str | list[int | str]) -> None:
    with pytest.raises(RequestError, match="the prompt is empty"):
        CompletionRequest(prompt=prompt).encode(_Markless())


def test_parts_of_a_conversation_that_would_be_lost_are_refused(client: httpx.Client) -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    reply = client.post(CHAT, json=chat(messages=[message]))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "messages")
    options = {"include_usage": True, "continuous_usage_stats": True}
    reply = client.post(CHAT, json=chat(stream=True, stream_options=options))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "stream_options")


def test_the_stop_string_that_ended_an_answer_is_named(client: httpx.Client) -> None:
    text = client.post(COMPLETIONS, json=completion("stop", max_tokens=20)).json()["choices"][0]["text"]
    body = completion("stop", max_tokens=20, stop=["\u00e9", text[5:7]])
    (whole,) = client.post(COMPLETIONS, json=body).json()["choices"]
    last = events_of(client.post(COMPLETIONS, json={**body, "stream": True}).text)[-1]["choices"][0]
    assert whole["stop_reason"] == last["stop_reason"] == text[5:7]
    (length,) = client.post(COMPLETIONS, json=completion("stop")).json()["choices"]
    assert length["stop_reason"] is None


def test_min_tokens_holds_back_stop_strings() -> None:
    rig = Rig()
    text = rig.generate([words(2, 30)], 30)[0]
    stop = text[3]
    sequence = rig.add(words(2, 30), 30, stops=[stop])
    sequence.min_tokens = 10
    rig.drain()
    later = text.find(stop, 10)
    assert rig.text(sequence) == (text[:later] if later >= 0 else text)
    assert sequence.num_output_tokens > 10


def test_min_tokens_holds_back_the_end_of_sequence() -> None:
    """Whatever the model would choose: the end is forbidden, then allowed again."""
    rig = Rig()
    rig.core.runner._forbidden[:] = float("-inf")
    rig.core.runner._forbidden[[65, 257]] = 0.0
    free = rig.add(words(1, 20), 200, ignore_eos=False)
    held = rig.add(words(1, 20), 200, ignore_eos=False)
    held.min_tokens = 150
    rig.drain()
    assert free.finished is FinishReason.STOP
    assert free.num_output_tokens < 150
    assert held.tokens[held.num_prompt_tokens :][:150] == [65] * 150


def test_min_tokens_beyond_max_tokens_is_refused(client: httpx.Client) -> None:
    assert client.post(CHAT, json=chat(min_tokens=6)).status_code == 200
    reply = client.post(CHAT, json=chat(min_tokens=7))
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "min_tokens")
