"""What the allocation costs on top of the tokens: tails, padding, the null block, reservations, tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvprobe.plan.lengths import Lengths
from kvprobe.plan.pool import Pool
from kvprobe.plan.solve import FULL_UPFRONT, Solution

TABLE_ENTRY_BYTES = 4
"""A block table holds one int32 a block (vLLM `v1/worker/block_table.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waste:
    """For `sequences` requests at once. `reserved` is all that they hold beyond their logical bytes, tails
    and padding included; `remainder` what no whole block could be made of. Null: `reasons` says why."""

    sequences: int | None = None
    tail_bound_tokens: int | None = None
    tail_expected_tokens: float | None = None
    padding: int | None = None
    null_block: int | None = None
    reserved: int | None = None
    block_table_bytes: int | None = None
    remainder: int | None = None
    reasons: tuple[tuple[str, str], ...] = ()


def waste_of(solution: Solution) -> Waste:
    """The waste of the pool when it is as full as the plan advises."""
    pool = solution.safe_pool
    if pool is None:
        why = solution.budget.kv.reason or "the pool is not known"
        names = (
            "tail_bound_tokens",
            "tail_expected_tokens",
            "padding",
            "null_block",
            "reserved",
            "block_table_bytes",
        )
        return Waste(reasons=tuple((name, why) for name in names))
    reasons: dict[str, str] = {}
    sequences = _sequences(solution)
    if sequences is None:
        for name in ("tail_bound_tokens", "tail_expected_tokens", "reserved", "block_table_bytes"):
            reasons[name] = "how many requests run at once is not known: give --lengths or --max-model-len"
    bound, expected = _tails(solution, pool, sequences, reasons)
    return Waste(
        sequences=sequences,
        tail_bound_tokens=bound,
        tail_expected_tokens=expected,
        padding=_padding(pool, reasons),
        null_block=_null(pool, reasons),
        reserved=None if sequences is None else _reserved(solution, pool, sequences, reasons),
        block_table_bytes=None if sequences is None else _tables(solution, pool, sequences, reasons),
        remainder=_remainder(solution, pool),
        reasons=tuple(reasons.items()),
    )


def _sequences(solution: Solution) -> int | None:
    held = solution.safe_capacity
    if held.spread is not None:
        return held.spread.max_num_seqs
    return held.max


def _tails(
    solution: Solution, pool: Pool, sequences: int | None, reasons: dict[str, str]
) -> tuple[int | None, float | None]:
    """At most A x (B - 1); on average A times what the lengths leave in their last block."""
    if not _paged(pool):
        reasons["tail_bound_tokens"] = reasons["tail_expected_tokens"] = "no blocks: no tails"
        return None, None
    block = pool.block_size or 1
    if sequences is None:
        return None, None
    lengths = solution.request.lengths
    if lengths is not None:
        tail = expected_tail(lengths, block)
    else:
        tail = (block - 1) / 2
        reasons["tail_expected_tokens"] = "no --lengths: every remainder is taken as equally likely"
    return sequences * (block - 1), round(sequences * tail, 1)


def expected_tail(lengths: Lengths, block: int) -> float:
    """Mean of the empty slots in a request's last block."""
    return math.fsum(-t % block * w for t, w in zip(lengths.tokens, lengths.weights, strict=True))


def _paged(pool: Pool) -> bool:
    return pool.block_size is not None and pool.num_blocks is not None


def _padding(pool: Pool, reasons: dict[str, str]) -> int | None:
    """Bytes of padding layers when every group holds its share of the blocks."""
    if pool.groups is None or pool.group_size is None or pool.num_blocks is None or pool.block_bytes is None:
        reasons["padding"] = "this allocator has no groups of layers to pad"
        return None
    slots = sum(pool.groups) * pool.group_size
    return int(pool.num_blocks * pool.block_bytes * (pool.padding_layers or 0) / slots) if slots else 0


def _null(pool: Pool, reasons: dict[str, str]) -> int | None:
    if pool.num_blocks is None or pool.block_bytes is None:
        reasons["null_block"] = "this allocator has no blocks"
        return None
    return pool.null_blocks * pool.block_bytes


def _reserved(solution: Solution, pool: Pool, sequences: int, reasons: dict[str, str]) -> int | None:
    """Physical less logical bytes of the requests at their mean length (context limit without lengths)."""
    tokens = _typical(solution)
    if tokens is None:
        reasons["reserved"] = "no length to compute it for"
        return None
    logical = sequences * solution.cost.bytes_at(tokens)
    if pool.parts_bytes and pool.engine in FULL_UPFRONT:
        return max(0, sum(pool.parts_bytes.values()) - logical)
    if pool.num_blocks is None or pool.block_bytes is None:
        reasons["reserved"] = "memory is taken as requests grow: nothing is reserved"
        return None
    return max(0, sequences * pool.blocks_for(tokens) * pool.block_bytes - logical)


def _typical(solution: Solution) -> int | None:
    lengths = solution.request.lengths
    return round(lengths.mean_tokens) if lengths is not None else solution.request.context_tokens()


def _tables(solution: Solution, pool: Pool, sequences: int, reasons: dict[str, str]) -> int | None:
    """Block tables for the most sequences allowed, at the longest context, on the GPU."""
    context = solution.request.context_tokens()
    if not _paged(pool) or context is None:
        reasons["block_table_bytes"] = "no blocks, or no context limit"
        return None
    rows = solution.request.options.max_num_seqs or sequences
    groups = pool.num_groups or 1
    return rows * groups * -(-context // (pool.block_size or 1)) * TABLE_ENTRY_BYTES


def _remainder(solution: Solution, pool: Pool) -> int | None:
    kv = solution.budget.kv.value
    if kv is None or pool.num_blocks is None or pool.block_bytes is None:
        return None
    left = (kv.lo if solution.banded else kv.nominal) - pool.num_blocks * pool.block_bytes
    return left if left >= 0 else None
