"""Frequencies of rotary position embeddings, and their scalings for longer contexts.

Sources: RoFormer (arXiv 2104.09864); "linear": position interpolation (arXiv 2306.15595); "yarn":
arXiv 2309.00071, sections 3.2 to 3.4; "llama3": Meta's published Llama 3.1 code, where wavelengths
are kept, divided, or blended between two bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """How frequencies are changed. `kind` is `linear`, `llama3` or `yarn`.

    `original_tokens` is the context that the model was first trained for; the factors and betas
    have their published meanings, and those that a kind does not use are ignored.
    """

    kind: str
    factor: float
    original_tokens: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    truncate: bool = True


def inverse_frequencies(
    head_dim: int, theta: float, scaling: RopeScaling | None
) -> tuple[torch.Tensor, float]:
    """Radians per position for each pair, `[head_dim / 2]` in double, and the factor on cos and sin."""
    half = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    plain = theta**-half
    if scaling is None:
        return plain, 1.0
    if scaling.kind == "linear":
        return plain / scaling.factor, 1.0
    if scaling.kind == "llama3":
        return _llama3(plain, scaling), 1.0
    return _yarn(plain, head_dim, theta, scaling)


def _llama3(plain: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    turns = scaling.original_tokens * plain / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    # 0 below `low` turns within the original context (divide), 1 above `high` (keep).
    keep = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return keep * plain + (1 - keep) * plain / scaling.factor


def _yarn(
    plain: torch.Tensor, head_dim: int, theta: float, scaling: RopeScaling
) -> tuple[torch.Tensor, float]:
    def pair_with(turns: float) -> float:
        """The pair that makes so many turns within the original context."""
        return head_dim * math.log(scaling.original_tokens / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = pair_with(scaling.beta_fast), pair_with(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001
    divided = ((torch.arange(head_dim // 2, dtype=torch.float64) - low) / width).clamp(0.0, 1.0)
    factor = scaling.attention_factor
    if factor is None:
        factor = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    return plain * (1 - divided) + plain / scaling.factor * divided, factor


def rotary_table(inverse: torch.Tensor, factor: float, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin `[positions, 1, head_dim / 2]`, computed in double so that far positions stay exact."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), inverse)
    return (angles.cos() * factor).float()[:, None], (angles.sin() * factor).float()[:, None]
