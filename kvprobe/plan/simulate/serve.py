"""Who gets room: decoding requests, the prompt that is under way, waiting ones; and who gives it up.

At most one running request has a prompt under way, and it is the newest: a prompt that does not fit into
a step's budget takes all that is left of it. All others decode, one token each a step. So decoders need no
record of where they are: they move with the count of decode steps (`DEC`), and `phase` says how many of
them begin a block at a step, by its count modulo the block size.
"""

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
    C_SWAP,
    C_TOUCH,
    C_WATERMARK,
    C_WEIGHT,
    COMPUTED,
    CTX,
    D0,
    DEC,
    EXTRA,
    FAILED,
    FAILED_ROW,
    GEN,
    HEAD,
    HELD,
    HIT,
    HOLDS,
    IDS,
    IN,
    INT_D,
    INT_D0,
    KEYS,
    L_STACK,
    L_WORK_COUNT,
    L_WORK_SLOT,
    LOOSE,
    LOST,
    MARK,
    NDEC,
    NEXT,
    NEXTSLOT,
    NOW,
    NWORK,
    O_HELD,
    O_HIT,
    O_PREEMPTED,
    O_QUEUE,
    O_STATUS,
    OUT,
    PARKED,
    PARKED_BLOCKS,
    PREEMPTED_NOW,
    PREEMPTION,
    PREEMPTIONS,
    PREFILL,
    PREV,
    QUERIED,
    R_EXTRA,
    R_IDS,
    R_IN,
    R_INDEX,
    R_KEYS,
    R_OUT,
    RATIO,
    RECOMPUTED,
    REFUSALS,
    REMAINING,
    RESERVED,
    RHEAD,
    ROW,
    ROWS,
    RTAIL,
    RUN,
    S_DECODE,
    S_FREE,
    S_PREFILL,
    S_WAITING,
    SINCE,
    SLOT_FREE,
    SLOT_TOP,
    STACK,
    STAMP,
    STATE,
    STUCK,
    SWAP_IN,
    SWAP_OUT,
    SWAPPED,
    TABLE,
    TABLE_NOW,
    Sim,
)
from kvprobe.plan.simulate.compiled import jit
from kvprobe.plan.simulate.pieces import take
from kvprobe.plan.simulate.record import blocks_of, computed_now, held_blocks, note_preemption, snapshot
from kvprobe.plan.simulate.tables import commit, hold_prefix, let_go, probe, touch

RATIO_FIRST, RATIO_LEAST, RATIO_STEPS = 0.7, 0.098, 600
"""SGLang's guess of how much of `max_tokens` running requests will still use: it begins at 0.7 and falls
to 0.14 of that within 600 decode steps (SGLANG_INIT_NEW_TOKEN_RATIO and its neighbours)."""
RETRACT_STEPS = 20
"""Decode steps for which SGLang makes room at once when it must retract (SGLANG_RETRACT_DECODE_STEPS)."""


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
def preempt(m: Sim, slot: int) -> None:
    """A running request gives its memory up and waits before all others."""
    n, s = m.n, m.s
    if s[STATE, slot] == S_DECODE:
        leave_decoders(m, slot)
    else:
        n[PREFILL] = -1
    remove_running(m, slot)
    blocks = blocks_of(m, slot, s[COMPUTED, slot])
    s[LOST, slot] = s[COMPUTED, slot]
    s[PARKED, slot] = -1
    if blocks and n[SWAPPED] + blocks <= m.n[C_SWAP]:
        s[PARKED, slot], s[PARKED_BLOCKS, slot] = s[COMPUTED, slot], blocks
        n[SWAPPED] += blocks
        n[SWAP_OUT] += blocks
    drop_memory(m, slot, 1)
    s[COMPUTED, slot], s[STATE, slot] = 0, S_WAITING
    m.lists[L_STACK, n[STACK]] = slot
    n[STACK] += 1
    n[PREEMPTIONS] += 1
    n[PREEMPTED_NOW] += 1
    n[BLOCKED] = 0
    m.out[s[ROW, slot], O_PREEMPTED] += 1
    note_preemption(m)


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
def free_slot(m: Sim, slot: int) -> None:
    m.s[STATE, slot] = S_FREE
    m.s[NEXTSLOT, slot] = m.n[SLOT_FREE]
    m.n[SLOT_FREE] = slot


@jit
def _gave_itself_up(m: Sim, slot: int) -> None:
    """Alone, and twice at the same token without room: it fails."""
    if m.n[RUN] == 0:
        total = total_tokens(m, slot)
        if m.s[STUCK, slot] == total:
            m.n[STACK] -= 1
            fail(m, slot)
        m.s[STUCK, slot] = total


@jit
def room_for_decoders(m: Sim) -> None:
    """A block for each decoder that begins one; the newest running request goes where none is left."""
    n = m.n
    size = m.n[C_BLOCK]
    wanted = m.phase[n[DEC] % size]
    if wanted <= n[AVAIL]:
        take(m, wanted)
        n[TABLE_NOW] += wanted
        return
    n[REFUSALS] += 1
    snapshot(m, PREEMPTION, wanted, -1)
    if m.n[C_SGLANG]:
        _retract(m)
        return
    slot = n[RHEAD]
    while slot >= 0 and m.s[STATE, slot] == S_DECODE:
        starts = m.s[RESERVED, slot] == 0 and computed_now(m, slot) % size == 0
        while starts and n[AVAIL] < n[C_WEIGHT]:
            victim = n[RTAIL]
            preempt(m, victim)
            if victim == slot:
                _gave_itself_up(m, slot)
                return
        if starts:
            take(m, n[C_WEIGHT])
            n[TABLE_NOW] += n[C_WEIGHT]
        slot = m.s[NEXTSLOT, slot]


@jit
def _retract(m: Sim) -> None:
    """SGLang: those that generated least go (the longest prompt first), until there is room for 20 steps."""
    n, s = m.n, m.s
    while n[NDEC] > 1 and n[AVAIL] < _retract_wants(m):
        victim = -1
        slot = n[RHEAD]
        while slot >= 0:
            if s[STATE, slot] == S_DECODE and (victim < 0 or _goes_before(m, slot, victim)):
                victim = slot
            slot = s[NEXTSLOT, slot]
        preempt(m, victim)
    left, done = 0, 0
    slot = n[RHEAD]
    while slot >= 0:
        if s[STATE, slot] == S_DECODE:
            done += s[GEN, slot] + n[DEC] - s[D0, slot]
            left += most_left(m, slot) + s[GEN, slot]
        slot = s[NEXTSLOT, slot]
    m.f[RATIO] = min(1.0, (done + RETRACT_STEPS * n[NDEC]) / max(left, 1))
    wanted = m.phase[n[DEC] % m.n[C_BLOCK]]
    if wanted <= n[AVAIL]:
        take(m, wanted)
        n[TABLE_NOW] += wanted
    elif n[NDEC] == 1:
        last = n[RHEAD]
        preempt(m, last)
        _gave_itself_up(m, last)


@jit
def _retract_wants(m: Sim) -> int:
    steps = (RETRACT_STEPS + m.n[C_BLOCK] - 1) // m.n[C_BLOCK]
    return max(
        m.n[NDEC] * steps * m.n[C_WEIGHT] if m.n[PREEMPTED_NOW] else 0, m.phase[m.n[DEC] % m.n[C_BLOCK]]
    )


@jit
def _goes_before(m: Sim, a: int, b: int) -> bool:
    done_a = m.s[GEN, a] - m.s[D0, a]
    done_b = m.s[GEN, b] - m.s[D0, b]
    return done_a < done_b or (done_a == done_b and m.s[IN, a] > m.s[IN, b])


@jit
def go_on_with_prompt(m: Sim, budget: int) -> int:
    """The prompt under way takes its share; returns what is left of the budget."""
    n, s = m.n, m.s
    slot = n[PREFILL]
    count = min(total_tokens(m, slot) - s[COMPUTED, slot], budget)
    wanted = max(blocks_of(m, slot, s[COMPUTED, slot] + count) - held_blocks(m, slot), 0)
    if s[RESERVED, slot]:
        wanted = 0
    if wanted > n[AVAIL]:
        n[REFUSALS] += 1
        snapshot(m, PREEMPTION, wanted, s[ROW, slot])
        preempt(m, slot)
        _gave_itself_up(m, slot)
        return budget
    take(m, wanted)
    n[TABLE_NOW] += wanted
    s[LOOSE, slot] += wanted
    add_work(m, slot, count)
    return budget - count


@jit
def add_work(m: Sim, slot: int, count: int) -> None:
    """`count` prompt tokens of a request are computed in this step."""
    at = m.n[NWORK]
    m.lists[L_WORK_SLOT, at], m.lists[L_WORK_COUNT, at] = slot, count
    m.n[NWORK] += 1


@jit
def head_of_queue(m: Sim) -> int:
    """The request that is next to be let in; -1 when nobody waits."""
    n = m.n
    if n[STACK] > 0:
        return m.lists[L_STACK, n[STACK] - 1]
    if n[HEAD] < 0 and n[NEXT] < n[ROWS] and m.times[n[NEXT]] <= m.f[NOW]:
        n[HEAD] = _open_slot(m, n[NEXT])
        n[NEXT] += 1
    return n[HEAD]


@jit
def _open_slot(m: Sim, row: int) -> int:
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
    if not _has_room(m, slot, blocks - hits, n[AVAIL] - unheld, total, hits):
        n[REFUSALS] += 1
        if not n[BLOCKED]:
            snapshot(m, ADMISSION, blocks - hits, s[ROW, slot])
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
def _has_room(m: Sim, slot: int, wanted: int, available: int, total: int, hits: int) -> bool:
    n = m.n
    spare = n[C_WATERMARK] if m.n[RUN] > 0 else 0
    if n[C_SGLANG] and m.n[RUN] > 0:
        promised = m.f[RATIO] * promised_tokens(m)
        asks = blocks_of(m, slot, total + most_left(m, slot)) - hits
        return asks < available - promised / n[C_BLOCK]
    if n[C_FULL] and blocks_of(m, slot, total) - hits + spare > available:
        return False
    return wanted + spare <= available


@jit
def promised_tokens(m: Sim) -> int:
    """What running requests may still generate, all together."""
    left = m.n[REMAINING] - m.n[NDEC] * m.n[DEC]
    for at in range(m.n[NWORK]):
        left += most_left(m, m.lists[L_WORK_SLOT, at])
    return left
