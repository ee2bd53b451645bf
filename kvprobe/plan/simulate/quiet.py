"""Stretches in which requests only decode: how long they are and how long they take."""

from __future__ import annotations

import math

from kvprobe.plan.simulate.admit import head_of_queue
from kvprobe.plan.simulate.books import (
    AVAIL,
    BLOCKED,
    C_BLOCK,
    C_SEQS,
    C_SGLANG,
    CTX,
    DEC,
    K_FIXED,
    K_KV,
    K_PAIR,
    K_ROOFLINE,
    K_TOKEN,
    L_HEAP_AT,
    NDEC,
    NEXT,
    NOW,
    PREFILL,
    ROWS,
    RUN,
    Sim,
)
from kvprobe.plan.simulate.compiled import jit
from kvprobe.plan.simulate.ends import drop_stale

MANY = 1 << 60


@jit
def step_seconds(m: Sim, tokens: int, contexts: int, pairs: int) -> float:
    """Time of a step: fixed (weights are read) and by token (arithmetic), and by KV token read.

    On a roofline the greater of the first two counts, else their sum (a fit).
    """
    by_token = m.f[K_TOKEN] * tokens + m.f[K_PAIR] * pairs
    base = max(m.f[K_FIXED], by_token) if m.f[K_ROOFLINE] else m.f[K_FIXED] + by_token
    return base + m.f[K_KV] * contexts


@jit
def quiet_steps(m: Sim) -> int:
    """How many steps from now on nothing can happen but decoding, the last one's finishing included."""
    n = m.n
    if n[PREFILL] >= 0 or n[NDEC] == 0:
        return 0
    seats = n[RUN] < m.n[C_SEQS]
    waits = head_of_queue(m) >= 0
    if waits and seats and not n[BLOCKED]:
        return 0
    if waits and seats and m.n[C_SGLANG]:
        return 1  # the promise to running requests shrinks with each step
    drop_stale(m)
    many = m.lists[L_HEAP_AT, 0] - n[DEC]
    if not waits and n[NEXT] < n[ROWS] and seats:
        many = min(many, _steps_until(m, m.times[n[NEXT]]))
    return _steps_with_room(m, many)


@jit
def run_seconds(m: Sim, steps: int) -> float:
    """Time of so many decode steps on end."""
    n = m.n
    decoders = n[NDEC]
    contexts = n[CTX] + decoders * n[DEC]
    read = float(steps) * contexts + decoders * (float(steps) * (steps + 1) / 2)
    return steps * step_seconds(m, decoders, 0, 0) + m.f[K_KV] * read


@jit
def _steps_until(m: Sim, instant: float) -> int:
    """The first number of steps after which it is `instant` or later."""
    left = instant - m.f[NOW]
    if left <= 0:
        return 0
    each = step_seconds(m, m.n[NDEC], m.n[CTX] + m.n[NDEC] * m.n[DEC], 0)
    if each <= 0:
        return MANY
    grows = m.f[K_KV] * m.n[NDEC] / 2
    guess = left / each
    if grows > 0:
        guess = (math.sqrt(each * each + 4 * grows * left) - each) / (2 * grows)
    steps = max(int(min(guess, 1e15)), 1)
    while steps > 1 and run_seconds(m, steps - 1) >= left:
        steps -= 1
    while run_seconds(m, steps) < left:
        steps += 1
    return steps


@jit
def _steps_with_room(m: Sim, most: int) -> int:
    """How many of the next `most` decode steps find a free block for every decoder that begins one."""
    size = m.n[C_BLOCK]
    a_round = 0
    for phase in range(size):
        a_round += m.phase[phase]
    if a_round == 0:
        return most
    rounds = min(m.n[AVAIL] // a_round, most // size)
    left = m.n[AVAIL] - rounds * a_round
    steps = rounds * size
    while steps < most:
        left -= m.phase[(m.n[DEC] + steps) % size]
        if left < 0:
            break
        steps += 1
    return steps


@jit
def blocks_begun(m: Sim, steps: int) -> int:
    """Blocks that the next `steps` decode steps begin."""
    size = m.n[C_BLOCK]
    begun = 0
    for step in range(size):
        times = (steps - step + size - 1) // size if steps > step else 0
        begun += times * m.phase[(m.n[DEC] + step) % size]
    return begun
