"""Requests in their slots: opened, in the list of running ones by age, among the decoders or not.

At most one running request has a prompt under way, and it is the newest: a prompt that does not fit into
a step's budget takes all that is left of it. All others decode, one token each a step. So decoders need no
record of where they are: they move with the count of decode steps (`DEC`), and `phase` says how many of
them begin a block at a step, by its count modulo the block size.
"""

from __future__ import annotations

from kvprobe.plan.simulate.books import (
    ARRIVED,
    C_BLOCK,
    C_CACHING,
    C_EARLY,
    C_MAX_TOKENS,
    C_WEIGHT,
    COMPUTED,
    CTX,
    D0,
    DEC,
    EXTRA,
    FAILED,
    FAILED_ROW,
    GEN,
    HELD,
    HOLDS,
    IDS,
    IN,
    INT_D,
    INT_D0,
    KEYS,
    L_WORK_COUNT,
    L_WORK_SLOT,
    NDEC,
    NEXTSLOT,
    NOW,
    NWORK,
    O_HELD,
    O_STATUS,
    OUT,
    PARKED,
    PARKED_BLOCKS,
    PREV,
    R_EXTRA,
    R_IDS,
    R_IN,
    R_INDEX,
    R_KEYS,
    R_OUT,
    REMAINING,
    RESERVED,
    RHEAD,
    ROW,
    RTAIL,
    RUN,
    S_DECODE,
    S_FREE,
    S_PREFILL,
    S_WAITING,
    SINCE,
    SLOT_FREE,
    SLOT_TOP,
    STATE,
    STUCK,
    SWAPPED,
    TABLE,
    TABLE_NOW,
    Sim,
)
from kvprobe.plan.simulate.compiled import jit
from kvprobe.plan.simulate.record import computed_now, held_blocks
from kvprobe.plan.simulate.tables import commit, let_go


@jit
def total_tokens(m: Sim, slot: int) -> int:
    """Prompt and what was generated so far; the last generated token has no KV data yet."""
    if m.s[STATE, slot] == S_DECODE:
        return computed_now(m, slot) + 1
    return m.s[IN, slot] + m.s[GEN, slot]


@jit
def append_running(m: Sim, slot: int) -> None:
    n = m.n
    m.s[PREV, slot], m.s[NEXTSLOT, slot] = n[RTAIL], -1
    if n[RTAIL] >= 0:
        m.s[NEXTSLOT, n[RTAIL]] = slot
    else:
        n[RHEAD] = slot
    n[RTAIL] = slot
    n[RUN] += 1


@jit
def remove_running(m: Sim, slot: int) -> None:
    before, after = m.s[PREV, slot], m.s[NEXTSLOT, slot]
    if before >= 0:
        m.s[NEXTSLOT, before] = after
    else:
        m.n[RHEAD] = after
    if after >= 0:
        m.s[PREV, after] = before
    else:
        m.n[RTAIL] = before
    m.n[RUN] -= 1


@jit
def join_decoders(m: Sim, slot: int) -> None:
    """All its tokens are computed: from the next decode step on it makes one a step."""
    n, s = m.n, m.s
    s[STATE, slot], s[D0, slot] = S_DECODE, n[DEC]
    n[NDEC] += 1
    n[CTX] += s[COMPUTED, slot] - s[D0, slot]
    if s[RESERVED, slot] == 0:
        m.phase[(n[DEC] - s[COMPUTED, slot]) % m.n[C_BLOCK]] += m.n[C_WEIGHT]
    n[REMAINING] += most_left(m, slot) + s[D0, slot]
    m.sf[SINCE, slot], m.sf[INT_D0, slot] = m.f[NOW], m.f[INT_D]


@jit
def most_left(m: Sim, slot: int) -> int:
    """Tokens that the request may still generate, as its `max_tokens` says."""
    return max(m.n[C_MAX_TOKENS], m.s[OUT, slot]) - m.s[GEN, slot]


@jit
def leave_decoders(m: Sim, slot: int) -> None:
    """The opposite, at whatever step; afterwards `COMPUTED` and `GEN` say where it stands."""
    n, s = m.n, m.s
    n[NDEC] -= 1
    n[CTX] -= s[COMPUTED, slot] - s[D0, slot]
    n[REMAINING] -= most_left(m, slot) + s[D0, slot]
    if s[RESERVED, slot] == 0:
        m.phase[(s[D0, slot] - s[COMPUTED, slot]) % m.n[C_BLOCK]] -= m.n[C_WEIGHT]
        offset = float(s[COMPUTED, slot] - s[D0, slot])
        passed = m.f[NOW] - m.sf[SINCE, slot]
        m.sf[HELD, slot] += offset * passed + m.f[INT_D] - m.sf[INT_D0, slot]
    steps = n[DEC] - s[D0, slot]
    s[COMPUTED, slot] += steps
    s[GEN, slot] += steps
    s[STATE, slot] = S_PREFILL


@jit
def drop_memory(m: Sim, slot: int, keep: int) -> None:
    """Blocks back to the pool."""
    held = held_blocks(m, slot)
    m.n[TABLE_NOW] -= held
    if m.s[RESERVED, slot]:
        tokens = m.s[RESERVED, slot] * m.n[C_BLOCK]
        m.sf[HELD, slot] += tokens * (m.f[NOW] - m.sf[SINCE, slot])
    let_go(m, slot, m.s[COMPUTED, slot], held, keep if m.n[C_CACHING] else 0)
    m.s[RESERVED, slot] = 0


@jit
def open_slot(m: Sim, row: int) -> int:
    n, s = m.n, m.s
    slot = n[SLOT_FREE]
    if slot >= 0:
        n[SLOT_FREE] = s[NEXTSLOT, slot]
    else:
        slot = n[SLOT_TOP]
        n[SLOT_TOP] += 1
    for field in range(s.shape[0]):
        s[field, slot] = 0
    s[ROW, slot], s[IN, slot], s[OUT, slot] = m.rows[row, R_INDEX], m.rows[row, R_IN], m.rows[row, R_OUT]
    s[KEYS, slot], s[IDS, slot] = m.rows[row, R_KEYS], m.rows[row, R_IDS]
    s[EXTRA, slot] = m.rows[row, R_EXTRA]
    s[HOLDS, slot] = s[PARKED, slot] = s[STUCK, slot] = -1
    s[STATE, slot] = S_WAITING
    m.sf[ARRIVED, slot], m.sf[HELD, slot] = m.times[row], 0.0
    return slot


@jit
def free_slot(m: Sim, slot: int) -> None:
    m.s[STATE, slot] = S_FREE
    m.s[NEXTSLOT, slot] = m.n[SLOT_FREE]
    m.n[SLOT_FREE] = slot


@jit
def fail(m: Sim, slot: int) -> None:
    """There will never be room for it."""
    m.n[FAILED] += 1
    m.out[m.s[ROW, slot], O_STATUS] = FAILED_ROW
    m.out[m.s[ROW, slot], O_HELD] = m.sf[HELD, slot]
    if m.s[PARKED, slot] >= 0:
        m.n[SWAPPED] -= m.s[PARKED_BLOCKS, slot]
    free_slot(m, slot)


@jit
def add_work(m: Sim, slot: int, count: int) -> None:
    """`count` prompt tokens of a request are computed in this step."""
    at = m.n[NWORK]
    m.lists[L_WORK_SLOT, at], m.lists[L_WORK_COUNT, at] = slot, count
    m.n[NWORK] += 1
    if m.n[C_EARLY] and m.n[C_CACHING]:
        # vLLM names blocks as it hands them out: another prompt of the same step finds them already.
        full = (m.s[COMPUTED, slot] + count) // m.n[C_BLOCK]
        if full > m.s[TABLE, slot]:
            commit(m, slot, full)
