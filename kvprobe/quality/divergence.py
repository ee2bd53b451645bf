"""Where two greedy answers part, and how far the probabilities were apart up to there.

Up to and with the first place at which they differ both servers saw the same text, so the log
probabilities of the same token can be compared; after it they answer different questions. Where they part,
the candidate's figure for the baseline's token is among its alternatives, or below all of them: then the
difference is at least that, and so much is counted. A different token is not a wrong one: near-ties flip
by rounding alone, which asking one server twice shows.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from kvprobe.quality.given import Given
from kvprobe.quality.statistics import mean_interval


class Divergence(msgspec.Struct, kw_only=True):
    """Over all questions that both answered; shares are ratios, log probabilities in nats."""

    n: int
    identical: float | None = None
    """Share of answers that are the same to the end."""
    identical_ci: tuple[float, float] | None = None
    first_same: float | None = None
    """Share whose first token is the same."""
    first_same_ci: tuple[float, float] | None = None
    matched_share: float | None = None
    """Mean share of the answer before the first difference."""
    logprob_difference: float | None = None
    """Mean |difference| of the log probability of one token in the same text, by question; null where a
    server gives none."""
    logprob_difference_ci: tuple[float, float] | None = None
    logprob_tokens: int = 0
    unit: str = "tokens"
    """`characters` where the server gives no tokens."""


def divergence(a: Sequence[Given], b: Sequence[Given]) -> Divergence:
    pairs = [(x, y) for x, y in zip(a, b, strict=True) if x.error is None and y.error is None]
    out = Divergence(n=len(pairs))
    if not pairs:
        return out
    by_token = all(x.tokens is not None or not x.text for pair in pairs for x in pair) and any(
        x.tokens for pair in pairs for x in pair
    )
    out.unit = "tokens" if by_token else "characters"
    identical, first, shares, apart = [], [], [], []
    for x, y in pairs:
        left, right = (x.tokens or [], y.tokens or []) if by_token else (list(x.text), list(y.text))
        same = _common(left, right)
        identical.append(float(same == len(left) == len(right)))
        first.append(float(same > 0 or left == right))
        shares.append(same / max(len(left), len(right)) if left or right else 1.0)
        if differences := _differences(x, y):
            apart.append(differences)
    out.identical, out.identical_ci = float(np.mean(identical)), mean_interval(identical)
    out.first_same, out.first_same_ci = float(np.mean(first)), mean_interval(first)
    out.matched_share = float(np.mean(shares))
    if apart:
        means = [float(np.mean(values)) for values in apart]
        out.logprob_difference, out.logprob_difference_ci = float(np.mean(means)), mean_interval(means)
        out.logprob_tokens = sum(map(len, apart))
    return out


def _differences(a: Given, b: Given) -> list[float]:
    """Of tokens that both chose in the same text, then of the place at which they part."""
    if not a.tokens or not b.tokens or a.logprobs is None or b.logprobs is None:
        return []
    same = _common(a.tokens, b.tokens)
    out = [abs(p - q) for p, q in zip(a.logprobs[:same], b.logprobs[:same], strict=True)]
    if b.alternatives is not None and same < min(len(a.tokens), len(b.tokens)):
        parting = _at_the_parting(a.tokens[same], a.logprobs[same], b.alternatives[same])
        out += [parting] if parting is not None else []
    return out


def _at_the_parting(token: str, baseline: float, candidate: dict[str, float]) -> float | None:
    """The difference for the baseline's token, or the least that it can be; null where that is not known."""
    if token in candidate:
        return abs(baseline - candidate[token])
    return max(0.0, baseline - min(candidate.values())) if candidate else None


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
