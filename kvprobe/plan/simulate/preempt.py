"""Who gives its memory up when there is none: the newest, or under SGLang who generated least."""

from __future__ import annotations

from kvprobe.plan.simulate.books import (
    AVAIL,
    BLOCKED,
    C_BLOCK,
    C_SGLANG,
    C_SWAP,
    C_WEIGHT,
    COMPUTED,
    D0,
    DEC,
    GEN,
    IN,
    L_STACK,
    LOOSE,
    LOST,
    NDEC,
    NEXTSLOT,
    O_PREEMPTED,
    PARKED,
    PARKED_BLOCKS,
    PREEMPTED_NOW,
    PREEMPTION,
    PREEMPTIONS,
    PREFILL,
    RATIO,
    REFUSALS,
    RESERVED,
    RHEAD,
    ROW,
    RTAIL,
    RUN,
    S_DECODE,
    S_WAITING,
    STACK,
    STATE,
    STUCK,
    SWAP_OUT,
    SWAPPED,
    TABLE_NOW,
    Sim,
)
from kvprobe.plan.simulate.compiled import jit
from kvprobe.plan.simulate.pieces import take
from kvprobe.plan.simulate.record import blocks_of, computed_now, held_blocks, note_preemption, snapshot
from kvprobe.plan.simulate.slots import (
    add_work,
    drop_memory,
    fail,
    leave_decoders,
    most_left,
    remove_running,
    total_tokens,
)

RETRACT_STEPS = 20
"""Decode steps for which SGLang makes room at once when it must retract (SGLANG_RETRACT_DECODE_STEPS)."""


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
