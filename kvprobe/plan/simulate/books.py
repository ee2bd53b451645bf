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

# Counters and configuration, `Sim.n`.
(
    FREE, AVAIL, USED, CACHED, EVICTED, PIECE_TOP, PIECE_FREE, HOLD_TOP, HOLD_FREE,
    RUN, NDEC, DEC, CTX, PREFILL, HEAD, RHEAD, RTAIL, STACK, STAMP, HEAP, BLOCKED, PREEMPTED_NOW,
    NWORK, NEXT, ROWS, LAST, SLOT_TOP, SLOT_FREE, PREEMPTIONS, STEPS, EVENTS, FAILED, RECOMPUTED,
    SWAPPED, SWAP_OUT, SWAP_IN, QUERIED, HIT, PEAK_USED, PEAK_RUN, SNAPS, SNAP_SEEN, BINS, REFUSALS,
    CTX_WORK, PAIRS, TOK_WORK, FINISHED, GENERATED, REMAINING, PEAK_TABLE, TABLE_NOW,
    C_TOTAL, C_BLOCK, C_TRACE_BLOCK, C_BUDGET, C_SEQS, C_CACHING, C_RESERVE, C_REGION, C_SWAP, C_TOUCH,
    C_FULL, C_WATERMARK, C_SGLANG, C_MAX_TOKENS, C_WEIGHT, C_EARLY, NUM_INTS,
) = range(69)  # fmt: skip

# Time, integrals over time, and the cost of a step in seconds, `Sim.f`.
(
    NOW, INT_D, BUSY, S_RUN, S_USED, S_STORED, S_CACHED, SNAP_GAP, SNAP_LAST, BIN_WIDTH, RATIO, S_TABLE,
    K_FIXED, K_TOKEN, K_KV, K_PAIR, K_ROOFLINE, NUM_FLOATS,
) = range(18)  # fmt: skip

# Columns of `Sim.p`, a row a piece; row 0 is both ends of the queue.
P_START, P_COUNT, P_REF, P_BEFORE, P_AFTER, P_CONT, P_BACK, P_SAME, P_KEY, NUM_PIECE = range(10)
# Columns of `Sim.cells`, open addressing: the key of a content, its oldest piece.
I_KEY, I_FIRST = range(2)
# Columns of `Sim.h`: what requests hold, a list for each.
H_PIECE, H_BLOCKS, H_OWN, H_NEXT, NUM_HOLD = range(5)
# Rows of `Sim.lists`: a heap of the decoders' ends, the preempted, the prompts of the step.
L_HEAP_AT, L_HEAP_MARK, L_HEAP_SLOT, L_STACK, L_WORK_SLOT, L_WORK_COUNT, NUM_LISTS = range(7)

# Rows of `Sim.s` and `Sim.sf`, a column a slot: a request that is active, or the next one to be.
(
    ROW, IN, OUT, GEN, COMPUTED, D0, MARK, KEYS, IDS, PREV, NEXTSLOT, STATE, HOLDS, TABLE, LOOSE, RESERVED,
    STUCK, PARKED, PARKED_BLOCKS, LOST, EXTRA, NUM_FIELDS,
) = range(22)  # fmt: skip
ARRIVED, SINCE, INT_D0, HELD, NUM_SLOT_FLOATS = range(5)

S_FREE, S_WAITING, S_PREFILL, S_DECODE = range(4)

# Columns of `Sim.rows`, the trace, and of `Sim.out`, what became of each row.
R_INDEX, R_IN, R_OUT, R_KEYS, R_IDS, R_EXTRA, NUM_ROW = range(7)
O_STATUS, O_HIT, O_PREEMPTED, O_QUEUE, O_TTFT, O_E2E, O_HELD, NUM_OUT = range(8)
PENDING, OK, REFUSED, FAILED_ROW = range(4)

SNAP_HOLDERS = 8
MAX_SNAPS = 128
N_AT, N_KIND, N_AVAIL, N_WANTED, N_RUNNING, N_FOR, N_FIRST = range(7)
"""Columns of a snapshot; then for each holder row (-1: none), tokens, blocks, age in seconds."""
PREEMPTION, ADMISSION = 1, 2
MAX_BINS = 512
B_TIME, B_RUN, B_USED, B_STORED, B_MAX_RUN, B_MAX_USED, B_PREEMPTED, NUM_BIN = range(8)


class Sim(NamedTuple):
    """All state of one simulated server, in few arrays: each is unpacked at each call while compiling."""

    n: Ints
    f: Floats
    p: Ints
    cells: Ints
    h: Ints
    lists: Ints
    s: Ints
    sf: Floats
    phase: Ints
    rows: Ints
    times: Floats
    keys: Ints
    out: NDArray[np.float32]
    snap: Floats
    bins: Floats
