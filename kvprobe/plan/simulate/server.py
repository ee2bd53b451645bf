"""A simulated server: chunks of rows in, results by row out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvprobe.plan.simulate import books as b
from kvprobe.plan.simulate.cost import StepCost
from kvprobe.plan.simulate.rows import Chunk
from kvprobe.plan.simulate.settings import SimSettings
from kvprobe.plan.simulate.steps import RATIO_FIRST, advance

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
        self.in_tokens.append(chunk.in_tokens)
        self.out_tokens.append(chunk.out_tokens)
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
        self.front_s = cost.front_s
        self.places = Places()
        self.rows = 0
        self.refused = 0
        self._block_tokens: int | None = None
        self.sim = _empty(settings, cost)

    @property
    def now_s(self) -> float:
        """The simulated second."""
        return float(self.sim.f[b.NOW])

    @property
    def steps(self) -> int:
        """Scheduler steps so far."""
        return int(self.sim.n[b.STEPS])

    @property
    def events(self) -> int:
        """Of these, times that the loop was gone through: quiet decode steps are taken together."""
        return int(self.sim.n[b.EVENTS])

    def feed(self, chunk: Chunk, *, last: bool) -> None:
        """Serve as far as these rows say what comes; with `last`, to the end."""
        base, self.rows = self.rows, self.rows + len(chunk)
        self.places.add(chunk)
        self._make_room()
        if chunk.block_tokens is not None:
            self.sim.n[b.C_TRACE_BLOCK] = chunk.block_tokens
        self._append(chunk, base)
        self._room_for_holds()
        self.sim.n[b.LAST] = last
        advance(self.sim)

    def _extra(self, chunk: Chunk) -> NDArray[np.int64]:
        """Blocks beside those that grow with the tokens: of windows and states, at full growth."""
        groups = self.settings.groups
        if groups is None:
            return np.zeros(len(chunk), dtype=np.int64)
        lengths, which = np.unique(chunk.in_tokens + chunk.out_tokens, return_inverse=True)
        return np.array([groups.extra(int(tokens)) for tokens in lengths], dtype=np.int64)[which]

    def _fits(self, chunk: Chunk) -> NDArray[np.bool_]:
        """Rows that the pool and the context limit can hold at all."""
        settings, tokens = self.settings, chunk.in_tokens + chunk.out_tokens
        if settings.groups is None:
            fits: NDArray[np.bool_] = tokens <= settings.longest_tokens
            return fits
        grown = -(-tokens // settings.block_size) * settings.weight + self._extra(chunk)
        within: NDArray[np.bool_] = (grown <= settings.total) & (
            tokens <= (settings.max_model_len or tokens.max())
        )
        return within

    def _make_room(self) -> None:
        have = self.sim.out.shape[0]
        if self.rows <= have:
            return
        size = max(self.rows, have + have // 2)
        out = np.full((size, b.NUM_OUT), np.nan, dtype=np.float32)
        out[:have] = self.sim.out
        out[have:, b.O_STATUS], out[have:, b.O_HIT], out[have:, b.O_PREEMPTED] = b.PENDING, -1, 0
        self.sim = self.sim._replace(out=out)

    def _room_for_holds(self) -> None:
        """A hold covers a block of its request at least, and requests may hold the same pieces.

        The memory is not touched before it is used.
        """
        sim, settings = self.sim, self.settings
        if not settings.caches or not len(sim.rows):
            return
        longest = int((sim.rows[:, b.R_IN] + sim.rows[:, b.R_OUT]).max())
        blocks = min(settings.total, -(-longest // settings.block_size))
        wanted = (settings.max_num_seqs + 2) * blocks + 2
        if wanted > len(sim.h):
            h = np.empty((wanted, b.NUM_HOLD), dtype=np.int64)
            used = sim.n[b.HOLD_TOP]
            h[:used] = sim.h[:used]
            self.sim = sim._replace(h=h)

    def _append(self, chunk: Chunk, base: int) -> None:
        """Rows that were not let in yet, then the new ones; keys of active requests come along."""
        sim, s = self.sim, self.sim.s
        keys, starts = chunk.keys(base)
        fits = self._fits(chunk)
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
            (
                numbers,
                chunk.in_tokens,
                chunk.out_tokens,
                starts + moved[-1],
                np.diff(chunk.first),
                self._extra(chunk),
            )
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
    seats = settings.max_num_seqs + 2
    # A piece has at least a block, and no memory is touched before it is used.
    pieces = settings.total + seats + 2 if settings.caches else seats + 2
    cells = 1 << max(4, (2 * pieces).bit_length())
    ints = np.int64
    p = np.empty((pieces, b.NUM_PIECE), dtype=ints)
    p[0, b.P_BEFORE] = p[0, b.P_AFTER] = 0
    return b.Sim(
        n=_counters(settings),
        f=_floats(cost),
        p=p,
        cells=np.zeros((cells, 2), dtype=ints),
        h=np.empty((0, b.NUM_HOLD), dtype=ints),
        lists=np.zeros((b.NUM_LISTS, 4 * seats + 16), dtype=ints),
        s=np.zeros((b.NUM_FIELDS, seats), dtype=ints),
        sf=np.zeros((b.NUM_SLOT_FLOATS, seats)),
        phase=np.zeros(settings.slot_size, dtype=ints),
        rows=np.zeros((0, b.NUM_ROW), dtype=ints),
        times=np.zeros(0),
        keys=np.zeros(0, dtype=ints),
        out=np.zeros((0, b.NUM_OUT), dtype=np.float32),
        snap=np.zeros((b.MAX_SNAPS, b.N_FIRST + 4 * b.SNAP_HOLDERS)),
        bins=np.zeros((b.MAX_BINS, b.NUM_BIN)),
    )


def _floats(cost: StepCost) -> NDArray[np.float64]:
    f = np.zeros(b.NUM_FLOATS)
    f[b.BIN_WIDTH], f[b.RATIO] = 1e-3, RATIO_FIRST
    f[b.K_FIXED], f[b.K_TOKEN] = cost.fixed_s, cost.token_s
    f[b.K_KV], f[b.K_PAIR], f[b.K_ROOFLINE] = cost.kv_token_s, cost.pair_s, cost.roofline
    return f


def _counters(settings: SimSettings) -> NDArray[np.int64]:
    n = np.zeros(b.NUM_INTS, dtype=np.int64)
    n[b.FREE] = n[b.AVAIL] = n[b.C_TOTAL] = settings.total
    n[b.PIECE_TOP] = 1
    for name in (b.PIECE_FREE, b.HOLD_FREE, b.SLOT_FREE, b.RHEAD, b.RTAIL, b.PREFILL, b.HEAD):
        n[name] = -1
    n[b.C_BLOCK] = n[b.C_TRACE_BLOCK] = settings.slot_size
    n[b.C_BUDGET], n[b.C_SEQS] = settings.max_num_batched_tokens, settings.max_num_seqs
    n[b.C_CACHING], n[b.C_RESERVE] = settings.caches, settings.allocator == "paged-reserve"
    n[b.C_REGION], n[b.C_SWAP] = settings.region, settings.swap_blocks
    n[b.C_TOUCH], n[b.C_SGLANG] = settings.engine != "vllm", settings.engine == "sglang"
    n[b.C_FULL], n[b.C_EARLY] = settings.full_prompt, settings.engine == "vllm"
    n[b.C_WATERMARK] = int(settings.watermark * settings.total)
    n[b.C_WEIGHT] = settings.weight
    n[b.C_MAX_TOKENS] = settings.max_tokens or 0
    return n
