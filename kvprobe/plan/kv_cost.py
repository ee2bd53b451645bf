"""The logical cost of a request on one GPU: `kvprobe.model.layouts` for the settings of a plan.

With pipeline stages it is the costliest stage that counts: the pool of an instance is that of its
tightest rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from kvprobe.errors import Problem, UsageError
from kvprobe.model.dtypes import KVDtype, kv_dtype
from kvprobe.model.layouts import (
    Part,
    early_bytes_per_token,
    growing_bytes_per_token,
    layout_name,
    parts,
    state_bytes_per_request,
    tp_problem,
)
from kvprobe.model.spec import ModelSpec
from kvprobe.plan.pool import EngineOptions

PROBE_TOKENS = 8_192
"""Length at which pipeline stages are compared when the model states no context."""


@dataclass(frozen=True, kw_only=True)
class KVCost:
    """Bytes of one request. `growing` is what one more token costs past every window, `early` before."""

    layout: str
    parts: tuple[Part, ...]
    growing: Fraction
    early: Fraction
    constant: int
    stage: int
    stages: int
    k: KVDtype
    v: KVDtype

    @property
    def windowed(self) -> bool:
        return any(part.window_tokens is not None for part in self.parts)

    @property
    def bytes_per_token(self) -> int | float:
        """The token that stays: past the windows; where every layer has one, inside them."""
        value = self.growing or self.early
        return int(value) if value.denominator == 1 else float(value)

    def bytes_at(self, tokens: int) -> int:
        """Logical bytes of one sequence of `tokens` tokens: no blocks, no padding."""
        scale, constant, growing = self._whole
        total = constant
        for each, window in growing:
            total += each * (tokens if window is None or tokens < window else window)
        return -(-total // scale)

    @cached_property
    def _whole(self) -> tuple[int, int, tuple[tuple[int, int | None], ...]]:
        """The parts as whole numbers over one denominator: thousands of lengths are asked for."""
        sizes = [part.bytes_per_token for part in self.parts if part.bytes_per_token is not None]
        scale = math.lcm(*(size.denominator for size in sizes))
        constant = sum((part.bytes or 0) * scale for part in self.parts if part.bytes_per_token is None)
        growing = tuple(
            (int(part.bytes_per_token * scale), part.window_tokens)
            for part in self.parts
            if part.bytes_per_token is not None
        )
        return scale, constant, growing


def kv_cost(spec: ModelSpec, options: EngineOptions) -> KVCost:
    """The cost of the tightest stage. Raises UsageError for a dtype or a split that does not exist."""
    uneven = tp_problem(spec, options.tp)
    if uneven is not None:
        raise UsageError(Problem("tp_split", uneven, "choose a --tp that divides these heads"))
    if options.pp > len(spec.layers):
        message = f"{len(spec.layers)} layers cannot be cut into {options.pp} pipeline stages"
        raise UsageError(Problem("pp_too_large", message, f"use --pp up to {len(spec.layers)}"))
    k = kv_dtype(options.kv_dtype_k, model_dtype=spec.dtype)
    v = kv_dtype(options.kv_dtype_v, model_dtype=spec.dtype)
    stages = [_stage(spec, options, k, v, stage) for stage in range(options.pp)]
    at = spec.max_position_tokens or PROBE_TOKENS
    return max(stages, key=lambda cost: cost.bytes_at(at))


def _stage(spec: ModelSpec, options: EngineOptions, k: KVDtype, v: KVDtype, stage: int) -> KVCost:
    found = parts(
        spec,
        k,
        v,
        tp=options.tp,
        pp=options.pp,
        stage=stage,
        draft_layers=options.draft_layers,
        n_spec=options.speculative_tokens,
    )
    return KVCost(
        layout=layout_name(spec),
        parts=tuple(found),
        growing=growing_bytes_per_token(found),
        early=early_bytes_per_token(found),
        constant=state_bytes_per_request(found),
        stage=stage,
        stages=options.pp,
        k=k,
        v=v,
    )
