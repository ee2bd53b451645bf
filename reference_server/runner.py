"""One step of the model: from scheduled work to sampled tokens."""

from __future__ import annotations

from collections.abc import Sequence as Sequences

import torch

from reference_server.attention.backend import TokenSpan
from reference_server.kv.pool import NULL_BLOCK_ID
from reference_server.models.llama import LlamaModel, PlanT, min_rows
from reference_server.models.tokenizer import Tokenizer
from reference_server.sampler import sample
from reference_server.scheduler import Scheduled
from reference_server.sequence import Sequence


class ModelRunner:
    """Builds the flat batch of a step and runs it. Engine thread only."""

    def __init__(self, model: LlamaModel[PlanT], tokenizer: Tokenizer) -> None:
        self._model = model
        size = model.config.vocabulary_size
        self._forbidden = torch.full((size,), float("-inf"))
        self._forbidden[tokenizer.sampleable()] = 0.0
        self._eos_token = tokenizer.eos_token

    @torch.inference_mode()
    def run(self, work: Sequences[Scheduled]) -> list[int | None]:
        """The token sampled for each item; None for those whose prompt is not finished."""
        tokens, positions, spans = _flatten(work)
        wanted = [i for i, item in enumerate(work) if item.completes]
        logits = self._forward(tokens, positions, spans, [spans[i].row + spans[i].count - 1 for i in wanted])
        sampled: list[int | None] = [None] * len(work)
        if wanted:
            sequences = [work[i].sequence for i in wanted]
            chosen = sample(logits, self._forbidden_for(sequences), [s.chooser for s in sequences])
            for i, token in zip(wanted, chosen, strict=True):
                sampled[i] = token
        return sampled

    @torch.inference_mode()
    def warm_up(self, num_tokens: int) -> None:
        """A prefill chunk and a decode step into the null block: lazy initialisation happens here."""
        table = [NULL_BLOCK_ID] * num_tokens
        for count in (num_tokens, 1):
            spans = [TokenSpan(table, 0, count, 0)]
            self._forward([0] * count, list(range(count)), spans, [count - 1])

    def _forward(
        self, tokens: list[int], positions: list[int], spans: list[TokenSpan], wanted_rows: list[int]
    ) -> torch.Tensor:
        padding = max(min_rows() - len(tokens), 0)
        model = self._model
        plan = model.attention.plan(spans, len(tokens) + padding)
        return model.forward(
            torch.tensor(tokens + [0] * padding),
            torch.tensor(positions + [0] * padding),
            plan,
            torch.tensor(wanted_rows, dtype=torch.int64),
        )

    def _forbidden_for(self, sequences: list[Sequence]) -> torch.Tensor:
        forbidden = self._forbidden.repeat(len(sequences), 1)
        for row, sequence in enumerate(sequences):
            if sequence.stop_token is None or not sequence.may_stop:
                forbidden[row, self._eos_token] = float("-inf")
        return forbidden


def _flatten(work: Sequences[Scheduled]) -> tuple[list[int], list[int], list[TokenSpan]]:
    tokens: list[int] = []
    positions: list[int] = []
    spans: list[TokenSpan] = []
    for item in work:
        sequence, start, end = (
            item.sequence,
            item.sequence.num_computed,
            item.sequence.num_computed + item.count,
        )
        spans.append(TokenSpan(sequence.block_table, start, item.count, len(tokens)))
        tokens.extend(sequence.tokens[start:end])
        positions.extend(range(start, end))
    return tokens, positions, spans
