"""Small traces for the tests of this folder."""

from __future__ import annotations

import random

from kvprobe.plan.simulate.cost import StepCost
from kvprobe.plan.simulate.settings import SimSettings
from kvprobe.traces.rows import TraceRow

COSTS = (
    StepCost(fixed_s=1, token_s=0),
    StepCost(fixed_s=0.5, token_s=0.01, kv_token_s=0.001, pair_s=0.0001),
    StepCost(fixed_s=0.5, token_s=0.03, kv_token_s=0.001, roofline=True),
)


def row(t_s: float, tokens: int, out: int, ids: tuple[int, ...] | None = None, **more: object) -> TraceRow:
    said = {"block_tokens": 4 if ids is not None else None, "session": None, "turn": None, "line": 1, **more}
    return TraceRow(t_s, tokens, out, ids, **said)  # type: ignore[arg-type]


def random_trace(rng: random.Random) -> list[TraceRow]:
    """Requests that share beginnings, of trace blocks that need not fit the pool's."""
    size, rows, at, known, fresh = rng.choice([4, 8, 16, 10, 3, 32]), [], 0.0, [], 0
    named = rng.random() < 0.8
    for number in range(rng.randint(1, 40)):
        at += rng.choice([0, 0, rng.random() * rng.choice([0.1, 3, 30])])
        tokens, ids = rng.randint(1, 120), None
        if named and rng.random() < 0.9:
            count, begin = -(-tokens // size), []
            if known and rng.random() < 0.8:
                other = rng.choice(known)
                begin = list(other[: rng.randint(0, len(other))])[:count]
            if rng.random() < 0.15:  # ids that name a part of the prompt only
                count = rng.randint(0, count)
                begin = begin[:count]
            fresh += count
            ids = tuple(begin + list(range(fresh, fresh + count - len(begin))))
            known.append(ids)
        block = size if ids is not None else None
        rows.append(row(at, tokens, rng.randint(1, 60), ids, block_tokens=block, line=number + 1))
    return rows


def random_settings(rng: random.Random) -> SimSettings:
    seats, block = rng.choice([1, 2, 4, 8, 16]), rng.choice([1, 2, 4, 8, 16, 5])
    return SimSettings(
        usable_blocks=rng.randint(max(1, 40 // block), max(2, 500 // block)),
        block_size=block,
        allocator=rng.choice(["paged", "paged", "paged", "paged", "paged-reserve", "contiguous"]),
        engine="reference",
        max_num_seqs=seats,
        max_num_batched_tokens=rng.randint(seats, 64 + seats),
        max_model_len=rng.choice([150, 200, 90]),
        prefix_caching=rng.random() < 0.85,
        swap_blocks=rng.choice([0, 0, 5, 50]),
    )
