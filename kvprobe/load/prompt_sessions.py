"""Conversations that carry their history.

The answers in the history are texts of ours, as long as the answers that were asked for, not what the
server said: so a prompt is known before the run and can be made again after it. A server can therefore
reuse what it was sent in the turns before, and not the tokens that it generated itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from kvprobe.load.job import PlannedRequest
from kvprobe.load.prompt_kinds import LOOKED_AT, Prefix, PromptKind
from kvprobe.load.prompt_texts import Message, Texts
from kvprobe.load.session_plan import SessionPlan
from kvprobe.load.tool_list import ToolList
from kvprobe.load.words import NEWLINE
from kvprobe.load.workload import Workload
from kvprobe.load.workload_prompts import MultiTurnPrompt, ToolCallsPrompt

_INSTRUCTIONS = 0
_KEPT_BYTES = 64 << 20


class SessionKind(PromptKind):
    """Sessions of some turns; with a list of tools in the system message, where the workload wants one."""

    def __init__(self, workload: Workload, texts: Texts, prompt: MultiTurnPrompt) -> None:
        super().__init__(workload, texts)
        assert workload.output.tokens is not None  # checked with the workload
        self._prompt = prompt
        self._tools = ToolList(prompt, texts) if isinstance(prompt, ToolCallsPrompt) else None
        self._system_tokens = prompt.system_tokens
        if self._tools is not None:
            self._system_tokens += texts.newline_tokens + self._tools.mean_tokens
        one, two = (texts.overhead(["system", *["user", "assistant"] * n, "user"]) for n in (0, 1))
        self._pair_tokens = two - one
        first = one + self._system_tokens
        self._warmups = workload.warmup_requests
        self._plan = SessionPlan(
            prompt, workload.output.tokens, texts, first, self._pair_tokens, self._warmups
        )
        self._histories: OrderedDict[int, list[Message]] = OrderedDict()
        self._kept_bytes = 0

    def total(self) -> int | None:
        if self.workload.requests is not None or self.workload.duration_s is not None:
            return self.workload.requests
        return self._plan.start(self._prompt.sessions)

    def session_turns(self, number: int) -> Sequence[int]:
        """A warm-up request is a session by itself, and comes before the others."""
        if number < self._warmups:
            return (number,)
        total, start = self.total(), self._plan.start(number - self._warmups)
        end = self._plan.start(number - self._warmups + 1)
        if total is not None:
            start, end = min(start, total), min(end, total)
        return range(self._warmups + start, self._warmups + end)

    def session_number(self, index: int) -> int | None:
        if index < self._warmups:
            return index if index >= 0 else None
        return self._warmups + self._plan.place(index - self._warmups)[0]

    def measured(self, number: int, index: int) -> PlannedRequest:
        session, turn = self._plan.place(number)
        system = self._system(
            self.texts.text("instructions", _INSTRUCTIONS, self._prompt.system_tokens), index
        )
        history = self._history(session, turn)
        return self.texts.planned(
            index,
            [system, *history[: 2 * turn + 1]],
            self._plan.turns(session)[turn].answer_tokens,
            session=f"session-{session:05d}",
            turn=turn + 1,
        )

    def warmup(self, number: int, high: int, index: int) -> PlannedRequest:
        """A conversation's first turn, with a system message of its own."""
        texts = self.texts
        system = self._system(texts.text("warmup", high, self._prompt.system_tokens), index)
        wanted = texts.length("user", self._prompt.user_tokens, index)
        user = Message("user", *texts.text("warmup question", high, wanted))
        return texts.planned(index, [system, user], self.answer_tokens(index))

    def aimed_at(self) -> int:
        return min(self.total() or self._plan.start(self._prompt.sessions), LOOKED_AT)

    def prefixes(self, number: int, index: int) -> tuple[int, list[Prefix]]:
        """The system message, then each earlier turn; as if the tools always came in one order."""
        session, turn = self._plan.place(number)
        template = self.texts.template(system=self.texts.chat)
        found: list[Prefix] = [("system", template.before + self._system_tokens + template.between)]
        turns = self._plan.turns(session)
        for earlier in range(turn + 1):
            # What opens an answer ends a prompt, and stands in the history just the same.
            end = turns[earlier].prompt_tokens - template.after + template.answer
            found.append(((session, earlier), end))
        return turns[turn].prompt_tokens, found

    def _system(self, instructions: tuple[str, float], index: int) -> Message:
        text, tokens = instructions
        if self._tools is None:
            return Message("system", text, tokens)
        tools, tool_tokens = self._tools.ordered(index)
        return Message("system", f"{text}{NEWLINE}{tools}", tokens + self.texts.newline_tokens + tool_tokens)

    def _history(self, session: int, turn: int) -> list[Message]:
        """Messages of a session at least up to the user's of `turn`: user, answer, user, ..."""
        known = self._histories.pop(session, [])
        self._kept_bytes -= sum(len(m.text) for m in known)
        turns = self._plan.turns(session)
        while len(known) < 2 * turn + 1:
            at, answer = divmod(len(known), 2)
            role, space = ("assistant", "answer") if answer else ("user", "user")
            tokens = turns[at].answer_tokens if answer else turns[at].user_tokens
            known.append(Message(role, *self.texts.text(f"{space}/{at}", session, tokens)))
        self._histories[session] = known
        self._kept_bytes += sum(len(m.text) for m in known)
        while self._kept_bytes > _KEPT_BYTES and len(self._histories) > 1:
            self._kept_bytes -= sum(len(m.text) for m in self._histories.popitem(last=False)[1])
        return known
