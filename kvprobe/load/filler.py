"""Texts of an exact number of tokens, made of the word list by a hash.

A tokenizer that takes words one by one (as byte-level tokens do, and common BPE vocabularies for
common words) gives the sum of its words' tokens; the calibration says by how much that is off.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from itertools import accumulate

from kvprobe.load.job import Calibration
from kvprobe.load.words import HEADS, WORDS


class Filler:
    """Makes texts of a given size in tokens."""

    def __init__(self, calibration: Calibration) -> None:
        default = calibration.default_word_tokens
        self._exact = all(piece in calibration.word_tokens for piece in (*WORDS, *HEADS))
        sizes = calibration.word_tokens if self._exact else {}
        self._word_tokens = [sizes.get(word, default) for word in WORDS]
        self._head_tokens = {head: sizes.get(head, default) for head in HEADS}
        self._mean = sum(self._word_tokens) / len(WORDS)
        self._margin = int(2 * max(self._word_tokens)) + 1
        self._closers = self._reachable() if self._exact else []

    def _reachable(self) -> list[list[int]]:
        """For each small number of tokens, the words that a text of exactly that size can begin with."""
        tokens = [int(count) for count in self._word_tokens]
        closers: list[list[int]] = [[]]
        for size in range(1, self._margin + max(tokens) + 1):
            fits = (w for w, count in enumerate(tokens) if 0 < count <= size)
            closers.append([w for w in fits if size == tokens[w] or closers[size - tokens[w]]])
        return closers

    def head_tokens(self, head: str) -> float:
        """Tokens of a first word."""
        return self._head_tokens[head]

    def word_tokens(self, word: int) -> float:
        """Tokens of word number `word` with its leading space."""
        return self._word_tokens[word]

    def fill(self, key: bytes, target: float) -> tuple[str, float]:
        """Words worth `target` tokens, and what they are really worth; the same key, the same words.

        Exact where the calibration is and the number can be made of whole words; else the nearest
        number below.
        """
        if target <= 0:
            return "", 0
        if not self._exact:
            count = round(target / self._mean)
            picks = hashlib.shake_128(key).digest(count)
            return "".join(map(WORDS.__getitem__, picks)), count * self._mean
        body, worth, spare = self._body(key, int(target) - self._margin)
        tail, more = self._tail(spare, int(target) - worth)
        return "".join(map(WORDS.__getitem__, body)) + tail, worth + more

    def _body(self, key: bytes, limit: int) -> tuple[bytes, int, bytes]:
        """The longest run of words worth at most `limit`, its worth, and bytes that are left over."""
        length = int(max(limit, 0) / self._mean * 1.15) + 32
        while True:
            picks = hashlib.shake_128(key).digest(length + self._margin)
            sums = list(accumulate(map(self._word_tokens.__getitem__, picks[:length])))
            if sums[-1] > limit:
                cut = bisect_right(sums, limit)
                return picks[:cut], int(sums[cut - 1]) if cut else 0, picks[cut:]
            length *= 2

    def _tail(self, spare: bytes, size: int) -> tuple[str, int]:
        """Words worth exactly `size`, or the nearest reachable number below it."""
        while size > 0 and not self._closers[size]:
            size -= 1
        left, words = size, list[str]()
        while left > 0:
            choices = self._closers[left]
            word = choices[spare[len(words)] % len(choices)]
            words.append(WORDS[word])
            left -= int(self._word_tokens[word])
        return "".join(words), size
