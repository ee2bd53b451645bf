"""The same lines in another order, in prompts that nobody made for the purpose."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from kvprobe.load.shared_starts import STEP, SharedStarts
from tests.load.test_prompt_layout import by_bytes, layout, words


def examples(count: int, size: int = 40) -> list[str]:
    return [f"Example {n}: {words(('e', n), size)}" for n in range(count)]


def test_shuffled_examples_are_found() -> None:
    known, head = examples(6), f"Answer as in the examples. {words('head', 30)}"
    texts = []
    for n in range(30):
        shown = random.Random(n).sample(known, len(known))
        texts.append("\n".join([head, *shown, f"Question: {words(('q', n), 12)}"]))
    value = layout(texts)
    assert value["reordered_prompts"] > 20
    assert value["ceiling_as_sent"] < 0.55
    assert value["ceiling_if_ordered"] > 0.85
    assert abs(value["reordered_from_token"] - by_bytes(head)) < 400


def test_keys_in_another_order_within_a_line_are_found() -> None:
    fields = [f'"{w}": "{words(w, 6)}"' for w in ("name", "about", "input", "output")]
    tail = words("tail", 200)
    texts = [
        "{" + ", ".join(random.Random(n).sample(fields, 4)) + "}\n" + f"{tail} {words(n, 10)}"
        for n in range(30)
    ]
    value = layout(texts)
    assert value["ceiling_if_ordered"] > value["ceiling_as_sent"] + 0.3


def test_what_is_in_order_is_left_alone() -> None:
    known = examples(6)
    fixed = ["\n".join([*known, f"Question: {words(('q', n), 12)}"]) for n in range(20)]
    chosen = ["\n".join([*sorted(random.Random(n).sample(known, 4)), words(n, 12)]) for n in range(20)]
    talk = [words(("t", n), 20) for n in range(30)]
    chats = ["\n".join(talk[: n + 1]) for n in range(30)]
    for texts in (fixed, chosen, chats, [words(n, 100) for n in range(20)]):
        value = layout(texts)
        assert value["reordered_prompts"] is None
        assert value["ceiling_if_ordered"] == value["ceiling_as_sent"]


def test_short_lines_that_come_again_and_again_prove_nothing() -> None:
    texts = ["\n".join(["{", words(n, 30), "}", "{", words(-n, 30), "}", "ok"]) for n in range(1, 30)]
    assert layout(texts)["reordered_prompts"] is None


@given(st.lists(st.lists(st.integers(0, 1), max_size=40), min_size=1, max_size=8))
@settings(max_examples=100)
def test_shared_starts_agree_with_brute_force(rows: list[list[int]]) -> None:
    import numpy as np

    starts = SharedStarts()
    for number, row in enumerate(rows):
        best = 0
        for earlier in rows[:number]:
            pairs = zip(row, earlier, strict=False)
            best = max(
                best, next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(row), len(earlier)))
            )
        got = starts.admit(np.array(row, dtype=np.int64))
        assert got <= best
        assert got // STEP == best // STEP


def test_the_longest_start_counts_not_the_prompt_that_shares_most() -> None:
    """A chat's earlier turn shares the start; another prompt shares more, but elsewhere."""
    body, start = words("body", 300), words("start", 60)
    texts = [f"x {body}", f"{start} {words(1, 10)}", f"{start} {words(2, 10)}\n{body}"]
    value = layout(texts)
    assert value["shared_prefix_tokens"] >= by_bytes(start) - 60
