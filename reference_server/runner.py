"""One step of the model: from scheduled work to sampled tokens."""

from __future__ import annotations

import time
from collections.abc import Sequence as Sequences
from typing import Any

import torch

from reference_server.attention.backend import TokenSpan
from reference_server.attention.graphs import DecodeGraphs
from reference_server.attention.paged import TritonAttention
from reference_server.kv.pool import NULL_BLOCK_ID
from reference_server.logprobs import of_choice
from reference_server.models.llama import LlamaModel, PlanT
from reference_server.models.tokenizer import Tokenizer
from reference_server.sampler import sample
from reference_server.scheduler import Scheduled
from reference_server.sequence import Sequence

MINUS_INFINITY = float("-inf")
WARM_UP_SPAN = 512
"""Tokens a sequence in a warm-up: attention then costs in proportion to the tokens."""


class ModelRunner:
    """Builds the flat batch of a step and runs it. Engine thread only.

    `bytes_read_total` is what the passes had to read at least: each weight once a pass, and the KV
    data of each sequence once. Over `busy_seconds_total` it is the memory bandwidth achieved.
    """

    def __init__(self, model: LlamaModel[PlanT], tokenizer: Tokenizer) -> None:
        self._model = model
        self.tokenizer = tokenizer
        self._device = model.device
        self._forbidden: torch.Tensor | None = None
        sampleable = tokenizer.sampleable()
        if sampleable is not None:
            self._forbidden = torch.full((model.config.vocabulary_size,), MINUS_INFINITY, device=self._device)
            self._forbidden[sampleable] = 0.0
        store = model.attention.store
        self._token_bytes = store.block_bytes // store.block_size
        self._windows = [group.window for group in model.config.groups]
        self._graphs: DecodeGraphs | None = None
        self.bytes_read_total = 0
        self.busy_seconds_total = 0.0
        self.tokens_total = 0

    @torch.inference_mode()
    def run(self, work: Sequences[Scheduled]) -> list[int | None]:
        """The token sampled for each item; None for those whose prompt is not finished."""
        started = time.perf_counter()
        tokens, positions, spans = _flatten(work)
        wanted = [i for i, item in enumerate(work) if item.completes]
        logits = self._forward(tokens, positions, spans, [spans[i].row + spans[i].count - 1 for i in wanted])
        sampled: list[int | None] = [None] * len(work)
        if wanted:
            sequences = [work[i].sequence for i in wanted]
            self._forbid(logits, sequences)
            chosen = sample(logits, [s.chooser for s in sequences])
            for i, token in zip(wanted, chosen, strict=True):
                sampled[i] = token
            _tell_logprobs(logits, sequences, chosen)
        self.busy_seconds_total += time.perf_counter() - started
        self.bytes_read_total += self._model.weights.pass_bytes + self._kv_bytes(spans)
        self.tokens_total += len(tokens)
        return sampled

    @torch.inference_mode()
    def warm_up(self, num_tokens: int) -> None:
        """A pass of `num_tokens` tokens and a decode step, into the null block.

        Lazy initialisation happens here, and the peak of memory can be measured around it. The tokens
        are spread over the vocabulary, for what is measured on the first ones to be stored.
        """
        size, groups = self._model.config.vocabulary_size, len(self._windows)
        table = [NULL_BLOCK_ID] * WARM_UP_SPAN
        for count in (num_tokens, 1):
            starts = range(0, count, WARM_UP_SPAN)
            spans = [TokenSpan((table,) * groups, 0, min(WARM_UP_SPAN, count - s), s) for s in starts]
            positions = [i for span in spans for i in range(span.count)]
            tokens = [i * size // count for i in range(count)]
            self._forward(tokens, positions, spans, [span.row + span.count - 1 for span in spans])

    @torch.inference_mode()
    def capture(self, most_sequences: int, most_tokens: int) -> None:
        """On CUDA, record the decode step; elsewhere nothing happens. The pool must be in place."""
        model: LlamaModel[Any] = self._model
        attention = model.attention
        if self._device.type != "cuda" or not isinstance(attention, TritonAttention):
            return
        model.reserve_positions(most_tokens)
        self._graphs = DecodeGraphs(
            model.forward, attention, most_sequences=most_sequences, most_tokens=most_tokens
        )

    def _forward(
        self, tokens: list[int], positions: list[int], spans: list[TokenSpan], wanted_rows: list[int]
    ) -> torch.Tensor:
        model, device = self._model, self._device
        if self._graphs is not None and len(wanted_rows) == len(spans):
            logits = self._graphs.run(tokens, spans)
            if logits is not None:
                return logits
        padding = max(model.min_rows - len(tokens), 0)
        model.reserve_positions(max(span.end for span in spans))
        plan = model.attention.plan(spans, len(tokens) + padding)
        return model.forward(
            torch.tensor(tokens + [0] * padding, device=device),
            torch.tensor(positions + [0] * padding, device=device),
            plan,
            torch.tensor(wanted_rows, dtype=torch.int64, device=device),
        )

    def _forbid(self, logits: torch.Tensor, sequences: list[Sequence]) -> None:
        """Minus infinity for tokens that may not come next; changes `logits`."""
        if self._forbidden is not None:
            logits += self._forbidden
        for row, sequence in enumerate(sequences):
            if not sequence.may_stop or (self.tokenizer.hides_eos and not sequence.stop_tokens):
                ends = sequence.stop_tokens or self.tokenizer.eos_tokens
                logits[row, list(ends)] = MINUS_INFINITY

    def _kv_bytes(self, spans: list[TokenSpan]) -> int:
        """Read by attention; a layer with a window reads no more than that many tokens."""
        share = self._token_bytes
        return sum(
            share * (span.end if window is None else min(span.end, window + span.count - 1))
            for span in spans
            for window in self._windows
        )


def _tell_logprobs(logits: torch.Tensor, sequences: list[Sequence], chosen: list[int]) -> None:
    """Where a sequence asks for them; forbidden tokens are at minus infinity already."""
    for row, (sequence, token) in enumerate(zip(sequences, chosen, strict=True)):
        if sequence.logprobs is not None:
            sequence.last_logprobs = of_choice(logits[row], token, sequence.logprobs)


def _flatten(work: Sequences[Scheduled]) -> tuple[list[int], list[int], list[TokenSpan]]:
    tokens: list[int] = []
    positions: list[int] = []
    spans: list[TokenSpan] = []
    for item in work:
        sequence, start, count = item.sequence, item.sequence.num_computed, item.count
        tables = (sequence.block_table, *sequence.extra_tables)
        spans.append(TokenSpan(tables, start, count, len(tokens)))
        tokens.extend(sequence.tokens[start : start + count])
        positions.extend(range(start, start + count))
    return tokens, positions, spans
