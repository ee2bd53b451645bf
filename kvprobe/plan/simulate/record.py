"""What the kernel writes down: integrals over time, a bounded time line, who held the pool as it ran out."""

from __future__ import annotations

from kvprobe.plan.simulate.books import (
    ARRIVED,
    AVAIL,
    B_MAX_RUN,
    B_MAX_USED,
    B_PREEMPTED,
    B_RUN,
    B_STORED,
    B_TIME,
    B_USED,
    BIN_WIDTH,
    BINS,
    BUSY,
    C_BLOCK,
    C_WEIGHT,
    CACHED,
    COMPUTED,
    D0,
    DEC,
    EXTRA,
    MAX_BINS,
    MAX_SNAPS,
    N_AT,
    N_AVAIL,
    N_FIRST,
    N_FOR,
    N_KIND,
    N_RUNNING,
    N_WANTED,
    NEXTSLOT,
    NOW,
    NUM_BIN,
    PEAK_RUN,
    PEAK_TABLE,
    PEAK_USED,
    RESERVED,
    RHEAD,
    ROW,
    RUN,
    S_CACHED,
    S_DECODE,
    S_RUN,
    S_STORED,
    S_TABLE,
    S_USED,
    SNAP_GAP,
    SNAP_HOLDERS,
    SNAP_LAST,
    SNAP_SEEN,
    SNAPS,
    STATE,
    TABLE_NOW,
    USED,
    Sim,
)
from kvprobe.plan.simulate.compiled import jit


@jit
def computed_now(m: Sim, slot: int) -> int:
    """Tokens whose KV data a request holds; decoders move on with the count of decode steps."""
    if m.s[STATE, slot] == S_DECODE:
        return m.s[COMPUTED, slot] + m.n[DEC] - m.s[D0, slot]
    return m.s[COMPUTED, slot]


@jit
def blocks_of(m: Sim, slot: int, tokens: int) -> int:
    """Blocks that a request needs for its first `tokens` tokens.

    One for each begun block of tokens and group of layers that grows, and what its other groups take.
    """
    size = m.n[C_BLOCK]
    return (tokens + size - 1) // size * m.n[C_WEIGHT] + m.s[EXTRA, slot]


@jit
def held_blocks(m: Sim, slot: int) -> int:
    """Blocks in a request's table between two steps."""
    return max(blocks_of(m, slot, computed_now(m, slot)), m.s[RESERVED, slot])


@jit
def spend(m: Sim, seconds: float, used: float, stored: float) -> None:
    """Let time pass with `used` blocks and `stored` tokens held on average."""
    n, f = m.n, m.f
    f[BUSY] += seconds
    f[S_RUN] += seconds * n[RUN]
    f[S_USED] += seconds * used
    f[S_STORED] += seconds * stored
    f[S_CACHED] += seconds * n[CACHED]
    f[S_TABLE] += seconds * n[TABLE_NOW]
    if n[USED] > n[PEAK_USED]:
        n[PEAK_USED] = n[USED]
    n[PEAK_TABLE] = max(n[PEAK_TABLE], n[TABLE_NOW])
    n[PEAK_RUN] = max(n[PEAK_RUN], n[RUN])
    row = _bin(m, f[NOW] + seconds)
    m.bins[row, B_TIME] += seconds
    m.bins[row, B_RUN] += seconds * n[RUN]
    m.bins[row, B_USED] += seconds * used
    m.bins[row, B_STORED] += seconds * stored
    m.bins[row, B_MAX_RUN] = max(m.bins[row, B_MAX_RUN], n[RUN])
    m.bins[row, B_MAX_USED] = max(m.bins[row, B_MAX_USED], n[USED])
    f[NOW] += seconds


@jit
def note_preemption(m: Sim) -> None:
    """Into the time line."""
    m.bins[_bin(m, m.f[NOW]), B_PREEMPTED] += 1


@jit
def _bin(m: Sim, at: float) -> int:
    """The row of the time line for an instant; rows are joined in pairs when there are too many."""
    while at >= m.f[BIN_WIDTH] * MAX_BINS:
        for row in range(MAX_BINS // 2):
            _join_bins(m, row)
        for row in range(MAX_BINS // 2, MAX_BINS):
            for column in range(NUM_BIN):
                m.bins[row, column] = 0.0
        m.f[BIN_WIDTH] *= 2
        m.n[BINS] = (m.n[BINS] + 1) // 2
    row = int(at / m.f[BIN_WIDTH])
    m.n[BINS] = max(m.n[BINS], row + 1)
    return row


@jit
def _join_bins(m: Sim, row: int) -> None:
    for column in range(NUM_BIN):
        a, b = m.bins[2 * row, column], m.bins[2 * row + 1, column]
        greater = column in (B_MAX_RUN, B_MAX_USED)
        m.bins[row, column] = max(a, b) if greater else a + b


@jit
def snapshot(m: Sim, kind: int, wanted: int, wants: int) -> None:
    """The pool has just refused `wanted` blocks: who holds most? At most `MAX_SNAPS` moments are kept."""
    n, f = m.n, m.f
    n[SNAP_SEEN] += 1
    if n[SNAPS] and f[NOW] - f[SNAP_LAST] < f[SNAP_GAP]:
        return
    if n[SNAPS] == MAX_SNAPS:
        _thin_out(m)
        if f[NOW] - f[SNAP_LAST] < f[SNAP_GAP]:
            return
    at = n[SNAPS]
    n[SNAPS] += 1
    f[SNAP_LAST] = f[NOW]
    m.snap[at, N_KIND], m.snap[at, N_AVAIL] = kind, n[AVAIL]
    m.snap[at, N_WANTED], m.snap[at, N_RUNNING], m.snap[at, N_FOR] = wanted, n[RUN], wants
    m.snap[at, N_AT] = f[NOW]
    for place in range(SNAP_HOLDERS):
        m.snap[at, N_FIRST + 4 * place] = -1
    slot = n[RHEAD]
    while slot >= 0:
        _enter(m, at, slot)
        slot = m.s[NEXTSLOT, slot]


@jit
def _enter(m: Sim, at: int, slot: int) -> None:
    """A holder into a snapshot's list, which is sorted by blocks."""
    blocks = held_blocks(m, slot)
    place = SNAP_HOLDERS
    while place > 0:
        above = N_FIRST + 4 * (place - 1)
        if m.snap[at, above] >= 0 and m.snap[at, above + 2] >= blocks:
            break
        if place < SNAP_HOLDERS:
            for column in range(4):
                m.snap[at, above + 4 + column] = m.snap[at, above + column]
        place -= 1
    if place < SNAP_HOLDERS:
        here = N_FIRST + 4 * place
        m.snap[at, here], m.snap[at, here + 1] = m.s[ROW, slot], computed_now(m, slot)
        m.snap[at, here + 2] = blocks
        m.snap[at, here + 3] = m.f[NOW] - m.sf[ARRIVED, slot]


@jit
def _thin_out(m: Sim) -> None:
    """Drop every second snapshot, and ask for twice the time between them."""
    kept = MAX_SNAPS // 2
    for at in range(kept):
        for column in range(m.snap.shape[1]):
            m.snap[at, column] = m.snap[2 * at, column]
    m.n[SNAPS] = kept
    span = m.snap[kept - 1, N_AT] - m.snap[0, N_AT]
    m.f[SNAP_GAP] = max(2 * m.f[SNAP_GAP], span / kept, 1e-6)
    m.f[SNAP_LAST] = m.snap[kept - 1, N_AT]
