"""The questions: made from a seed, so that both servers get the same ones and anybody can make them again.

Four kinds, because a damaged cache shows in different places: short exact answers survive much, a needle
in a long context asks the cache for one token far back, a long copy fails at the first token that is read
wrong, and a JSON object breaks as a whole. A user's own questions come from a file (`dataset.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from kvprobe.load.words import WORDS

Method = Literal["exact", "contains", "number", "last_number", "words", "json"]
KINDS = ("exact", "needle", "chain", "json")
DEPTHS = (0.25, 0.5, 0.75, 1.0)
"""Where the needle stands, as a share of the context before the question."""
CHAIN_WORDS = (12, 24)
"""Shortest and longest copy, in words."""
WORDS_PER_SENTENCE = 8
_PLAIN = tuple(word.strip() for word in WORDS)
_NAMES = ("anna", "boris", "carla", "david", "elena", "felix", "greta", "hugo", "irene", "jonas")
_CITIES = ("lima", "oslo", "rome", "cairo", "delhi", "quito", "paris", "tokyo", "berlin", "madrid")


@dataclass(frozen=True, slots=True)
class Item:
    """One question. `answer` is judged by `method`; `depth` is the needle's, null elsewhere."""

    id: str
    kind: str
    text: str
    answer: str
    method: Method
    max_tokens: int
    depth: float | None = None


def exact_item(rng: random.Random, name: str) -> Item:
    """A small sum: the answer is one number."""
    a, b = rng.randint(2, 60), rng.randint(2, 39)
    text = f"What is {a} plus {b}? Answer with the number only."
    return Item(name, "exact", text, str(a + b), "number", 12)


def needle_item(rng: random.Random, name: str, words: int, depth: float) -> Item:
    """One sentence to be found in `words` words of other text, at `depth` of them."""
    subject, code = rng.choice(_PLAIN), "".join(rng.choice("0123456789") for _ in range(4))
    before = round(words * depth)
    needle = f"The secret number of the {subject} is {code}."
    parts = [filler(rng, before), needle, filler(rng, words - before)]
    context = " ".join(part for part in parts if part)
    text = f"{context} What is the secret number of the {subject}? Answer with the number only."
    return Item(name, "needle", text, code, "number", 16, depth)


def filler(rng: random.Random, words: int) -> str:
    """Sentences without meaning, of so many words."""
    sentences = []
    while words > 0:
        count = min(WORDS_PER_SENTENCE, words)
        sentences.append(" ".join(rng.choice(_PLAIN) for _ in range(count)) + ".")
        words -= count
    return " ".join(sentences)


def chain_item(rng: random.Random, name: str, count: int) -> Item:
    """A list of `count` words to be written again: every word rests on the one before it."""
    words = " ".join(rng.choice(_PLAIN) for _ in range(count))
    text = f"Repeat these words in the same order and nothing else: {words}."
    return Item(name, "chain", text, words, "words", 4 * count)


def json_item(rng: random.Random, name: str) -> Item:
    """A small object whose values are in the question."""
    person, city, age = rng.choice(_NAMES), rng.choice(_CITIES), rng.randint(20, 79)
    text = (
        f"The name is {person}, the city is {city} and the age is {age}. "
        'Write it as a JSON object with the keys "name", "city" and "age". Answer with JSON only.'
    )
    answer = f'{{"name": "{person}", "city": "{city}", "age": {age}}}'
    return Item(name, "json", text, answer, "json", 48)


def built_in(count: int, seed: int, context_words: int) -> Iterator[Item]:
    """`count` items of each kind; needles take the depths in turn."""
    makers: dict[str, Callable[[random.Random, str, int], Item]] = {
        "exact": lambda rng, name, _: exact_item(rng, name),
        "needle": lambda rng, name, i: needle_item(rng, name, context_words, DEPTHS[i % len(DEPTHS)]),
        "chain": lambda rng, name, _: chain_item(rng, name, rng.randint(*CHAIN_WORDS)),
        "json": lambda rng, name, _: json_item(rng, name),
    }
    for kind in KINDS:
        for number in range(count):
            name = f"{kind}-{number}"
            yield makers[kind](random.Random(f"{seed}/{name}"), name, number)
