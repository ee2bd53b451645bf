"""The plan of a run: request number -> what is sent.

Every request is a pure function of (workload, calibration, salt, number), so that load workers need
no coordination and a prompt can be made again when a run is analysed. The salt enters the texts, not
the lengths nor the order: two runs send texts of the same shape that share nothing.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import ClassVar

from kvprobe.load.job import Calibration, PlannedRequest
from kvprobe.load.prompt_documents import DocumentKind
from kvprobe.load.prompt_kinds import DistinctKind, FamilyKind, PromptKind
from kvprobe.load.prompt_reuse import Rows, aimed_hit_rate, ceiling_hit_rate, token_rows
from kvprobe.load.prompt_sessions import SessionKind
from kvprobe.load.prompt_texts import STAMP_EXAMPLE, STAMP_WORDS, Texts
from kvprobe.load.prompt_traces import TraceKind
from kvprobe.load.tool_list import TOOL_LINES
from kvprobe.load.words import HEADS, NEWLINE, NUMBERS, WORDS
from kvprobe.load.workload import Workload
from kvprobe.load.workload_prompts import (
    DistinctPrompt,
    MultiTurnPrompt,
    RagDocumentsPrompt,
    SharedPrefixPrompt,
    ToolCallsPrompt,
    TraceReplayPrompt,
)

__all__ = ["STAMP_EXAMPLE", "PromptSource"]

_WARMUP_NUMBERS_FROM = 1 << 24
"""Warm-up texts are numbered downwards from here, measured ones upwards from 0: their first words
meet late, and the words after those never agree."""


class PromptSource:
    """Makes the requests of one run. Raises UsageError for a trace that cannot be replayed."""

    vocabulary: ClassVar[tuple[str, ...]] = (*WORDS, *HEADS, *STAMP_WORDS, *NUMBERS, NEWLINE, STAMP_EXAMPLE)
    """The pieces that `calibrate` should measure, each as it stands in a text."""

    def __init__(self, workload: Workload, calibration: Calibration, salt: str) -> None:
        self._workload = workload
        self._texts = Texts(workload, calibration, salt)
        self._warmups = workload.warmup_requests
        self._kind = _kind_of(workload, self._texts)

    @staticmethod
    def vocabulary_of(workload: Workload) -> tuple[str, ...]:
        """The pieces that `calibrate` should measure for this workload."""
        tools = TOOL_LINES if isinstance(workload.prompt, ToolCallsPrompt) else ()
        return (*PromptSource.vocabulary, *tools)

    @property
    def total(self) -> int | None:
        """Planned requests, warm-up included; null when only the time ends the run."""
        requests = self._kind.total()
        return None if requests is None else self._warmups + requests

    def request(self, index: int) -> PlannedRequest:
        """Request number `index`: from 0, the first ones the warm-up where it goes by number.

        Numbers below 0 are warm-up requests without end, for a warm-up that goes by time.
        """
        if index >= self._warmups:
            return self._kind.measured(index - self._warmups, index)
        number = 2 * index if index >= 0 else -2 * index - 1
        planned = self._kind.warmup(number, _WARMUP_NUMBERS_FROM - 1 - number, index)
        planned.warmup = True
        return planned

    def session_turns(self, number: int) -> Sequence[int] | None:
        """Plan indices of the turns of session `number`, in order; empty when the plan has ended.

        Null: this kind has no sessions. Warm-up requests are sessions too, and come first.
        """
        return self._kind.session_turns(number)

    def session_number(self, index: int) -> int | None:
        """The session that a plan index belongs to; null when it belongs to none."""
        return self._kind.session_number(index)

    def instants(self) -> Iterator[float]:
        """When a trace wants its requests, seconds, in the order of the plan; nothing without a trace."""
        return self._kind.instants()

    def trace_facts(self) -> dict[str, object] | None:
        """What was read of a trace: file, format, digest, rows, and rows left out by reason."""
        return self._kind.facts() if isinstance(self._kind, TraceKind) else None

    def longest_row(self) -> tuple[int, int, int] | None:
        """Prompt tokens, answer tokens and line of a trace's longest request; null for other kinds."""
        return self._kind.index.longest if isinstance(self._kind, TraceKind) else None

    def tokens_of(self, text: str) -> int:
        """Tokens of a text, estimated from the calibration (exact for texts made of its pieces)."""
        return self._texts.count(text)

    def aimed_hit_rate(self, block_size: int | None) -> float | None:
        """Share of prompt tokens that the workload means to be reused (ratio; 0 where none is).

        Full blocks of what a request shares with the ones before it in the plan's order, at most all
        tokens but the last. `timestamp_first` and `tool_calls_reordered` aim at what their prompts
        would give without the part that changes: the gap to what they get is what they are there to
        show. Over one round, or the first requests of a plan without rounds.
        """
        return aimed_hit_rate(self._kind, self._warmups, block_size)

    def ceiling_hit_rate(
        self, order: Sequence[int], block_size: int | None, warmup: Container[int] = ()
    ) -> float | None:
        """What a block prefix cache of unlimited size could serve of these prompts in this order.

        `order` holds request numbers (`plan_index`) as they were sent. Those of the warm-up (the
        first ones, and what `warmup` names) fill the cache and are not counted. Null when nothing
        is counted.
        """
        return ceiling_hit_rate(self.token_rows(order), block_size, warmup)

    def token_rows(self, order: Sequence[int]) -> Rows:
        """Requests with their stand-in tokens, template included (see `token_view`)."""
        return token_rows(self.request, order, self._texts)


def _kind_of(workload: Workload, texts: Texts) -> PromptKind:
    prompt = workload.prompt
    if isinstance(prompt, SharedPrefixPrompt):
        return FamilyKind(workload, texts, prompt)
    if isinstance(prompt, RagDocumentsPrompt):
        return DocumentKind(workload, texts, prompt)
    if isinstance(prompt, MultiTurnPrompt):
        return SessionKind(workload, texts, prompt)
    if isinstance(prompt, TraceReplayPrompt):
        return TraceKind(workload, texts, prompt)
    assert isinstance(prompt, DistinctPrompt)
    return DistinctKind(workload, texts, prompt)
