"""The plan of a run: request number -> what is sent.

Every request is a pure function of (workload, calibration, salt, number), so that load workers need
no coordination and a prompt can be made again when a run is analysed. The salt enters the texts, not
the lengths nor the order: two runs send texts of the same shape that share nothing.
"""

from __future__ import annotations

import hashlib
import math
from collections import OrderedDict
from collections.abc import Container, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import ClassVar

from kvprobe.load.family_order import family_order
from kvprobe.load.filler import Filler
from kvprobe.load.job import Calibration, PlannedRequest
from kvprobe.load.token_view import DEFAULT_BLOCK_TOKENS, InfinitePrefixCache, TokenView, token_counter
from kvprobe.load.words import HEADS, NEWLINE, NUMBERS, WORDS
from kvprobe.load.workload import Workload
from kvprobe.load.workload_parts import DistinctPrompt, SharedPrefixPrompt, TimestampFirstPrompt
from kvprobe.load.workload_values import Length

STAMP_EXAMPLE = "Current time: 2026-03-01 15:09:20.417"
STAMP_WORDS = ("Current", " time")
_STAMP_START = datetime(2026, 3, 1, 15, 9, 20, 417_000, tzinfo=UTC)
_STAMP_STEP_MS = 1_037
_WARMUP_NUMBERS_FROM = 1 << 24
"""Warm-up texts are numbered downwards from here, measured ones upwards from 0: their first words
meet late, and the words after those never agree."""
_PREFIX_CACHE_BYTES = 64 << 20
_MAX_COLD_GAP_PER_USER = 4


class PromptSource:
    """Makes the requests of one run."""

    vocabulary: ClassVar[tuple[str, ...]] = (*WORDS, *HEADS, *STAMP_WORDS, *NUMBERS, NEWLINE, STAMP_EXAMPLE)
    """The pieces that `calibrate` should measure, each as it stands in a text."""

    def __init__(self, workload: Workload, calibration: Calibration, salt: str) -> None:
        self._workload = workload
        self._calibration = calibration
        self._salt = salt if workload.salt == "run" else ""
        self._filler = Filler(calibration)
        self._count = token_counter(calibration)
        self._shift = int.from_bytes(self._key("shift", 0)[:6], "big")
        self._warmups = workload.warmup_requests
        self._newline_tokens = calibration.word_tokens.get(NEWLINE, 1)
        self._prefixes: OrderedDict[int, tuple[str, float]] = OrderedDict()
        self._prefix_bytes = 0
        self._orders: OrderedDict[int, Sequence[int]] = OrderedDict()

    @property
    def total(self) -> int | None:
        """Planned requests, warm-up included; null when only the time ends the run."""
        requests = self._workload.requests
        return None if requests is None else self._warmups + requests

    def request(self, index: int) -> PlannedRequest:
        """Request number `index`: from 0, the first ones the warm-up where it goes by number.

        Numbers below 0 are warm-up requests without end, for a warm-up that goes by time.
        """
        if index < self._warmups:
            return self._warmup(index)
        measured = index - self._warmups
        prompt = self._workload.prompt
        if isinstance(prompt, SharedPrefixPrompt):
            number = self._family(prompt, measured)
            prefix = self._cached_prefix(prompt, number)
            return self._family_request(
                prompt, index, prefix, f"family-{number:05d}", f"question\0{measured}"
            )
        return self._distinct_request(prompt, index, measured, "text")

    def tokens_of(self, text: str) -> int:
        """Tokens of a text, estimated from the calibration (exact for texts made of its pieces)."""
        return self._count(text)

    def _warmup(self, index: int) -> PlannedRequest:
        prompt = self._workload.prompt
        number = 2 * index if index >= 0 else -2 * index - 1
        high = _WARMUP_NUMBERS_FROM - 1 - number
        if isinstance(prompt, SharedPrefixPrompt):
            prefix = self._text("warmup", high, prompt.prefix_tokens)
            planned = self._family_request(prompt, index, prefix, None, f"warmup question\0{number}")
        else:
            planned = self._distinct_request(prompt, index, high, "warmup")
        planned.warmup = True
        return planned

    # -- kinds -------------------------------------------------------------------------------

    def _family(self, prompt: SharedPrefixPrompt, measured: int) -> int:
        """Number of the family that measured request `measured` belongs to."""
        round_number, position = divmod(measured, prompt.round_requests)
        order = self._orders.get(round_number)
        if order is None:
            seed = f"{self._workload.seed}/order/{round_number}"
            order = family_order(prompt.families, prompt.requests_per_family, self._cold_gap(prompt), seed)
            self._orders[round_number] = order
            while len(self._orders) > 2:
                self._orders.popitem(last=False)
        return round_number * prompt.families + order[position]

    def _cold_gap(self, prompt: SharedPrefixPrompt) -> int:
        """Positions between the first and the second request of a family.

        Users overtake each other: while one waits for a cold answer, the others get several warm
        ones. So the distance is some times the number of users where there are families enough.
        """
        arrival = self._workload.arrival
        users = (
            arrival.closed.users if arrival.closed else math.ceil(arrival.open.rate) if arrival.open else 1
        )
        roomy = min(_MAX_COLD_GAP_PER_USER * users, prompt.families // 3)
        return max(users + 1, roomy)

    def _family_request(
        self,
        prompt: SharedPrefixPrompt,
        index: int,
        prefix: tuple[str, float],
        prefix_id: str | None,
        question_key: str,
    ) -> PlannedRequest:
        text, tokens = prefix
        if isinstance(prompt, TimestampFirstPrompt):
            line, line_tokens = self._stamp_line(index)
            text, tokens = line + text, tokens + line_tokens
        chat = self._workload.endpoint == "chat"
        target = self._length("suffix", prompt.suffix_tokens, index) - (0 if chat else self._newline_tokens)
        key = self._key(question_key, 0)
        head = HEADS[int.from_bytes(key[:4], "big") % len(HEADS)]
        rest, rest_tokens = self._filler.fill(key, target - self._filler.head_tokens(head))
        tokens += self._filler.head_tokens(head) + rest_tokens
        question = head + rest
        if chat:
            messages = [{"role": "system", "content": text}, {"role": "user", "content": question}]
            return self._planned(index, tokens, self._system_template, prefix_id, messages=messages)
        tokens += self._newline_tokens
        prompt_text = f"{text}{NEWLINE}{question}"
        return self._planned(index, tokens, self._user_template, prefix_id, prompt=prompt_text)

    def _distinct_request(
        self, prompt: DistinctPrompt, index: int, number: int, space: str
    ) -> PlannedRequest:
        template = self._user_template
        target = self._length("prompt", prompt.tokens, index) - template
        text, tokens = self._text(space, number, target)
        if self._workload.endpoint == "chat":
            return self._planned(index, tokens, template, None, messages=[{"role": "user", "content": text}])
        return self._planned(index, tokens, template, None, prompt=text)

    def _planned(
        self,
        index: int,
        tokens: float,
        template: int,
        prefix_id: str | None,
        *,
        messages: list[dict[str, str]] | None = None,
        prompt: str | None = None,
    ) -> PlannedRequest:
        return PlannedRequest(
            index=index,
            kind=self._workload.kind,
            prefix_id=prefix_id,
            messages=messages,
            prompt=prompt,
            asked_prompt_tokens=round(tokens) + template,
            asked_completion_tokens=self._length("output", self._workload.output.tokens, index),
        )

    # -- texts -------------------------------------------------------------------------------

    def _cached_prefix(self, prompt: SharedPrefixPrompt, number: int) -> tuple[str, float]:
        known = self._prefixes.get(number)
        if known is not None:
            self._prefixes.move_to_end(number)
            return known
        made = self._text("prefix", number, prompt.prefix_tokens)
        self._prefixes[number] = made
        self._prefix_bytes += len(made[0])
        while self._prefix_bytes > _PREFIX_CACHE_BYTES and len(self._prefixes) > 1:
            self._prefix_bytes -= len(self._prefixes.popitem(last=False)[1][0])
        return made

    def _text(self, space: str, number: int, target: float) -> tuple[str, float]:
        """A text whose first words are those of `number` alone, and its tokens.

        The first word differs for as many neighbours as there are first words; the next words spell
        the rest of the number, so that no two texts of a run agree further than that.
        """
        low = (number + self._shift) % len(HEADS)
        head, high = HEADS[low], number // len(HEADS)
        words = [(high + self._key("second word", low)[0]) % len(WORDS)]
        while high := high // len(WORDS):
            words.append(high % len(WORDS))
        opening = head + "".join(WORDS[w] for w in words)
        spent = self._filler.head_tokens(head) + sum(self._filler.word_tokens(w) for w in words)
        rest, worth = self._filler.fill(self._key(space, number), target - spent)
        return opening + rest, spent + worth

    def _stamp_line(self, number: int) -> tuple[str, int]:
        """The changing first line of request `number`, and its tokens."""
        offset = self._shift % 86_400_000 + number * _STAMP_STEP_MS
        moment = _STAMP_START + timedelta(milliseconds=offset)
        line = f"Current time: {moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"
        measured = self._calibration.word_tokens.get(STAMP_EXAMPLE)
        tokens = measured if measured is not None else self._count(line)
        return line + NEWLINE, tokens + self._newline_tokens

    def _key(self, space: str, number: int) -> bytes:
        text = f"{self._workload.seed}\0{self._salt}\0{space}\0{number}"
        return hashlib.blake2b(text.encode(), digest_size=32).digest()

    def _length(self, space: str, length: Length, index: int) -> int:
        """Lengths follow the seed alone, so that every run has the same ones."""
        if length.fixed is not None:
            return length.fixed
        text = f"{self._workload.seed}\0length\0{space}\0{index}"
        number = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")
        return length.quantile(number / (1 << 56))

    @property
    def _user_template(self) -> int:
        return self._calibration.template_tokens or 0

    @property
    def _system_template(self) -> int:
        return self._calibration.system_template_tokens or 0

    # -- what can be reused ------------------------------------------------------------------

    def aimed_hit_rate(self, block_size: int | None) -> float | None:
        """Share of prompt tokens that the workload means to be reused (ratio; 0 where none is).

        Full blocks of the shared prefix on every request of a family but the first, at most all
        tokens but the last. `timestamp_first` aims at what its prefix would give without the
        changing line: the gap to what it gets is what it is there to show. Over one round.
        """
        prompt = self._workload.prompt
        if not isinstance(prompt, SharedPrefixPrompt):
            return 0.0
        block = block_size or DEFAULT_BLOCK_TOKENS
        requests = min(self._workload.requests or prompt.round_requests, prompt.round_requests)
        shared = self._shared_template_tokens + prompt.prefix_tokens
        seen: set[int] = set()
        reused = total = 0
        for measured in range(requests):
            family = self._family(prompt, measured)
            tokens = self.request(self._warmups + measured).asked_prompt_tokens
            total += tokens
            if family in seen:
                reused += min(shared, tokens - 1) // block * block
            seen.add(family)
        return reused / total if total else None

    @property
    def _shared_template_tokens(self) -> int:
        """Template tokens before and between the messages' texts: the same in every prompt."""
        known = self._calibration
        if self._workload.endpoint != "chat":
            return known.template_prefix_tokens or 0
        return (known.system_template_prefix_tokens or 0) + self._between_messages

    @property
    def _between_messages(self) -> int:
        """Template tokens between the end of the system text and the start of the user's."""
        known = self._calibration
        tail = (known.template_tokens or 0) - (known.template_prefix_tokens or 0)
        return max((known.system_template_tokens or 0) - (known.system_template_prefix_tokens or 0) - tail, 0)

    def ceiling_hit_rate(
        self, order: Sequence[int], block_size: int | None, warmup: Container[int] = ()
    ) -> float | None:
        """What a block prefix cache of unlimited size could serve of these prompts in this order.

        `order` holds request numbers (`plan_index`) as they were sent. Those of the warm-up (the
        first ones, and what `warmup` names) fill the cache and are not counted. Null when nothing
        is counted.
        """
        block = block_size or DEFAULT_BLOCK_TOKENS
        cache: InfinitePrefixCache | None = None
        reused = total = 0
        for planned, tokens in self.token_rows(order):
            if cache is None:
                # Where sizes are assumed, a stand-in is not one token: blocks scale with them.
                cache = InfinitePrefixCache(max(round(block * len(tokens) / planned.asked_prompt_tokens), 1))
            hits = cache.admit(tokens)
            if not planned.warmup and planned.index not in warmup:
                reused += hits
                total += len(tokens)
        return reused / total if total else None

    def token_rows(self, order: Sequence[int]) -> Iterator[tuple[PlannedRequest, Sequence[int]]]:
        """Requests with their stand-in tokens, template included (see `token_view`)."""
        view = TokenView(self._count)
        known = self._calibration
        tail = (known.template_tokens or 0) - (known.template_prefix_tokens or 0)
        for index in order:
            planned = self.request(index)
            system = planned.messages is not None and len(planned.messages) == 2
            before = known.system_template_prefix_tokens if system else known.template_prefix_tokens
            row = view.marker("before", before or 0)
            if planned.messages is None:
                row += view.text(planned.prompt or "")
            for number, message in enumerate(planned.messages or ()):
                row += view.marker("between", self._between_messages if number else 0)
                row += view.text(message["content"])
            row += view.marker("after", tail)
            yield planned, row
