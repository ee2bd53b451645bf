"""The pool without an engine: bytes divided by bytes, in blocks where a block size is asked for.

No null block, no groups, no padding: the logical upper bound that MISSION's arithmetic gives. An engine's
own allocator can only hold less.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction

from kvprobe.plan.kv_cost import KVCost
from kvprobe.plan.pool import ByteRange, Pool
from kvprobe.plan.request import PlanRequest

SEARCH_LIMIT_TOKENS = 2**40
_ONE_REQUEST = (
    "tokens of the pool are those of one long request: with windows or states in the model, their sum "
    "depends on how many requests share it"
)


def formula_pool(request: PlanRequest, cost: KVCost, available: ByteRange) -> Pool:
    """The pool of `available` bytes by plain division; `tokens` is null where no layer grows."""
    low, middle, high = (max(0, size) for size in (available.lo, available.nominal, available.hi))
    block = request.options.block_size
    pool = _pool(cost, middle, block)
    sides = [_pool(cost, size, block) for size in (low, high)]
    context = request.context_tokens()
    return dataclasses.replace(
        pool,
        num_blocks_range=_pair(sides[0].num_blocks, sides[1].num_blocks),
        tokens_range=_pair(sides[0].tokens, sides[1].tokens),
        estimated_max_model_len_range=_pair(*(side.estimated_max_model_len for side in sides)),
        max_model_len=context,
        max_concurrency=None if not context else _concurrency(cost, middle, block, context),
        blocks_per_request=pool.blocks_for(context) if context and block else None,
        fits=bool(context) and pool.requests_of(context or 1) > 0,
    )


def _pair(a: int | None, b: int | None) -> tuple[int, int] | None:
    return None if a is None or b is None else (a, b)


def _pool(cost: KVCost, available: int, block: int | None) -> Pool:
    def held(tokens: int) -> int:
        return available // max(1, _reserved(cost, tokens, block))

    longest = _longest(cost, available, block)
    per_token = cost.growing if cost.constant == 0 and not cost.windowed else None
    tokens = blocks = block_bytes = None
    if per_token and block:
        block_bytes = math.ceil(per_token * block)
        blocks = available // block_bytes
        tokens = blocks * block
    elif per_token:
        tokens = math.floor(Fraction(available) / per_token)
    elif cost.growing:
        tokens = longest  # of one request: with windows and states the sum depends on how many there are
    reservation: Callable[[int], int] = (lambda t: -(-t // block)) if block else (lambda t: max(0, t))
    return Pool(
        engine="formula",
        version="",
        fits=True,
        available_bytes=available,
        num_blocks=blocks,
        block_size=block,
        block_bytes=block_bytes,
        tokens=tokens,
        estimated_max_model_len=longest,
        assumptions=(_ONE_REQUEST,) if per_token is None and tokens is not None else (),
        reservation=reservation,
        holds=held,
    )


def _reserved(cost: KVCost, tokens: int, block: int | None) -> int:
    grown = -(-tokens // block) * block if block else tokens
    return cost.bytes_at(grown)


def _longest(cost: KVCost, available: int, block: int | None) -> int | None:
    """The longest single request that `available` bytes hold; null when nothing in it grows."""
    if not cost.growing:
        return None
    low, high = 0, SEARCH_LIMIT_TOKENS
    while low < high:
        middle = (low + high + 1) // 2
        if _reserved(cost, middle, block) <= available:
            low = middle
        else:
            high = middle - 1
    return low


def _concurrency(cost: KVCost, available: int, block: int | None, context: int) -> float:
    return available / max(1, _reserved(cost, context, block))
