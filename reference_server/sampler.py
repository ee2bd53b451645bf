"""From logits to the next token of each sequence."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What a request asks of sampling; `temperature` 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


class TokenChooser:
    """Chooses one sequence's tokens.

    It draws once per generated token from its own generator, so that neither batching nor
    preemption (which computes tokens again but does not choose them again) changes the outcome.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._random = Random(params.seed)

    @property
    def greedy(self) -> bool:
        return self._params.temperature == 0.0

    def choose(self, logits: torch.Tensor) -> int:
        """`logits` of one position, forbidden tokens at minus infinity."""
        if self.greedy:
            return int(logits.argmax())
        # From the best logit down, so that the smallest temperature overflows to -inf and not to NaN.
        below_best = logits.double() - float(logits.max())
        probabilities = torch.softmax(below_best / self._params.temperature, dim=-1)
        ordered, ids = probabilities.sort(descending=True, stable=True)
        cumulative = ordered.cumsum(0)
        kept_mass = float(cumulative[-1])
        if self._params.top_p < 1.0:
            # The smallest set of likeliest tokens whose mass reaches top_p; never empty.
            kept = int((cumulative < self._params.top_p).sum()) + 1
            cumulative = cumulative[:kept]
            kept_mass = float(cumulative[-1])
        point = torch.tensor(self._random.random() * kept_mass, dtype=torch.float64)
        index = int(torch.searchsorted(cumulative, point, right=True))
        return int(ids[min(index, len(cumulative) - 1)])


def sample(logits: torch.Tensor, choosers: list[TokenChooser]) -> list[int]:
    """One token for each row; forbidden tokens are at minus infinity."""
    if all(chooser.greedy for chooser in choosers):
        chosen: list[int] = logits.argmax(dim=-1).tolist()
        return chosen
    return [chooser.choose(row) for chooser, row in zip(choosers, logits, strict=True)]
