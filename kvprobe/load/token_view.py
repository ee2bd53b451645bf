"""Texts as rows of stand-in tokens: what a prefix cache would see of them.

Without the target's vocabulary we still know, or can estimate, how many tokens each piece of a
text takes. A piece of n tokens becomes n stand-ins; stand-in j stands for the piece up to its j-th
n-th part. Two texts then share as many leading stand-ins as they share leading tokens: exactly for
a tokenizer whose tokens are bytes, and to within one piece otherwise.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Callable, Mapping, Sequence

from kvprobe.load.job import Calibration
from kvprobe.load.words import HEADS, NUMBERS, WORDS

DEFAULT_BLOCK_TOKENS = 16
"""Assumed where the server does not say its block size: vLLM's default and the bundled server's."""

_PIECE = re.compile(r" ?[^\W\u2e80-\u9fff\uac00-\ud7a3]{1,24}|[\s\S]")
"""A word with the space before it, or any other single character; words of scripts that do not put
spaces between words are taken by the character, so that a change stays local."""


_NUMBER_LIKE = {(number.startswith(" "), len(number)): number for number in NUMBERS}


def _like(piece: str) -> str:
    """The measured number of a number's form: tokenizers look at its length and at a space before it."""
    digits = piece.removeprefix(" ")
    if not (digits.isascii() and digits.isdigit()):
        return ""
    return _NUMBER_LIKE.get((digits != piece, len(piece)), "")


def split_pieces(text: str) -> list[str]:
    """The pieces of a text, in order and without loss."""
    return _PIECE.findall(text)


def token_counter(calibration: Calibration) -> Callable[[str], int]:
    """A function that estimates the tokens of any text from what was calibrated.

    Exact where the text is made of calibrated pieces, or where a token is a byte.
    """
    sizes: Mapping[str, float] = calibration.word_tokens
    if calibration.source == "assumed" and not sizes:
        sizes = dict.fromkeys((*WORDS, *HEADS), calibration.default_word_tokens)
    if sizes and all(tokens == len(piece.encode()) for piece, tokens in sizes.items()):
        return lambda text: len(text.encode("utf-8", "replace"))
    chars_per_token = max(sum(len(piece) for piece in sizes) / max(sum(sizes.values()), 1), 1.0)

    def count(text: str) -> int:
        total = 0.0
        for piece in split_pieces(text):
            known = sizes.get(piece)
            if known is None:
                known = sizes.get(_like(piece))
            total += known if known is not None else max(len(piece) / chars_per_token, 1.0)
        return round(total)

    return count


class TokenView:
    """Turns texts into arrays of stand-in tokens; equal parts get equal numbers."""

    def __init__(self, tokens_of: Callable[[str], int]) -> None:
        self._tokens_of = tokens_of
        self._ids: dict[tuple[bytes, int], int] = {}
        self._pieces: dict[str, tuple[int, ...]] = {}

    @property
    def stand_ins(self) -> int:
        """How many there are: they are numbered from 0."""
        return len(self._ids)

    def piece(self, piece: str) -> tuple[int, ...]:
        """The stand-ins of one piece."""
        known = self._pieces.get(piece)
        if known is None:
            known = self._pieces[piece] = self._cut(piece.encode("utf-8", "replace"), self._tokens_of(piece))
        return known

    def text(self, text: str) -> array[int]:
        """The stand-ins of a text."""
        tokens = array("q")
        for piece in split_pieces(text):
            tokens.extend(self.piece(piece))
        return tokens

    def marker(self, name: str, count: int) -> array[int]:
        """`count` stand-ins for template tokens that the text does not show."""
        key = b"\0" + name.encode()
        return array("q", (self._ids.setdefault((key, j), len(self._ids)) for j in range(max(count, 0))))

    def _cut(self, data: bytes, count: int) -> tuple[int, ...]:
        cuts = (data[: -(-(j + 1) * len(data) // count)] for j in range(count))
        extra = max(count - len(data), 0)
        keys = ((cut, j if extra else 0) for j, cut in enumerate(cuts))
        return tuple(self._ids.setdefault(key, len(self._ids)) for key in keys)


class InfinitePrefixCache:
    """A block prefix cache that never forgets: the best that any server could do.

    Only full blocks are shared, and the last token of a prompt is always computed (a hit covers at
    most tokens - 1).
    """

    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self._seen: set[bytes] = set()

    def admit(self, tokens: Sequence[int]) -> int:
        """Takes a prompt in; returns how many of its tokens earlier prompts had brought."""
        row = tokens if isinstance(tokens, array) else array("q", tokens)
        usable = max(len(row) - 1, 0) // self._block
        digest, hits, hitting = b"", 0, True
        for index in range(len(row) // self._block):
            block = row[index * self._block : (index + 1) * self._block]
            digest = hashlib.blake2b(digest + block.tobytes(), digest_size=16).digest()
            if hitting and digest in self._seen:
                hits += index < usable
            else:
                hitting = False
                self._seen.add(digest)
        return hits * self._block
