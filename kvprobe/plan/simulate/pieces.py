"""Pieces: found by the key of their content, queued for eviction, cut, evicted from their end."""

from __future__ import annotations

from kvprobe.plan.simulate.books import (
    AVAIL,
    CACHED,
    EVICTED,
    FREE,
    I_FIRST,
    I_KEY,
    P_AFTER,
    P_BACK,
    P_BEFORE,
    P_CONT,
    P_COUNT,
    P_KEY,
    P_REF,
    P_SAME,
    P_START,
    PIECE_FREE,
    PIECE_TOP,
    USED,
    Sim,
)
from kvprobe.plan.simulate.compiled import jit


@jit
def place(m: Sim, key: int) -> int:
    """The cell of the index that holds `key`, or the empty one where it would go."""
    mask = m.index.shape[1] - 1
    at = (key >> 1) & mask
    while m.index[I_KEY, at] != 0 and m.index[I_KEY, at] != key:
        at = (at + 1) & mask
    return at


@jit
def _drop_cell(m: Sim, at: int) -> None:
    """Empty a cell and close the gap, so that later keys are still found."""
    mask = m.index.shape[1] - 1
    hole, after = at, (at + 1) & mask
    while m.index[I_KEY, after] != 0:
        home = (m.index[I_KEY, after] >> 1) & mask
        if ((after - home) & mask) >= ((after - hole) & mask):
            m.index[I_KEY, hole], m.index[I_FIRST, hole] = m.index[I_KEY, after], m.index[I_FIRST, after]
            hole = after
        after = (after + 1) & mask
    m.index[I_KEY, hole] = 0


@jit
def find(m: Sim, first: int, offset: int) -> int:
    """The oldest piece of a content's list that covers the block `offset`; -1 when none does."""
    piece = first
    while piece >= 0:
        if m.p[P_START, piece] <= offset < m.p[P_START, piece] + m.p[P_COUNT, piece]:
            return piece
        piece = m.p[P_SAME, piece]
    return -1


@jit
def new_piece(m: Sim, start: int, count: int) -> int:
    """A piece of its own, referenced once, in no list."""
    piece = m.n[PIECE_FREE]
    if piece >= 0:
        m.n[PIECE_FREE] = m.p[P_SAME, piece]
    else:
        piece = m.n[PIECE_TOP]
        m.n[PIECE_TOP] += 1
    m.p[P_START, piece], m.p[P_COUNT, piece], m.p[P_REF, piece] = start, count, 1
    m.p[P_CONT, piece] = m.p[P_BACK, piece] = m.p[P_SAME, piece] = -1
    m.p[P_KEY, piece] = 0
    return piece


@jit
def register(m: Sim, piece: int, key: int) -> None:
    """Make a piece the youngest of its content."""
    m.p[P_KEY, piece] = key
    at = place(m, key)
    if m.index[I_KEY, at] == 0:
        m.index[I_KEY, at], m.index[I_FIRST, at] = key, piece
        return
    last = m.index[I_FIRST, at]
    while m.p[P_SAME, last] >= 0:
        last = m.p[P_SAME, last]
    m.p[P_SAME, last] = piece


@jit
def _unregister(m: Sim, piece: int) -> None:
    at = place(m, m.p[P_KEY, piece])
    if m.index[I_FIRST, at] == piece:
        if m.p[P_SAME, piece] < 0:
            _drop_cell(m, at)
        else:
            m.index[I_FIRST, at] = m.p[P_SAME, piece]
        return
    before = m.index[I_FIRST, at]
    while m.p[P_SAME, before] != piece:
        before = m.p[P_SAME, before]
    m.p[P_SAME, before] = m.p[P_SAME, piece]


@jit
def _link(m: Sim, before: int, piece: int) -> None:
    """Into the queue behind `before`."""
    after = m.p[P_AFTER, before]
    m.p[P_AFTER, before] = m.p[P_BEFORE, after] = piece
    m.p[P_BEFORE, piece], m.p[P_AFTER, piece] = before, after


@jit
def _unlink(m: Sim, piece: int) -> None:
    before, after = m.p[P_BEFORE, piece], m.p[P_AFTER, piece]
    m.p[P_AFTER, before], m.p[P_BEFORE, after] = after, before


@jit
def _part_from_next(m: Sim, piece: int) -> None:
    if m.p[P_CONT, piece] >= 0:
        m.p[P_BACK, m.p[P_CONT, piece]] = -1
        m.p[P_CONT, piece] = -1


@jit
def split(m: Sim, piece: int, offset: int) -> int:
    """Cut a piece before the block `offset`; returns the latter part, which is evicted first."""
    rest = new_piece(m, offset, m.p[P_START, piece] + m.p[P_COUNT, piece] - offset)
    m.p[P_COUNT, piece] = offset - m.p[P_START, piece]
    m.p[P_REF, rest], m.p[P_KEY, rest] = m.p[P_REF, piece], m.p[P_KEY, piece]
    if m.p[P_KEY, piece] != 0:
        m.p[P_SAME, rest] = m.p[P_SAME, piece]
        m.p[P_SAME, piece] = rest
    m.p[P_CONT, rest] = m.p[P_CONT, piece]
    if m.p[P_CONT, rest] >= 0:
        m.p[P_BACK, m.p[P_CONT, rest]] = rest
    m.p[P_CONT, piece], m.p[P_BACK, rest] = rest, piece
    if m.p[P_REF, piece] == 0:
        _link(m, m.p[P_BEFORE, piece], rest)
    return rest


@jit
def reference(m: Sim, piece: int) -> None:
    """One holder more."""
    if m.p[P_REF, piece] == 0:
        _unlink(m, piece)
        m.n[AVAIL] -= m.p[P_COUNT, piece]
        m.n[CACHED] -= m.p[P_COUNT, piece]
        m.n[USED] += m.p[P_COUNT, piece]
    m.p[P_REF, piece] += 1


@jit
def unreference(m: Sim, piece: int) -> None:
    """One holder less; nobody's piece goes to the end of the queue."""
    m.p[P_REF, piece] -= 1
    if m.p[P_REF, piece] == 0:
        _link(m, m.p[P_BEFORE, 0], piece)
        m.n[AVAIL] += m.p[P_COUNT, piece]
        m.n[CACHED] += m.p[P_COUNT, piece]
        m.n[USED] -= m.p[P_COUNT, piece]


@jit
def take(m: Sim, blocks: int) -> None:
    """Hand out blocks: free ones, then those at the head of the queue; the caller has looked at AVAIL."""
    n = m.n
    n[AVAIL] -= blocks
    n[USED] += blocks
    plain = min(blocks, n[FREE])
    n[FREE] -= plain
    left = blocks - plain
    while left > 0:
        piece = m.p[P_AFTER, 0]
        gone = min(left, m.p[P_COUNT, piece])
        left -= gone
        n[CACHED] -= gone
        n[EVICTED] += gone
        m.p[P_COUNT, piece] -= gone
        _part_from_next(m, piece)
        if m.p[P_COUNT, piece] == 0:
            _die(m, piece)


@jit
def _die(m: Sim, piece: int) -> None:
    _unlink(m, piece)
    if m.p[P_KEY, piece] != 0:
        _unregister(m, piece)
    if m.p[P_BACK, piece] >= 0:
        m.p[P_CONT, m.p[P_BACK, piece]] = -1
    m.p[P_SAME, piece] = m.n[PIECE_FREE]
    m.n[PIECE_FREE] = piece


@jit
def give_plain(m: Sim, blocks: int) -> None:
    """Blocks that hold nothing worth keeping come back: they are the first to be handed out."""
    m.n[FREE] += blocks
    m.n[AVAIL] += blocks
    m.n[USED] -= blocks
