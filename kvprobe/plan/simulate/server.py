"""A simulated server: chunks of rows in, results by row out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvprobe.plan.simulate import books as b
from kvprobe.plan.simulate.cost import StepCost
from kvprobe.plan.simulate.rows import Chunk
from kvprobe.plan.simulate.serve import RATIO_FIRST
from kvprobe.plan.simulate.settings import SimSettings
from kvprobe.plan.simulate.steps import advance

_ROOM = 1 << 16


@dataclass(slots=True)
class Places:
    """Of each row: when it came, its line, its session where it has one."""

    times_s: list[NDArray[np.float64]] = field(default_factory=list)
    in_tokens: list[NDArray[np.int64]] = field(default_factory=list)
    out_tokens: list[NDArray[np.int64]] = field(default_factory=list)
    lines: list[NDArray[np.int32]] = field(default_factory=list)
    session_of: list[NDArray[np.int32]] = field(default_factory=list)
    sessions: dict[str, int] = field(default_factory=dict)

    def add(self, chunk: Chunk) -> None:
        count = len(chunk)
        self.times_s.append(chunk.times_s)
        self.in_tokens.append(chunk.in_tokens.astype(np.int32))
        self.out_tokens.append(chunk.out_tokens.astype(np.int32))
        lines = chunk.lines if chunk.lines is not None else np.zeros(count)
        self.lines.append(lines.astype(np.int32))
        if chunk.sessions is not None:
            numbers = [
                -1 if name is None else self.sessions.setdefault(name, len(self.sessions))
                for name in chunk.sessions
            ]
            self.session_of.append(np.array(numbers, dtype=np.int32))


class Server:
    """Feed it chunks in order, then `finish`; `sim` and `places` hold what came of it.

    Memory: about 50 bytes a row, and what the pool and the active requests need.
    """

    def __init__(self, settings: SimSettings, cost: StepCost) -> None:
        self.settings = settings
        self.places = Places()
        self.rows = 0
        self.refused = 0
        self._block_tokens: int | None = None
        self.sim = _empty(settings, cost)

    def feed(self, chunk: Chunk, *, last: bool) -> None:
        """Serve as far as these rows say what comes; with `last`, to the end."""
        base, self.rows = self.rows, self.rows + len(chunk)
        self.places.add(chunk)
        self._make_room()
        if chunk.block_tokens is not None:
            self.sim.conf[b.C_TRACE_BLOCK] = chunk.block_tokens
        self._append(chunk, base)
        self.sim.n[b.LAST] = last
        advance(self.sim)

    def _make_room(self) -> None:
        have = self.sim.out.shape[0]
        if self.rows <= have:
            return
        size = max(self.rows, have + have // 2)
        out = np.zeros((size, b.NUM_OUT), dtype=np.int64)
        outf = np.full((size, b.NUM_OUT_FLOATS), np.nan, dtype=np.float32)
        out[:have], outf[:have] = self.sim.out, self.sim.outf
        out[have:, b.O_HIT] = -1
        self.sim = self.sim._replace(out=out, outf=outf)

    def _append(self, chunk: Chunk, base: int) -> None:
        """Rows that were not let in yet, then the new ones; keys of active requests come along."""
        sim, s = self.sim, self.sim.s
        keys, starts = chunk.keys(base)
        fits = chunk.in_tokens + chunk.out_tokens <= self.settings.longest_tokens
        numbers = np.arange(base, base + len(chunk))
        sim.out[numbers[~fits], b.O_STATUS] = b.REFUSED
        self.refused += int((~fits).sum())
        left = sim.rows[sim.n[b.NEXT] : sim.n[b.ROWS]]
        active = [slot for slot in range(sim.n[b.SLOT_TOP]) if s[b.STATE, slot] != b.S_FREE]
        kept = [(s[b.KEYS, slot], s[b.IDS, slot]) for slot in active]
        kept += [(row[b.R_KEYS], row[b.R_IDS]) for row in left]
        parts = [sim.keys[at : at + count + 1] for at, count in kept]
        moved = np.concatenate(([0], np.cumsum([len(part) for part in parts]))).astype(np.int64)
        for place, slot in enumerate(active):
            s[b.KEYS, slot] = moved[place]
        new = np.column_stack(
            (numbers, chunk.in_tokens, chunk.out_tokens, starts + moved[-1], np.diff(chunk.first))
        )
        left[:, b.R_KEYS] = moved[len(active) : len(active) + len(left)]
        times = sim.times[sim.n[b.NEXT] : sim.n[b.ROWS]]
        self.sim = sim._replace(
            rows=np.ascontiguousarray(np.concatenate((left, new[fits]))),
            times=np.concatenate((times, chunk.times_s[fits])),
            keys=np.concatenate([*parts, keys]),
        )
        self.sim.n[b.NEXT], self.sim.n[b.ROWS] = 0, len(self.sim.rows)


def _empty(settings: SimSettings, cost: StepCost) -> b.Sim:
    total = settings.total
    seats = settings.max_num_seqs + 2
    # A piece has at least a block, and no memory is touched before it is used.
    pieces = min(total, 1 << 28) + seats + 2 if settings.caches else seats + 2
    cells = 1 << max(4, (2 * pieces).bit_length())
    whole = np.empty
    n = np.zeros(b.NUM_COUNTERS, dtype=np.int64)
    n[b.FREE] = n[b.AVAIL] = total
    n[b.PIECE_TOP] = 1
    for name in (b.PIECE_FREE, b.HOLD_FREE, b.SLOT_FREE, b.RHEAD, b.RTAIL, b.PREFILL, b.HEAD):
        n[name] = -1
    f = np.zeros(b.NUM_FLOATS)
    f[b.BIN_WIDTH], f[b.RATIO] = 1e-3, RATIO_FIRST
    holds = pieces + seats
    ints = np.int64
    links = {name: whole(pieces, dtype=ints) for name in _PIECE_FIELDS}
    links["qprev"][0] = links["qnext"][0] = 0
    return b.Sim(
        n=n,
        f=f,
        conf=_conf(settings),
        cost=np.array([cost.fixed_s, cost.token_s, cost.kv_token_s, cost.pair_s, float(cost.roofline)]),
        **links,
        mkey=np.zeros(cells, dtype=ints),
        mval=whole(cells, dtype=ints),
        hpiece=whole(holds, dtype=ints),
        hlen=whole(holds, dtype=ints),
        hown=whole(holds, dtype=ints),
        hnext=whole(holds, dtype=ints),
        s=np.zeros((b.NUM_FIELDS, seats), dtype=ints),
        sf=np.zeros((b.NUM_SLOT_FLOATS, seats)),
        phase=np.zeros(settings.slot_size, dtype=ints),
        heap=np.zeros((3, 4 * seats + 16), dtype=ints),
        stack=np.zeros(seats, dtype=ints),
        work=np.zeros((2, seats), dtype=ints),
        rows=np.zeros((0, b.NUM_ROW), dtype=ints),
        times=np.zeros(0),
        keys=np.zeros(0, dtype=ints),
        out=np.zeros((0, b.NUM_OUT), dtype=ints),
        outf=np.zeros((0, b.NUM_OUT_FLOATS), dtype=np.float32),
        snap=np.zeros((b.MAX_SNAPS, b.N_FIRST + 3 * b.SNAP_HOLDERS), dtype=ints),
        snapf=np.zeros((b.MAX_SNAPS, 1 + b.SNAP_HOLDERS)),
        bins=np.zeros((b.MAX_BINS, b.NUM_BIN)),
    )


_PIECE_FIELDS = ("start", "count", "ref", "qprev", "qnext", "cont", "back", "same", "key")


def _conf(settings: SimSettings) -> NDArray[np.int64]:
    conf = np.zeros(b.NUM_CONF, dtype=np.int64)
    conf[b.C_TOTAL], conf[b.C_BLOCK] = settings.total, settings.slot_size
    conf[b.C_TRACE_BLOCK] = settings.slot_size
    conf[b.C_BUDGET], conf[b.C_SEQS] = settings.max_num_batched_tokens, settings.max_num_seqs
    conf[b.C_CACHING], conf[b.C_RESERVE] = settings.caches, settings.allocator == "paged-reserve"
    conf[b.C_REGION], conf[b.C_SWAP] = settings.region, settings.swap_blocks
    conf[b.C_TOUCH], conf[b.C_SGLANG] = settings.engine != "vllm", settings.engine == "sglang"
    conf[b.C_FULL] = settings.full_prompt
    conf[b.C_WATERMARK] = int(settings.watermark * settings.total)
    conf[b.C_MAX_TOKENS] = settings.max_tokens or 0
    return conf
