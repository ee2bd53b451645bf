"""Who is let in, by each engine's rule."""

from __future__ import annotations

from kvprobe.plan.simulate.books import (
    ADMISSION,
    ARRIVED,
    AVAIL,
    BLOCKED,
    C_BLOCK,
    C_CACHING,
    C_FULL,
    C_MAX_TOKENS,
    C_REGION,
    C_RESERVE,
    C_SEQS,
    C_SGLANG,
    C_TOUCH,
    C_WATERMARK,
    COMPUTED,
    DEC,
    HEAD,
    HIT,
    IN,
    L_STACK,
    L_WORK_SLOT,
    LOOSE,
    LOST,
    MARK,
    NDEC,
    NEXT,
    NOW,
    NWORK,
    O_HIT,
    O_QUEUE,
    OUT,
    PARKED,
    PARKED_BLOCKS,
    PREFILL,
    QUERIED,
    RATIO,
    RECOMPUTED,
    REFUSALS,
    REMAINING,
    RESERVED,
    ROW,
    ROWS,
    RUN,
    S_PREFILL,
    SINCE,
    STACK,
    STAMP,
    STATE,
    SWAP_IN,
    SWAPPED,
    TABLE,
    TABLE_NOW,
    Sim,
)
from kvprobe.plan.simulate.compiled import jit
from kvprobe.plan.simulate.pieces import take
from kvprobe.plan.simulate.record import blocks_of, snapshot
from kvprobe.plan.simulate.slots import add_work, append_running, fail, most_left, open_slot, total_tokens
from kvprobe.plan.simulate.tables import commit, hold_prefix, probe, touch


@jit
def head_of_queue(m: Sim) -> int:
    """The request that is next to be let in; -1 when nobody waits."""
    n = m.n
    if n[STACK] > 0:
        return m.lists[L_STACK, n[STACK] - 1]
    if n[HEAD] < 0 and n[NEXT] < n[ROWS] and m.times[n[NEXT]] <= m.f[NOW]:
        n[HEAD] = open_slot(m, n[NEXT])
        n[NEXT] += 1
    return n[HEAD]


@jit
def let_in(m: Sim, budget: int) -> None:
    """Waiting requests, in order, while budget, seats and room last."""
    n, s = m.n, m.s
    while budget > 0 and n[RUN] < m.n[C_SEQS]:
        slot = head_of_queue(m)
        if slot < 0:
            return
        if not _admit(m, slot, budget):
            n[BLOCKED] = 1
            if n[RUN] == 0:
                _take_from_queue(m)
                fail(m, slot)
            return
        _take_from_queue(m)
        n[BLOCKED] = 0
        n[STAMP] += 1
        s[MARK, slot], s[STATE, slot] = n[STAMP], S_PREFILL
        append_running(m, slot)
        if m.out[s[ROW, slot], O_HIT] < 0:
            _first_time(m, slot)
        count = min(total_tokens(m, slot) - s[COMPUTED, slot], budget)
        add_work(m, slot, count)
        n[PREFILL] = slot
        budget -= count


@jit
def _take_from_queue(m: Sim) -> None:
    if m.n[STACK] > 0:
        m.n[STACK] -= 1
    else:
        m.n[HEAD] = -1


@jit
def _first_time(m: Sim, slot: int) -> None:
    """Counted once a request, when it is first let in, as servers do."""
    row = m.s[ROW, slot]
    m.n[QUERIED] += m.s[IN, slot]
    m.n[HIT] += m.s[COMPUTED, slot]
    m.out[row, O_HIT] = m.s[COMPUTED, slot]
    m.out[row, O_QUEUE] = m.f[NOW] - m.sf[ARRIVED, slot]


@jit
def _admit(m: Sim, slot: int, budget: int) -> bool:
    """Room for what is cached and for the next chunk, by the engine's rule; False when there is none."""
    n, s = m.n, m.s
    total = total_tokens(m, slot)
    hits, unheld = 0, 0
    if n[C_CACHING]:
        hits, unheld = probe(m, slot, (total - 1) // n[C_BLOCK])
    stored = hits * n[C_BLOCK]
    if s[PARKED, slot] >= 0:
        stored = max(stored, min(s[PARKED, slot], total - 1))
    reserve = _reserved_blocks(m, slot)
    blocks = max(blocks_of(m, slot, min(total, stored + budget)), reserve)
    # What it finds and nobody holds is taken out of the free blocks as well.
    needed = _needed(m, slot, blocks - hits, total, hits) + unheld
    if needed > n[AVAIL]:
        n[REFUSALS] += 1
        if not n[BLOCKED]:
            snapshot(m, ADMISSION, needed, s[ROW, slot])
        if n[C_TOUCH] and hits:
            touch(m, slot, hits)
        return False
    if hits:
        hold_prefix(m, slot, hits)
    take(m, blocks - hits)
    s[LOOSE, slot], s[COMPUTED, slot], s[RESERVED, slot] = blocks - hits, stored, reserve
    n[TABLE_NOW] += blocks
    m.sf[SINCE, slot] = m.f[NOW]
    _come_back(m, slot, hits, stored)
    return True


@jit
def _come_back(m: Sim, slot: int, hits: int, stored: int) -> None:
    """Of a request that was preempted: what is copied back, and what must be computed again."""
    n, s = m.n, m.s
    n[RECOMPUTED] += max(s[LOST, slot] - stored, 0)
    s[LOST, slot] = 0
    if s[PARKED, slot] < 0:
        return
    n[SWAP_IN] += max(s[PARKED_BLOCKS, slot] - hits, 0)
    n[SWAPPED] -= s[PARKED_BLOCKS, slot]
    s[PARKED, slot] = -1
    full = stored // m.n[C_BLOCK]
    if m.n[C_CACHING] and full > s[TABLE, slot]:
        commit(m, slot, full)


@jit
def _reserved_blocks(m: Sim, slot: int) -> int:
    """What the allocator takes at once, whatever comes: 0 where it takes blocks as they are needed."""
    if m.n[C_REGION]:
        return m.n[C_REGION]
    if m.n[C_RESERVE]:
        return blocks_of(m, slot, m.s[IN, slot] + max(m.n[C_MAX_TOKENS], m.s[OUT, slot]) - 1)
    return 0


@jit
def _needed(m: Sim, slot: int, wanted: int, total: int, hits: int) -> int:
    """Free blocks that the engine asks for before it lets a request in: more than it takes at once."""
    n = m.n
    spare = n[C_WATERMARK] if n[RUN] > 0 else 0
    if n[C_SGLANG] and n[RUN] > 0:
        promised = m.f[RATIO] * promised_tokens(m) / n[C_BLOCK]
        asked = blocks_of(m, slot, total + most_left(m, slot)) - hits + int(promised) + 1
        return max(asked, wanted)  # a region is taken whole, however little is promised
    if n[C_FULL]:
        wanted = max(wanted, blocks_of(m, slot, total) - hits)
    return wanted + spare


@jit
def promised_tokens(m: Sim) -> int:
    """What running requests may still generate, all together."""
    left = m.n[REMAINING] - m.n[NDEC] * m.n[DEC]
    for at in range(m.n[NWORK]):
        left += most_left(m, m.lists[L_WORK_SLOT, at])
    return left
