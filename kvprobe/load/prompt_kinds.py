"""What every kind of prompt can do, and the kinds whose requests know nothing of each other.

A kind numbers its measured requests from 0. `index` is the number within the whole plan, which draws
lengths; `number` is the number among the measured ones, which makes texts.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence

from kvprobe.load.family_order import family_order
from kvprobe.load.job import PlannedRequest
from kvprobe.load.prompt_texts import Message, Texts
from kvprobe.load.workload import Workload
from kvprobe.load.workload_prompts import DistinctPrompt, SharedPrefixPrompt, TimestampFirstPrompt

_PREFIX_CACHE_BYTES = 64 << 20
_MAX_COLD_GAP_PER_USER = 4
LOOKED_AT = 2_000
"""Requests that stand for a plan without an end where its aim is worked out."""

Prefix = tuple[Hashable, int]
"""A prefix that requests can share: what it is, and its tokens from the start of the prompt."""


class PromptKind:
    """Makes the requests of one kind. Subclasses say how."""

    def __init__(self, workload: Workload, texts: Texts) -> None:
        self.workload = workload
        self.texts = texts

    def measured(self, number: int, index: int) -> PlannedRequest:
        """Measured request `number`."""
        raise NotImplementedError

    def warmup(self, number: int, high: int, index: int) -> PlannedRequest:
        """A warm-up request that shares nothing with others: text number `high`, drawn as `number`."""
        raise NotImplementedError

    def total(self) -> int | None:
        """Measured requests that are planned; null when only the time ends the run."""
        return self.workload.requests

    def aimed_at(self) -> int:
        """How many requests show what the workload means to be reused; 0 where that is nothing."""
        return 0

    def prefixes(self, number: int, index: int) -> tuple[int, list[Prefix]]:
        """Tokens of measured request `number`, and what it means to share, the shortest first."""
        raise NotImplementedError

    def brought_by_warmup(self) -> Iterator[Prefix]:
        """Prefixes that the warm-up leaves in the cache and measured requests share."""
        return iter(())

    def session_turns(self, number: int) -> Sequence[int] | None:
        """Plan indices of the turns of session `number`, in order; null for a kind without sessions."""
        return None

    def session_number(self, index: int) -> int | None:
        """The session of a plan index; null without one."""
        return None

    def instants(self) -> Iterator[float]:
        """When the requests are wanted, where the kind says so."""
        return iter(())

    def answer_tokens(self, index: int) -> int:
        """Length of an answer as `output` says it."""
        length = self.workload.output.tokens
        assert length is not None  # checked with the workload
        return self.texts.length("output", length, index)


class DistinctKind(PromptKind):
    """Prompts that differ from their first word on."""

    def __init__(self, workload: Workload, texts: Texts, prompt: DistinctPrompt) -> None:
        super().__init__(workload, texts)
        self._prompt = prompt

    def measured(self, number: int, index: int) -> PlannedRequest:
        return self._made("text", number, index)

    def warmup(self, number: int, high: int, index: int) -> PlannedRequest:
        return self._made("warmup", high, index)

    def _made(self, space: str, number: int, index: int) -> PlannedRequest:
        target = self.texts.length("prompt", self._prompt.tokens, index) - self.texts.overhead(["user"])
        message = Message("user", *self.texts.text(space, number, target))
        return self.texts.planned(index, [message], self.answer_tokens(index))


class FamilyKind(PromptKind):
    """Families that share a prefix; with a changing first line, where the workload wants it spoilt."""

    def __init__(self, workload: Workload, texts: Texts, prompt: SharedPrefixPrompt) -> None:
        super().__init__(workload, texts)
        self._prompt = prompt
        self._made: OrderedDict[int, tuple[str, float]] = OrderedDict()
        self._made_bytes = 0
        self._orders: OrderedDict[int, Sequence[int]] = OrderedDict()

    def measured(self, number: int, index: int) -> PlannedRequest:
        family = self._family(number)
        prefix = self._prefix(family)
        return self._request(index, prefix, f"family-{family:05d}", f"question\0{number}")

    def warmup(self, number: int, high: int, index: int) -> PlannedRequest:
        prefix = self.texts.text("warmup", high, self._prompt.prefix_tokens)
        return self._request(index, prefix, None, f"warmup question\0{number}")

    def aimed_at(self) -> int:
        return min(self.workload.requests or self._prompt.round_requests, self._prompt.round_requests)

    def prefixes(self, number: int, index: int) -> tuple[int, list[Prefix]]:
        """Without the changing line: the gap to what is reused shows what that line costs."""
        template = self.texts.template(system=self.texts.chat)
        shared = template.before + self._prompt.prefix_tokens + template.between
        return self.measured(number, index).asked_prompt_tokens, [(self._family(number), shared)]

    def _request(
        self, index: int, prefix: tuple[str, float], prefix_id: str | None, question_key: str
    ) -> PlannedRequest:
        texts = self.texts
        text, tokens = prefix
        if isinstance(self._prompt, TimestampFirstPrompt):
            line, line_tokens = texts.stamp_line(index)
            text, tokens = line + text, tokens + line_tokens
        wanted = texts.length("suffix", self._prompt.suffix_tokens, index)
        target = wanted - (0 if texts.chat else texts.newline_tokens)
        question = Message("user", *texts.question(texts.key(question_key, 0), target))
        messages = [Message("system", text, tokens), question]
        return texts.planned(index, messages, self.answer_tokens(index), prefix_id=prefix_id)

    def _family(self, number: int) -> int:
        """The family that measured request `number` belongs to."""
        prompt = self._prompt
        round_number, position = divmod(number, prompt.round_requests)
        order = self._orders.get(round_number)
        if order is None:
            seed = f"{self.workload.seed}/order/{round_number}"
            order = family_order(prompt.families, prompt.requests_per_family, self._cold_gap(), seed)
            self._orders[round_number] = order
            while len(self._orders) > 2:
                self._orders.popitem(last=False)
        return round_number * prompt.families + order[position]

    def _cold_gap(self) -> int:
        """Positions between the first and the second request of a family.

        Users overtake each other: while one waits for a cold answer, the others get several warm
        ones. So the distance is some times the number of users where there are families enough.
        """
        arrival = self.workload.arrival
        peak = arrival.open.peak_rate if arrival.open else None
        users = arrival.closed.users if arrival.closed else math.ceil(peak or 1)
        roomy = min(_MAX_COLD_GAP_PER_USER * users, self._prompt.families // 3)
        return max(users + 1, roomy)

    def _prefix(self, number: int) -> tuple[str, float]:
        known = self._made.get(number)
        if known is not None:
            self._made.move_to_end(number)
            return known
        made = self.texts.text("prefix", number, self._prompt.prefix_tokens)
        self._made[number] = made
        self._made_bytes += len(made[0])
        while self._made_bytes > _PREFIX_CACHE_BYTES and len(self._made) > 1:
            self._made_bytes -= len(self._made.popitem(last=False)[1][0])
        return made
