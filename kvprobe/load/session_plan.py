"""Which turns a conversation has and how long they are: numbers alone, the texts are made elsewhere.

Requests are numbered session by session: the turns of session 0, then those of session 1, and so on.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import NamedTuple

from kvprobe.load.prompt_texts import Texts
from kvprobe.load.workload_prompts import MultiTurnPrompt
from kvprobe.load.workload_values import Length


class Turn(NamedTuple):
    """What is said in one turn, and how long the prompt is by then; tokens."""

    user_tokens: int
    answer_tokens: int
    prompt_tokens: int


class SessionPlan:
    """Sessions without end; each is worked out when it is first asked for."""

    def __init__(
        self,
        prompt: MultiTurnPrompt,
        answer: Length,
        texts: Texts,
        first_tokens: int,
        pair_tokens: int,
        offset: int,
    ) -> None:
        """`first_tokens` is all of a first prompt but the user's text, `pair_tokens` what an answer and
        the next message add beside their texts, `offset` the plan index of measured request 0."""
        self._prompt = prompt
        self._answer = answer
        self._texts = texts
        self._first_tokens = first_tokens
        self._pair_tokens = pair_tokens
        self._offset = offset
        self._starts = array("q", [0])
        self._latest: tuple[int, list[Turn]] = (-1, [])

    def start(self, session: int) -> int:
        """Number of the first turn of a session."""
        while len(self._starts) <= session:
            made = len(self._starts) - 1
            self._starts.append(self._starts[made] + len(self._work_out(made, self._starts[made])))
        return self._starts[session]

    def place(self, number: int) -> tuple[int, int]:
        """(session, turn from 0) of a measured request."""
        while self._starts[-1] <= number:
            self.start(len(self._starts))
        session = bisect_right(self._starts, number) - 1
        return session, number - self._starts[session]

    def turns(self, session: int) -> list[Turn]:
        """All turns of a session in order."""
        if self._latest[0] != session:
            self._latest = (session, self._work_out(session, self.start(session)))
        return self._latest[1]

    def _work_out(self, session: int, start: int) -> list[Turn]:
        low, high = self._prompt.turns
        wanted = low + int(self._texts.draw("turns", session) * (high - low + 1))
        limit = self._prompt.context_tokens
        found: list[Turn] = []
        prompt_tokens = self._first_tokens
        for turn in range(min(wanted, high)):
            index = self._offset + start + turn
            user = self._texts.length("user", self._prompt.user_tokens, index)
            answer = self._texts.length("output", self._answer, index)
            prompt_tokens += user
            if found and limit is not None and prompt_tokens + answer > limit:
                break
            found.append(Turn(user, answer, prompt_tokens))
            prompt_tokens += answer + self._pair_tokens
        return found
