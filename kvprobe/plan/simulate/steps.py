"""The clock: one step at a time where something happens, many at once where requests only decode."""

from __future__ import annotations

import math

from kvprobe.plan.simulate.books import (
    ARRIVED,
    AVAIL,
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
    K_FIXED,
    K_KV,
    K_PAIR,
    K_ROOFLINE,
    K_TOKEN,
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
    S_DECODE,
    STACK,
    STATE,
    STEPS,
    TABLE,
    TABLE_NOW,
    TOK_WORK,
    USED,
    Sim,
)
from kvprobe.plan.simulate.compiled import jit
from kvprobe.plan.simulate.pieces import take
from kvprobe.plan.simulate.record import spend
from kvprobe.plan.simulate.serve import (
    RATIO_FIRST,
    RATIO_LEAST,
    RATIO_STEPS,
    drop_memory,
    free_slot,
    go_on_with_prompt,
    head_of_queue,
    join_decoders,
    leave_decoders,
    let_in,
    remove_running,
    room_for_decoders,
)
from kvprobe.plan.simulate.tables import commit

MANY = 1 << 60


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
        many = _quiet_steps(m)
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
def step_seconds(m: Sim, tokens: int, contexts: int, pairs: int) -> float:
    """Time of a step: fixed (weights are read) and by token (arithmetic), and by KV token read.

    On a roofline the greater of the first two counts, else their sum (a fit).
    """
    by_token = m.f[K_TOKEN] * tokens + m.f[K_PAIR] * pairs
    base = max(m.f[K_FIXED], by_token) if m.f[K_ROOFLINE] else m.f[K_FIXED] + by_token
    return base + m.f[K_KV] * contexts


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
    _push(m, n[DEC] + s[OUT, slot] - s[GEN, slot], s[MARK, slot], slot)


@jit
def _decoded(m: Sim, steps: int) -> None:
    """All decoders are so many tokens on; those that have their last one leave, oldest first."""
    n = m.n
    n[DEC] += steps
    n[GENERATED] += steps * n[NDEC]
    m.f[RATIO] = max(m.f[RATIO] - steps * (RATIO_FIRST - RATIO_LEAST) / RATIO_STEPS, RATIO_LEAST)
    while n[HEAP] > 0 and m.lists[L_HEAP_AT, 0] <= n[DEC]:
        mark, slot = m.lists[L_HEAP_MARK, 0], m.lists[L_HEAP_SLOT, 0]
        _pop(m)
        if _is_live(m, mark, slot):
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
def _quiet_steps(m: Sim) -> int:
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
    _drop_stale(m)
    many = m.lists[L_HEAP_AT, 0] - n[DEC]
    if not waits and n[NEXT] < n[ROWS] and seats:
        many = min(many, _steps_until(m, m.times[n[NEXT]]))
    return _steps_with_room(m, many)


@jit
def _drop_stale(m: Sim) -> None:
    """The heap's head is a request that still decodes."""
    while not _is_live(m, m.lists[L_HEAP_MARK, 0], m.lists[L_HEAP_SLOT, 0]):
        _pop(m)


@jit
def _is_live(m: Sim, mark: int, slot: int) -> bool:
    """Whether an entry's request has decoded ever since."""
    return m.s[MARK, slot] == mark and m.s[STATE, slot] == S_DECODE


@jit
def _before(m: Sim, row: int, at: int, mark: int) -> bool:
    """Whether an entry of the heap comes before `at` and `mark`."""
    found = m.lists[L_HEAP_AT, row]
    return found < at or (found == at and m.lists[L_HEAP_MARK, row] < mark)


@jit
def _run_seconds(m: Sim, steps: int) -> float:
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
    while steps > 1 and _run_seconds(m, steps - 1) >= left:
        steps -= 1
    while _run_seconds(m, steps) < left:
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


@jit
def _decode_many(m: Sim, steps: int) -> None:
    """Decode steps in which nothing else happens, as one."""
    n = m.n
    seconds = _run_seconds(m, steps)
    begun = blocks_begun(m, steps)
    used = n[USED]
    take(m, begun)
    n[TABLE_NOW] += begun
    n[STEPS] += steps
    stored = n[CTX] + n[NDEC] * (n[DEC] + (steps - 1) / 2)
    m.f[INT_D] += (n[DEC] + (steps - 1) / 2) * seconds
    spend(m, seconds, used + begun / 2, stored)
    _decoded(m, steps)


@jit
def _push(m: Sim, at: int, mark: int, slot: int) -> None:
    """Into the heap of ends: by decode step, then by age among running requests."""
    if m.n[HEAP] == m.lists.shape[1]:
        _sweep(m)
    _sift_up(m, at, mark, slot)


@jit
def _sift_up(m: Sim, at: int, mark: int, slot: int) -> None:
    place = m.n[HEAP]
    m.n[HEAP] += 1
    while place > 0:
        above = (place - 1) // 2
        if _before(m, above, at, mark):
            break
        for row in range(3):
            m.lists[row, place] = m.lists[row, above]
        place = above
    m.lists[L_HEAP_AT, place], m.lists[L_HEAP_MARK, place], m.lists[L_HEAP_SLOT, place] = at, mark, slot


@jit
def _sweep(m: Sim) -> None:
    """Drop the entries of requests that were preempted since; what is left is heaped anew."""
    found = m.n[HEAP]
    m.n[HEAP] = 0
    for row in range(found):
        at, mark, slot = m.lists[L_HEAP_AT, row], m.lists[L_HEAP_MARK, row], m.lists[L_HEAP_SLOT, row]
        if _is_live(m, mark, slot):
            _sift_up(m, at, mark, slot)


@jit
def _pop(m: Sim) -> None:
    n, lists = m.n, m.lists
    n[HEAP] -= 1
    last = n[HEAP]
    at, mark, slot = lists[L_HEAP_AT, last], lists[L_HEAP_MARK, last], lists[L_HEAP_SLOT, last]
    place = 0
    while 2 * place + 1 < last:
        below = 2 * place + 1
        right = below + 1
        if right < last and _before(m, right, lists[L_HEAP_AT, below], lists[L_HEAP_MARK, below]):
            below = right
        if not _before(m, below, at, mark):
            break
        for row in range(3):
            lists[row, place] = lists[row, below]
        place = below
    lists[L_HEAP_AT, place], lists[L_HEAP_MARK, place], lists[L_HEAP_SLOT, place] = at, mark, slot
