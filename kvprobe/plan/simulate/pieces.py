"""Pieces: found by the key of their content, queued for eviction, cut, evicted from their end."""

from __future__ import annotations

from kvprobe.plan.simulate.books import (
    AVAIL,
    CACHED,
    EVICTED,
    FREE,
    PIECE_FREE,
    PIECE_TOP,
    USED,
    Sim,
)
from kvprobe.plan.simulate.compiled import jit


@jit
def place(m: Sim, key: int) -> int:
    """The cell of the index that holds `key`, or the empty one where it would go."""
    mask = len(m.mkey) - 1
    at = (key >> 1) & mask
    while m.mkey[at] != 0 and m.mkey[at] != key:
        at = (at + 1) & mask
    return at


@jit
def _drop_cell(m: Sim, at: int) -> None:
    """Empty a cell and close the gap, so that later keys are still found."""
    mask = len(m.mkey) - 1
    hole, after = at, (at + 1) & mask
    while m.mkey[after] != 0:
        home = (m.mkey[after] >> 1) & mask
        if ((after - home) & mask) >= ((after - hole) & mask):
            m.mkey[hole], m.mval[hole] = m.mkey[after], m.mval[after]
            hole = after
        after = (after + 1) & mask
    m.mkey[hole] = 0


@jit
def find(m: Sim, first: int, offset: int) -> int:
    """The oldest piece of a content's list that covers the block `offset`; -1 when none does."""
    piece = first
    while piece >= 0:
        if m.start[piece] <= offset < m.start[piece] + m.count[piece]:
            return piece
        piece = m.same[piece]
    return -1


@jit
def new_piece(m: Sim, start: int, count: int) -> int:
    """A piece of its own, referenced once, in no list."""
    piece = m.n[PIECE_FREE]
    if piece >= 0:
        m.n[PIECE_FREE] = m.same[piece]
    else:
        piece = m.n[PIECE_TOP]
        m.n[PIECE_TOP] += 1
    m.start[piece], m.count[piece], m.ref[piece] = start, count, 1
    m.cont[piece] = m.back[piece] = m.same[piece] = -1
    m.key[piece] = 0
    return piece


@jit
def register(m: Sim, piece: int, key: int) -> None:
    """Make a piece the youngest of its content."""
    m.key[piece] = key
    at = place(m, key)
    if m.mkey[at] == 0:
        m.mkey[at], m.mval[at] = key, piece
        return
    last = m.mval[at]
    while m.same[last] >= 0:
        last = m.same[last]
    m.same[last] = piece


@jit
def _unregister(m: Sim, piece: int) -> None:
    at = place(m, m.key[piece])
    if m.mval[at] == piece:
        if m.same[piece] < 0:
            _drop_cell(m, at)
        else:
            m.mval[at] = m.same[piece]
        return
    before = m.mval[at]
    while m.same[before] != piece:
        before = m.same[before]
    m.same[before] = m.same[piece]


@jit
def _link(m: Sim, before: int, piece: int) -> None:
    """Into the queue behind `before`."""
    after = m.qnext[before]
    m.qnext[before] = m.qprev[after] = piece
    m.qprev[piece], m.qnext[piece] = before, after


@jit
def _unlink(m: Sim, piece: int) -> None:
    before, after = m.qprev[piece], m.qnext[piece]
    m.qnext[before], m.qprev[after] = after, before


@jit
def _part_from_next(m: Sim, piece: int) -> None:
    if m.cont[piece] >= 0:
        m.back[m.cont[piece]] = -1
        m.cont[piece] = -1


@jit
def split(m: Sim, piece: int, offset: int) -> int:
    """Cut a piece before the block `offset`; returns the latter part, which is evicted first."""
    rest = new_piece(m, offset, m.start[piece] + m.count[piece] - offset)
    m.count[piece] = offset - m.start[piece]
    m.ref[rest], m.key[rest] = m.ref[piece], m.key[piece]
    if m.key[piece] != 0:
        m.same[rest] = m.same[piece]
        m.same[piece] = rest
    m.cont[rest] = m.cont[piece]
    if m.cont[rest] >= 0:
        m.back[m.cont[rest]] = rest
    m.cont[piece], m.back[rest] = rest, piece
    if m.ref[piece] == 0:
        _link(m, m.qprev[piece], rest)
    return rest


@jit
def reference(m: Sim, piece: int) -> None:
    """One holder more."""
    if m.ref[piece] == 0:
        _unlink(m, piece)
        m.n[AVAIL] -= m.count[piece]
        m.n[CACHED] -= m.count[piece]
        m.n[USED] += m.count[piece]
    m.ref[piece] += 1


@jit
def unreference(m: Sim, piece: int) -> None:
    """One holder less; nobody's piece goes to the end of the queue."""
    m.ref[piece] -= 1
    if m.ref[piece] == 0:
        _link(m, m.qprev[0], piece)
        m.n[AVAIL] += m.count[piece]
        m.n[CACHED] += m.count[piece]
        m.n[USED] -= m.count[piece]


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
        piece = m.qnext[0]
        gone = min(left, m.count[piece])
        left -= gone
        n[CACHED] -= gone
        n[EVICTED] += gone
        m.count[piece] -= gone
        _part_from_next(m, piece)
        if m.count[piece] == 0:
            _die(m, piece)


@jit
def _die(m: Sim, piece: int) -> None:
    _unlink(m, piece)
    if m.key[piece] != 0:
        _unregister(m, piece)
    if m.back[piece] >= 0:
        m.cont[m.back[piece]] = -1
    m.same[piece] = m.n[PIECE_FREE]
    m.n[PIECE_FREE] = piece


@jit
def give_plain(m: Sim, blocks: int) -> None:
    """Blocks that hold nothing worth keeping come back: they are the first to be handed out."""
    m.n[FREE] += blocks
    m.n[AVAIL] += blocks
    m.n[USED] -= blocks
