"""Small parts: sizes, tokenizer, text stream, sampler, nesting."""

from __future__ import annotations

import argparse

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reference_server.config import parse_arguments, parse_size
from reference_server.detokenizer import TextStream
from reference_server.errors import RequestError
from reference_server.limits import check_depth
from reference_server.models.tiny import TINY
from reference_server.models.tokenizer import ByteTokenizer
from reference_server.sampler import SamplingParams, TokenChooser, sample

TOKENIZER = ByteTokenizer()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256MiB", 2**28),
        ("1GB", 10**9),
        ("1.5GiB", 3 * 2**29),
        ("4096 B", 4096),
        ("2kb", 2000),
        ("2KiB", 2048),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "256", "MiB", "-1MiB", "1e3MiB", "1 M", "1GiBs", "9" * 50 + "B"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_size(text)


def test_defaults_hold_many_tokens() -> None:
    config = parse_arguments([], {})
    assert config.kv_memory_bytes // TINY.kv_bytes_per_token() >= 60_000
    assert config.host == "127.0.0.1"
    assert config.threads >= 1


@given(st.text())
def test_the_tokenizer_round_trips(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)[1:]) == text.encode("utf-8", "replace").decode()


@given(st.text(), st.text())
def test_a_prefix_of_text_is_a_prefix_of_tokens(one: str, more: str) -> None:
    tokens = TOKENIZER.encode(one + more)
    assert tokens[: len(TOKENIZER.encode(one))] == TOKENIZER.encode(one)


@given(st.text())
def test_only_whole_characters_leave_the_text_stream(text: str) -> None:
    stream = TextStream(TOKENIZER)
    pieces = [stream.push(token) for token in TOKENIZER.encode(text, add_special_tokens=False)]
    assert "".join(pieces) + stream.finish() == text.encode("utf-8", "replace").decode()
    assert "\ufffd" not in "".join(pieces).replace("\ufffd", "" if "\ufffd" in text else "\ufffd")


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_stop_strings_cut_where_the_first_one_starts(text: str, stops: list[str]) -> None:
    stream = TextStream(TOKENIZER, stops)
    sent = ""
    for token in text.encode():
        sent += stream.push(token)
        if stream.stopped_by is not None:
            break
    sent += stream.finish()
    # The stop that is complete first wins, as the text comes one character at a time.
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = text[: min(ends, key=lambda end: (end[0], end[1]))[1]] if ends else text
    assert sent == expected


def test_top_p_and_temperature() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0, 2.9]])
    allowed = torch.zeros(1, 4)
    forbidden = torch.tensor([[0.0, float("-inf"), 0.0, 0.0]])
    assert sample(logits + allowed, [TokenChooser(SamplingParams())]) == [1]
    assert sample(logits + forbidden, [TokenChooser(SamplingParams())]) == [3]
    narrow = TokenChooser(SamplingParams(temperature=1.0, top_p=0.7, seed=1))
    assert {sample(logits + allowed, [narrow])[0] for _ in range(200)} == {1, 3}
    wide = TokenChooser(SamplingParams(temperature=2.0, seed=1))
    counts = torch.bincount(
        torch.tensor([sample(logits + forbidden, [wide])[0] for _ in range(3000)]), minlength=4
    )
    expected = torch.softmax((logits + forbidden)[0] / 2.0, dim=-1)
    assert counts[1] == 0
    assert torch.allclose(counts / 3000, expected, atol=0.04)


def test_depth_is_counted_outside_strings_only() -> None:
    check_depth(b'{"a": "' + b"[{" * 500 + b'"}', 64)
    check_depth(b'["\\"' + b"[" * 100 + b'"]', 64)
    check_depth(b"[" + b"[]," * 500 + b"[]]", 64)
    with pytest.raises(RequestError):
        check_depth(b"[" * 65, 64)


def test_depth_is_counted_in_linear_time() -> None:
    """A megabyte of quotes behind one that never ends: tried from each quote it would take an hour."""
    check_depth(b"[]" * 65 + b'"' + b'\\"' * 500_000, 64)


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 1e-300, 5e-324])
def test_the_smallest_temperature_is_greedy(temperature: float) -> None:
    logits = torch.tensor([1.0, 3.0, 2.0, float("-inf")])
    choosers = [TokenChooser(SamplingParams(temperature=temperature, seed=seed)) for seed in range(20)]
    assert {chooser.choose(logits) for chooser in choosers} == {1}
