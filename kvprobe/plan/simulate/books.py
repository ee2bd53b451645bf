"""What the kernel keeps, as flat arrays: pieces of cached prefixes, tables of requests, counters.

A *piece* is a run of pool blocks that share one fate: consecutive blocks of one trace block's content
(or of one request's own tokens), with one reference count and one place in the queue of blocks to evict.
Holding a part of a piece cuts it in two, so that no block needs a record of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# Counters in `Sim.n`.
(
    FREE, AVAIL, USED, CACHED, EVICTED, PIECE_TOP, PIECE_FREE, HOLD_TOP, HOLD_FREE,
    RUN, NDEC, DEC, CTX, PREFILL, HEAD, RHEAD, RTAIL, STACK, STAMP, HEAP, BLOCKED, PREEMPTED_NOW,
    NWORK, NEXT, ROWS, LAST, SLOT_TOP, SLOT_FREE, PREEMPTIONS, STEPS, EVENTS, FAILED, RECOMPUTED,
    SWAPPED, SWAP_OUT, SWAP_IN, QUERIED, HIT, PEAK_USED, PEAK_RUN, SNAPS, SNAP_SEEN, BINS, REFUSALS,
    CTX_WORK, PAIRS, TOK_WORK, FINISHED, GENERATED, REMAINING, RETRACTIONS, PEAK_TABLE, TABLE_NOW,
    NUM_COUNTERS,
) = range(54)  # fmt: skip

# Floats in `Sim.f`.
(
    NOW, INT_D, BUSY, S_RUN, S_USED, S_STORED, S_CACHED, SNAP_GAP, SNAP_LAST, BIN_WIDTH, RATIO, S_TABLE,
    NUM_FLOATS,
) = range(13)  # fmt: skip

# Configuration in `Sim.conf`.
(
    C_TOTAL, C_BLOCK, C_TRACE_BLOCK, C_BUDGET, C_SEQS, C_CACHING, C_RESERVE, C_REGION, C_SWAP, C_TOUCH,
    C_FULL, C_WATERMARK, C_SGLANG, C_MAX_TOKENS, NUM_CONF,
) = range(15)  # fmt: skip

# Cost of a step in `Sim.cost`, seconds.
(K_FIXED, K_TOKEN, K_KV, K_PAIR, K_ROOFLINE, NUM_COST) = range(6)

# Fields of a slot (a request that is active, or the next one to be) in `Sim.s`.
(
    ROW, IN, OUT, GEN, COMPUTED, D0, MARK, KEYS, IDS, PREV, NEXTSLOT, STATE, HOLDS, TABLE, LOOSE, RESERVED,
    STUCK, PARKED, PARKED_BLOCKS, LOST, NUM_FIELDS,
) = range(21)  # fmt: skip
(ARRIVED, SINCE, INT_D0, HELD, NUM_SLOT_FLOATS) = range(5)

S_FREE, S_WAITING, S_PREFILL, S_DECODE = range(4)

# Columns of a row in `Sim.rows`, and of its results.
(R_INDEX, R_IN, R_OUT, R_KEYS, R_IDS, NUM_ROW) = range(6)
(O_STATUS, O_HIT, O_PREEMPTED, NUM_OUT) = range(4)
(F_QUEUE, F_TTFT, F_E2E, F_HELD, NUM_OUT_FLOATS) = range(5)
PENDING, OK, REFUSED, FAILED_ROW = range(4)

SNAP_HOLDERS = 8
MAX_SNAPS = 128
(N_KIND, N_AVAIL, N_WANTED, N_RUNNING, N_FOR, N_FIRST) = range(6)
"""A snapshot's numbers; then for each holder row, tokens, blocks."""
PREEMPTION, ADMISSION = 1, 2
MAX_BINS = 512
(B_TIME, B_RUN, B_USED, B_STORED, B_MAX_RUN, B_MAX_USED, B_PREEMPTED, NUM_BIN) = range(8)


class Sim(NamedTuple):
    """All state of one simulated server. Arrays that are indexed by piece have 0 as the queue's ends."""

    n: Ints
    f: Floats
    conf: Ints
    cost: Floats
    start: Ints
    count: Ints
    ref: Ints
    qprev: Ints
    qnext: Ints
    cont: Ints
    back: Ints
    same: Ints
    key: Ints
    mkey: Ints
    mval: Ints
    hpiece: Ints
    hlen: Ints
    hown: Ints
    hnext: Ints
    s: Ints
    sf: Floats
    phase: Ints
    heap: Ints
    stack: Ints
    work: Ints
    rows: Ints
    times: Floats
    keys: Ints
    out: Ints
    outf: NDArray[np.float32]
    snap: Ints
    snapf: Floats
    bins: Floats
