"""The clock: one step at a time where something happens, many at once where requests only decode."""

from __future__ import annotations

from kvprobe.plan.simulate.admit import let_in
from kvprobe.plan.simulate.books import (
    ARRIVED,
    BLOCKED,
    C_BLOCK,
    C_BUDGET,
    C_CACHING,
    C_SEQS,
    C_SGLANG,
    COMPUTED,
    CTX,
    CTX_WORK,
    DEC,
    EVENTS,
    FINISHED,
    GEN,
    GENERATED,
    HEAD,
    HEAP,
    HELD,
    IN,
    INT_D,
    L_HEAP_AT,
    L_HEAP_MARK,
    L_HEAP_SLOT,
    L_WORK_COUNT,
    L_WORK_SLOT,
    LAST,
    MARK,
    NDEC,
    NEXT,
    NOW,
    NWORK,
    O_E2E,
    O_HELD,
    O_STATUS,
    O_TTFT,
    OK,
    OUT,
    PAIRS,
    PREEMPTED_NOW,
    PREFILL,
    RATIO,
    RESERVED,
    ROW,
    ROWS,
    RUN,
    STACK,
    STEPS,
    TABLE,
    TABLE_NOW,
    TOK_WORK,
    USED,
    Sim,
)
from kvprobe.plan.simulate.compiled import jit
from kvprobe.plan.simulate.ends import is_live, pop_end, push_end
from kvprobe.plan.simulate.pieces import take
from kvprobe.plan.simulate.preempt import go_on_with_prompt, room_for_decoders
from kvprobe.plan.simulate.quiet import blocks_begun, quiet_steps, run_seconds, step_seconds
from kvprobe.plan.simulate.record import spend
from kvprobe.plan.simulate.slots import drop_memory, free_slot, join_decoders, leave_decoders, remove_running
from kvprobe.plan.simulate.tables import commit

RATIO_FIRST, RATIO_LEAST, RATIO_STEPS = 0.7, 0.098, 600
"""SGLang's guess of how much of `max_tokens` running requests will still use: it begins at 0.7 and falls
to 0.14 of that within 600 decode steps (SGLANG_INIT_NEW_TOKEN_RATIO and its neighbours)."""


@jit
def advance(m: Sim) -> int:
    """Serve until all rows are done (1), or until more rows are needed to go on (0)."""
    n = m.n
    while True:
        ahead = n[ROWS] - n[NEXT]
        if not n[LAST] and ahead <= m.n[C_SEQS]:
            return 0
        if n[RUN] == 0 and n[STACK] == 0 and n[HEAD] < 0:
            if ahead == 0:
                return 1
            if m.times[n[NEXT]] > m.f[NOW]:
                spend(m, m.times[n[NEXT]] - m.f[NOW], float(n[USED]), 0.0)
        many = quiet_steps(m)
        if many > 1:
            _decode_many(m, many)
        else:
            _one_step(m)
        n[EVENTS] += 1


@jit
def _one_step(m: Sim) -> None:
    """A step as the server makes it: room, waiting ones, computing, what comes of it."""
    n = m.n
    n[NWORK] = n[PREEMPTED_NOW] = 0
    decodes = True
    if m.n[C_SGLANG]:
        _prompts_only(m)
        decodes = n[NWORK] == 0
        if decodes and n[NDEC] > 0:
            room_for_decoders(m)
    else:
        room_for_decoders(m)
        budget = m.n[C_BUDGET] - n[NDEC]
        if n[PREFILL] >= 0 and budget > 0:
            budget = go_on_with_prompt(m, budget)
        if n[PREEMPTED_NOW] == 0:
            let_in(m, budget)
    decoders = n[NDEC] if decodes else 0
    if decoders == 0 and n[NWORK] == 0:
        return
    n[STEPS] += 1
    stored = n[CTX] + n[NDEC] * n[DEC]
    _weigh_work(m)
    contexts = n[CTX_WORK] + (stored + decoders if decoders else 0)
    dt = step_seconds(m, decoders + n[TOK_WORK], contexts, n[PAIRS])
    m.f[INT_D] += n[DEC] * dt
    spend(m, dt, float(n[USED]), float(stored + n[CTX_WORK]))
    if decoders:
        _decoded(m, 1)
    for at in range(n[NWORK]):
        _computed(m, m.lists[L_WORK_SLOT, at], m.lists[L_WORK_COUNT, at], dt)


@jit
def _prompts_only(m: Sim) -> None:
    """SGLang computes prompts in steps of their own, before any decoding."""
    n = m.n
    budget = m.n[C_BUDGET]
    if n[PREFILL] >= 0:
        budget = go_on_with_prompt(m, budget)
    if n[PREEMPTED_NOW] == 0:
        let_in(m, budget)


@jit
def _weigh_work(m: Sim) -> None:
    """Tokens, contexts and query-key pairs of the prompts in this step; a single token is like decoding."""
    tokens, contexts, pairs = 0, 0, 0
    for at in range(m.n[NWORK]):
        before, count = m.s[COMPUTED, m.lists[L_WORK_SLOT, at]], m.lists[L_WORK_COUNT, at]
        tokens += count
        contexts += before + count
        if count > 1:
            pairs += count * before + count * (count + 1) // 2
    m.n[TOK_WORK], m.n[CTX_WORK], m.n[PAIRS] = tokens, contexts, pairs


@jit
def _computed(m: Sim, slot: int, count: int, dt: float) -> None:
    """A prompt's part is computed; with the last part comes a token."""
    n, s = m.n, m.s
    if s[RESERVED, slot] == 0:
        m.sf[HELD, slot] += (s[COMPUTED, slot] + count) * dt
    s[COMPUTED, slot] += count
    full = s[COMPUTED, slot] // m.n[C_BLOCK]
    if m.n[C_CACHING] and full > s[TABLE, slot]:
        commit(m, slot, full)
    n[BLOCKED] = 0
    if s[COMPUTED, slot] < s[IN, slot] + s[GEN, slot]:
        return
    n[PREFILL] = -1 if n[PREFILL] == slot else n[PREFILL]
    s[GEN, slot] += 1
    n[GENERATED] += 1
    if s[GEN, slot] == 1:
        m.out[s[ROW, slot], O_TTFT] = m.f[NOW] - m.sf[ARRIVED, slot]
    if s[GEN, slot] >= s[OUT, slot]:
        _finish(m, slot)
        return
    join_decoders(m, slot)
    push_end(m, n[DEC] + s[OUT, slot] - s[GEN, slot], s[MARK, slot], slot)


@jit
def _decoded(m: Sim, steps: int) -> None:
    """All decoders are so many tokens on; those that have their last one leave, oldest first."""
    n = m.n
    n[DEC] += steps
    n[GENERATED] += steps * n[NDEC]
    m.f[RATIO] = max(m.f[RATIO] - steps * (RATIO_FIRST - RATIO_LEAST) / RATIO_STEPS, RATIO_LEAST)
    while n[HEAP] > 0 and m.lists[L_HEAP_AT, 0] <= n[DEC]:
        mark, slot = m.lists[L_HEAP_MARK, 0], m.lists[L_HEAP_SLOT, 0]
        pop_end(m)
        if is_live(m, mark, slot):
            leave_decoders(m, slot)
            _finish(m, slot)


@jit
def _finish(m: Sim, slot: int) -> None:
    n, s = m.n, m.s
    drop_memory(m, slot, 2)
    remove_running(m, slot)
    row = s[ROW, slot]
    m.out[row, O_STATUS] = OK
    m.out[row, O_E2E] = m.f[NOW] - m.sf[ARRIVED, slot]
    m.out[row, O_HELD] = m.sf[HELD, slot]
    n[FINISHED] += 1
    n[BLOCKED] = 0
    free_slot(m, slot)


@jit
def _decode_many(m: Sim, steps: int) -> None:
    """Decode steps in which nothing else happens, as one."""
    n = m.n
    seconds = run_seconds(m, steps)
    begun = blocks_begun(m, steps)
    used = n[USED]
    take(m, begun)
    n[TABLE_NOW] += begun
    n[STEPS] += steps
    stored = n[CTX] + n[NDEC] * (n[DEC] + (steps - 1) / 2)
    m.f[INT_D] += (n[DEC] + (steps - 1) / 2) * seconds
    spend(m, seconds, used + begun / 2, stored)
    _decoded(m, steps)
