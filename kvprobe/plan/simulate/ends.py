"""When decoding requests end: a heap by decode step, then by age."""

from __future__ import annotations

from kvprobe.plan.simulate.books import (
    HEAP,
    L_HEAP_AT,
    L_HEAP_MARK,
    L_HEAP_SLOT,
    MARK,
    S_DECODE,
    STATE,
    Sim,
)
from kvprobe.plan.simulate.compiled import jit


@jit
def push_end(m: Sim, at: int, mark: int, slot: int) -> None:
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
        if is_live(m, mark, slot):
            _sift_up(m, at, mark, slot)


@jit
def pop_end(m: Sim) -> None:
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


@jit
def is_live(m: Sim, mark: int, slot: int) -> bool:
    """Whether an entry's request has decoded ever since."""
    return m.s[MARK, slot] == mark and m.s[STATE, slot] == S_DECODE


@jit
def _before(m: Sim, row: int, at: int, mark: int) -> bool:
    """Whether an entry of the heap comes before `at` and `mark`."""
    found = m.lists[L_HEAP_AT, row]
    return found < at or (found == at and m.lists[L_HEAP_MARK, row] < mark)


@jit
def drop_stale(m: Sim) -> None:
    """The heap's head is a request that still decodes."""
    while not is_live(m, m.lists[L_HEAP_MARK, 0], m.lists[L_HEAP_SLOT, 0]):
        pop_end(m)
