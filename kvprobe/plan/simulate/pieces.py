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
    mask = m.cells.shape[0] - 1
    at = (key >> 1) & mask
    while m.cells[at, I_KEY] != 0 and m.cells[at, I_KEY] != key:
        at = (at + 1) & mask
    return at


@jit
def _drop_cell(m: Sim, at: int) -> None:
    """Empty a cell and close the gap, so that later keys are still found."""
    mask = m.cells.shape[0] - 1
    hole, after = at, (at + 1) & mask
    while m.cells[after, I_KEY] != 0:
        home = (m.cells[after, I_KEY] >> 1) & mask
        if ((after - home) & mask) >= ((after - hole) & mask):
            m.cells[hole, I_KEY], m.cells[hole, I_FIRST] = m.cells[after, I_KEY], m.cells[after, I_FIRST]
            hole = after
        after = (after + 1) & mask
    m.cells[hole, I_KEY] = 0


@jit
def find(m: Sim, first: int, offset: int) -> int:
    """The oldest piece of a content's list that covers the block `offset`; -1 when none does."""
    piece = first
    while piece >= 0:
        if m.p[piece, P_START] <= offset < m.p[piece, P_START] + m.p[piece, P_COUNT]:
            return piece
        piece = m.p[piece, P_SAME]
    return -1


@jit
def new_piece(m: Sim, start: int, count: int) -> int:
    """A piece of its own, referenced once, in no list."""
    piece = m.n[PIECE_FREE]
    if piece >= 0:
        m.n[PIECE_FREE] = m.p[piece, P_SAME]
    else:
        piece = m.n[PIECE_TOP]
        m.n[PIECE_TOP] += 1
    m.p[piece, P_START], m.p[piece, P_COUNT], m.p[piece, P_REF] = start, count, 1
    m.p[piece, P_CONT] = m.p[piece, P_BACK] = m.p[piece, P_SAME] = -1
    m.p[piece, P_KEY] = 0
    return piece


@jit
def register(m: Sim, piece: int, key: int) -> None:
    """Make a piece the youngest of its content."""
    m.p[piece, P_KEY] = key
    at = place(m, key)
    if m.cells[at, I_KEY] == 0:
        m.cells[at, I_KEY], m.cells[at, I_FIRST] = key, piece
        return
    last = m.cells[at, I_FIRST]
    while m.p[last, P_SAME] >= 0:
        last = m.p[last, P_SAME]
    m.p[last, P_SAME] = piece


@jit
def _unregister(m: Sim, piece: int) -> None:
    at = place(m, m.p[piece, P_KEY])
    if m.cells[at, I_FIRST] == piece:
        if m.p[piece, P_SAME] < 0:
            _drop_cell(m, at)
        else:
            m.cells[at, I_FIRST] = m.p[piece, P_SAME]
        return
    before = m.cells[at, I_FIRST]
    while m.p[before, P_SAME] != piece:
        before = m.p[before, P_SAME]
    m.p[before, P_SAME] = m.p[piece, P_SAME]


@jit
def _link(m: Sim, before: int, piece: int) -> None:
    """Into the queue behind `before`."""
    after = m.p[before, P_AFTER]
    m.p[before, P_AFTER] = m.p[after, P_BEFORE] = piece
    m.p[piece, P_BEFORE], m.p[piece, P_AFTER] = before, after


@jit
def _unlink(m: Sim, piece: int) -> None:
    before, after = m.p[piece, P_BEFORE], m.p[piece, P_AFTER]
    m.p[before, P_AFTER], m.p[after, P_BEFORE] = after, before


@jit
def _part_from_next(m: Sim, piece: int) -> None:
    if m.p[piece, P_CONT] >= 0:
        m.p[m.p[piece, P_CONT], P_BACK] = -1
        m.p[piece, P_CONT] = -1


@jit
def split(m: Sim, piece: int, offset: int) -> int:
    """Cut a piece before the block `offset`; returns the latter part, which is evicted first."""
    rest = new_piece(m, offset, m.p[piece, P_START] + m.p[piece, P_COUNT] - offset)
    m.p[piece, P_COUNT] = offset - m.p[piece, P_START]
    m.p[rest, P_REF], m.p[rest, P_KEY] = m.p[piece, P_REF], m.p[piece, P_KEY]
    if m.p[piece, P_KEY] != 0:
        m.p[rest, P_SAME] = m.p[piece, P_SAME]
        m.p[piece, P_SAME] = rest
    m.p[rest, P_CONT] = m.p[piece, P_CONT]
    if m.p[rest, P_CONT] >= 0:
        m.p[m.p[rest, P_CONT], P_BACK] = rest
    m.p[piece, P_CONT], m.p[rest, P_BACK] = rest, piece
    if m.p[piece, P_REF] == 0:
        _link(m, m.p[piece, P_BEFORE], rest)
    return rest


@jit
def reference(m: Sim, piece: int) -> None:
    """One holder more."""
    if m.p[piece, P_REF] == 0:
        _unlink(m, piece)
        m.n[AVAIL] -= m.p[piece, P_COUNT]
        m.n[CACHED] -= m.p[piece, P_COUNT]
        m.n[USED] += m.p[piece, P_COUNT]
    m.p[piece, P_REF] += 1


@jit
def unreference(m: Sim, piece: int) -> None:
    """One holder less; nobody's piece goes to the end of the queue."""
    m.p[piece, P_REF] -= 1
    if m.p[piece, P_REF] == 0:
        _link(m, m.p[0, P_BEFORE], piece)
        m.n[AVAIL] += m.p[piece, P_COUNT]
        m.n[CACHED] += m.p[piece, P_COUNT]
        m.n[USED] -= m.p[piece, P_COUNT]


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
        piece = m.p[0, P_AFTER]
        gone = min(left, m.p[piece, P_COUNT])
        left -= gone
        n[CACHED] -= gone
        n[EVICTED] += gone
        m.p[piece, P_COUNT] -= gone
        _part_from_next(m, piece)
        if m.p[piece, P_COUNT] == 0:
            _die(m, piece)


@jit
def _die(m: Sim, piece: int) -> None:
    _unlink(m, piece)
    if m.p[piece, P_KEY] != 0:
        _unregister(m, piece)
    if m.p[piece, P_BACK] >= 0:
        m.p[m.p[piece, P_BACK], P_CONT] = -1
    m.p[piece, P_SAME] = m.n[PIECE_FREE]
    m.n[PIECE_FREE] = piece


@jit
def give_plain(m: Sim, blocks: int) -> None:
    """Blocks that hold nothing worth keeping come back: they are the first to be handed out."""
    m.n[FREE] += blocks
    m.n[AVAIL] += blocks
    m.n[USED] -= blocks
