"""The texts of a run: which words stand where, as a function of seed, salt and number.

The salt enters the texts alone; lengths and draws follow the seed, so that two runs send texts of the
same shape that share nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from kvprobe.load.filler import Filler
from kvprobe.load.job import Calibration, PlannedRequest
from kvprobe.load.token_view import token_counter
from kvprobe.load.words import HEADS, NEWLINE, WORDS
from kvprobe.load.workload import Workload
from kvprobe.load.workload_values import Length

STAMP_EXAMPLE = "Current time: 2026-03-01 15:09:20.417"
STAMP_WORDS = ("Current", " time")
_STAMP_START = datetime(2026, 3, 1, 15, 9, 20, 417_000, tzinfo=UTC)
_STAMP_STEP_MS = 1_037


class Message(NamedTuple):
    """A message of a chat and the tokens of its text."""

    role: str
    text: str
    tokens: float


class Template(NamedTuple):
    """Tokens of the chat template around texts. For completions only `before` can be above 0."""

    before: int
    """Before the first text."""
    between: int
    """From the end of a system message to the start of the user's."""
    answer: int
    """From the end of a user's message to the start of an answer that stands in the history."""
    again: int
    """From the end of such an answer to the start of the next message of the user."""
    after: int
    """From the end of the last text to where the answer begins."""


class Texts:
    """Makes texts, draws lengths, and puts messages together."""

    def __init__(self, workload: Workload, calibration: Calibration, salt: str) -> None:
        self.chat = workload.endpoint == "chat"
        self.calibration = calibration
        self.filler = Filler(calibration)
        self.count = token_counter(calibration)
        self._seed = workload.seed
        self._kind = workload.kind
        self._salt = salt if workload.salt == "run" else ""
        self.shift = int.from_bytes(self.key("shift", 0)[:6], "big")
        self.newline_tokens = calibration.word_tokens.get(NEWLINE, 1)

    # -- texts -------------------------------------------------------------------------------

    def text(self, space: str, number: int, target: float) -> tuple[str, float]:
        """A text whose first words are those of `number` alone, and its tokens.

        The first word differs for as many neighbours as there are first words; the next words spell
        the rest of the number, so that no two texts of a run agree further than that.
        """
        low = (number + self.shift) % len(HEADS)
        head, high = HEADS[low], number // len(HEADS)
        words = [(high + self.key("second word", low)[0]) % len(WORDS)]
        while high := high // len(WORDS):
            words.append(high % len(WORDS))
        opening = head + "".join(WORDS[w] for w in words)
        spent = self.filler.head_tokens(head) + sum(self.filler.word_tokens(w) for w in words)
        rest, worth = self.filler.fill(self.key(space, number), target - spent)
        return opening + rest, spent + worth

    def question(self, key: bytes, target: float) -> tuple[str, float]:
        """A short text of its own for each key, and its tokens."""
        head = HEADS[int.from_bytes(key[:4], "big") % len(HEADS)]
        rest, rest_tokens = self.filler.fill(key, target - self.filler.head_tokens(head))
        return head + rest, self.filler.head_tokens(head) + rest_tokens

    def stamp_line(self, number: int) -> tuple[str, int]:
        """The changing first line of request `number`, and its tokens."""
        offset = self.shift % 86_400_000 + number * _STAMP_STEP_MS
        moment = _STAMP_START + timedelta(milliseconds=offset)
        line = f"Current time: {moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"
        measured = self.calibration.word_tokens.get(STAMP_EXAMPLE)
        tokens = measured if measured is not None else self.count(line)
        return line + NEWLINE, tokens + self.newline_tokens

    def key(self, space: str, number: int) -> bytes:
        """32 bytes of hash for a text."""
        text = f"{self._seed}\0{self._salt}\0{space}\0{number}"
        return hashlib.blake2b(text.encode(), digest_size=32).digest()

    # -- draws -------------------------------------------------------------------------------

    def draw(self, space: str, number: int) -> float:
        """A number in [0, 1) that follows the seed alone."""
        text = f"{self._seed}\0length\0{space}\0{number}"
        found = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
        return found / (1 << 56)

    def length(self, space: str, length: Length, index: int) -> int:
        """Lengths follow the seed alone, so that every run has the same ones."""
        return length.fixed if length.fixed is not None else length.quantile(self.draw(space, index))

    # -- messages ----------------------------------------------------------------------------

    def template(self, *, system: bool) -> Template:
        """What the template adds around the messages of a chat, with or without a system message."""
        known = self.calibration
        if not self.chat:
            return Template(known.template_prefix_tokens or 0, 0, 0, 0, 0)
        after = (known.template_tokens or 0) - (known.template_prefix_tokens or 0)
        pair = known.turn_template_tokens or 0
        answer = min(after, pair)
        if not system:
            return Template(known.template_prefix_tokens or 0, 0, answer, pair - answer, after)
        before = known.system_template_prefix_tokens or 0
        between = max((known.system_template_tokens or 0) - before - after, 0)
        return Template(before, between, answer, pair - answer, after)

    def overhead(self, roles: Sequence[str]) -> int:
        """Tokens beside the texts of messages with these roles: template, or line breaks between."""
        known, extra = self.calibration, len(roles) - 1
        if not self.chat:
            return (known.template_tokens or 0) + extra * self.newline_tokens
        system = roles[0] == "system"
        base = known.system_template_tokens if system else known.template_tokens
        pairs = (extra - system) // 2
        return (base or 0) + pairs * (known.turn_template_tokens or 0)

    def planned(
        self, index: int, messages: Sequence[Message], answer_tokens: int, **names: Any
    ) -> PlannedRequest:
        """The request that sends these messages: as a chat, or as one text of lines."""
        tokens = round(sum(m.tokens for m in messages)) + self.overhead([m.role for m in messages])
        return PlannedRequest(
            index=index,
            kind=self._kind,
            messages=[{"role": m.role, "content": m.text} for m in messages] if self.chat else None,
            prompt=None if self.chat else NEWLINE.join(m.text for m in messages),
            asked_prompt_tokens=tokens,
            asked_completion_tokens=answer_tokens,
            **names,
        )
