"""Tables of requests: which pieces they hold, what they find in the cache, what they leave in it.

Blocks of a prompt are named by the trace's hash ids: block j belongs to the trace block in which its last
token lies, and equal ids up to there mean equal content (a key covers all ids before it). What the ids do
not cover, and every generated token, is the request's own.
"""

from __future__ import annotations

from kvprobe.plan.simulate.books import (
    C_BLOCK,
    C_TRACE_BLOCK,
    H_BLOCKS,
    H_NEXT,
    H_OWN,
    H_PIECE,
    HOLD_FREE,
    HOLD_TOP,
    HOLDS,
    I_FIRST,
    I_KEY,
    IDS,
    IN,
    KEYS,
    LOOSE,
    P_BACK,
    P_CONT,
    P_COUNT,
    P_KEY,
    P_REF,
    P_START,
    TABLE,
    Sim,
)
from kvprobe.plan.simulate.compiled import jit
from kvprobe.plan.simulate.pieces import (
    find,
    give_plain,
    new_piece,
    place,
    reference,
    register,
    split,
    unreference,
)

ENDLESS = 1 << 60


@jit
def covered_tokens(m: Sim, slot: int) -> int:
    """Prompt tokens that the hash ids name."""
    return min(m.s[IN, slot], m.s[IDS, slot] * m.n[C_TRACE_BLOCK])


@jit
def run_bounds(m: Sim, slot: int, run: int) -> tuple[int, int]:
    """First and last + 1 pool block of a trace block; the run after the last id is the request's own."""
    covered, block = covered_tokens(m, slot), m.n[C_BLOCK]
    low = min(run * m.n[C_TRACE_BLOCK], covered) // block
    if run >= m.s[IDS, slot]:
        return low, ENDLESS
    return low, min((run + 1) * m.n[C_TRACE_BLOCK], covered) // block


@jit
def run_of(m: Sim, slot: int, block: int) -> int:
    """The trace block in which a pool block's last token lies."""
    size = m.n[C_BLOCK]
    if block >= covered_tokens(m, slot) // size:
        return m.s[IDS, slot]
    return ((block + 1) * size - 1) // m.n[C_TRACE_BLOCK]


@jit
def probe(m: Sim, slot: int, most: int) -> tuple[int, int]:
    """How many of the first `most` blocks are cached without a gap, and how many of them nobody holds."""
    at, unheld = 0, 0
    run = 0
    while at < most:
        low, high = run_bounds(m, slot, run)
        high = min(high, most)
        if low < high:
            cell = place(m, m.keys[m.s[KEYS, slot] + run])
            if m.cells[cell, I_KEY] == 0:
                break
            while at < high:
                piece = find(m, m.cells[cell, I_FIRST], at - low)
                if piece < 0:
                    return at, unheld
                upto = min(low + m.p[piece, P_START] + m.p[piece, P_COUNT], high)
                if m.p[piece, P_REF] == 0:
                    unheld += upto - at
                at = upto
        run += 1
    return at, unheld


@jit
def hold_prefix(m: Sim, slot: int, blocks: int) -> None:
    """Hold the first `blocks` blocks, which `probe` has found."""
    at, run = 0, 0
    while at < blocks:
        low, high = run_bounds(m, slot, run)
        high = min(high, blocks)
        while at < high:
            piece = find(m, m.cells[place(m, m.keys[m.s[KEYS, slot] + run]), I_FIRST], at - low)
            if at - low > m.p[piece, P_START]:
                piece = split(m, piece, at - low)
            upto = min(low + m.p[piece, P_START] + m.p[piece, P_COUNT], high)
            if upto - low < m.p[piece, P_START] + m.p[piece, P_COUNT]:
                split(m, piece, upto - low)
            reference(m, piece)
            _push(m, slot, piece, upto - at, 0)
            at = upto
        run += 1
    m.s[TABLE, slot] = blocks


@jit
def _push(m: Sim, slot: int, piece: int, blocks: int, own: int) -> None:
    hold = m.n[HOLD_FREE]
    if hold >= 0:
        m.n[HOLD_FREE] = m.h[hold, H_NEXT]
    else:
        hold = m.n[HOLD_TOP]
        m.n[HOLD_TOP] += 1
    m.h[hold, H_PIECE], m.h[hold, H_BLOCKS], m.h[hold, H_OWN] = piece, blocks, own
    m.h[hold, H_NEXT] = m.s[HOLDS, slot]
    m.s[HOLDS, slot] = hold


@jit
def commit(m: Sim, slot: int, upto: int) -> None:
    """Blocks up to `upto` are computed: others can find them now."""
    at = m.s[TABLE, slot]
    run = run_of(m, slot, at)
    m.s[LOOSE, slot] -= upto - at
    m.s[TABLE, slot] = upto
    while at < upto:
        low, high = run_bounds(m, slot, run)
        high = min(high, upto)
        if at < high:
            _grow(m, slot, m.keys[m.s[KEYS, slot] + run], at - low, high - at)
            at = high
        run += 1


@jit
def _grow(m: Sim, slot: int, key: int, offset: int, blocks: int) -> None:
    """Blocks behind what the request holds of this content: its own piece grows, or a new one begins."""
    hold = m.s[HOLDS, slot]
    if hold >= 0 and m.h[hold, H_OWN] == 1 and m.p[m.h[hold, H_PIECE], P_KEY] == key:
        last = _last(m, hold)
        if m.p[last, P_START] + m.p[last, P_COUNT] == offset and m.p[last, P_CONT] < 0:
            m.h[hold, H_BLOCKS] += blocks
            if m.p[last, P_REF] == 1:
                m.p[last, P_COUNT] += blocks
                return
            piece = new_piece(m, offset, blocks)
            register(m, piece, key)
            m.p[last, P_CONT], m.p[piece, P_BACK] = piece, last
            return
    piece = new_piece(m, offset, blocks)
    register(m, piece, key)
    _push(m, slot, piece, blocks, 1)


@jit
def _last(m: Sim, hold: int) -> int:
    """The last of the pieces into which what was held has been cut since."""
    piece = m.h[hold, H_PIECE]
    left = m.h[hold, H_BLOCKS] - m.p[piece, P_COUNT]
    while left > 0:
        piece = m.p[piece, P_CONT]
        left -= m.p[piece, P_COUNT]
    return piece


@jit
def let_go(m: Sim, slot: int, computed: int, held: int, keep: int) -> None:
    """Take all blocks of a request back, its end first.

    `computed` tokens in `held` blocks; with `keep` 1, what it computed and has not shown yet (its generated
    tokens) can be found again by itself; with 2 it is finished and that lies there until evicted; with 0
    nothing is cached.
    """
    full = computed // m.n[C_BLOCK]
    m.s[LOOSE, slot] = held - m.s[TABLE, slot]
    own = full - m.s[TABLE, slot]
    if keep == 1 and own > 0:
        commit(m, slot, full)
    elif keep == 2 and own > 0:
        m.s[LOOSE, slot] -= own
        m.s[TABLE, slot] = full
    give_plain(m, m.s[LOOSE, slot])
    if keep == 2 and own > 0:
        unreference(m, new_piece(m, 0, own))
    _release_holds(m, slot)
    m.s[TABLE, slot] = m.s[LOOSE, slot] = 0


@jit
def _release_holds(m: Sim, slot: int) -> None:
    hold = m.s[HOLDS, slot]
    while hold >= 0:
        piece = _last(m, hold)
        while piece != m.h[hold, H_PIECE]:
            before = m.p[piece, P_BACK]
            unreference(m, piece)
            piece = before
        unreference(m, piece)
        after = m.h[hold, H_NEXT]
        m.h[hold, H_NEXT] = m.n[HOLD_FREE]
        m.n[HOLD_FREE] = hold
        hold = after
    m.s[HOLDS, slot] = -1


@jit
def touch(m: Sim, slot: int, blocks: int) -> None:
    """Hold and let go, as a server does that looks for room and finds none: the prefix counts as used."""
    hold_prefix(m, slot, blocks)
    _release_holds(m, slot)
    m.s[TABLE, slot] = 0
