"""What a simulation gives, as numbers: the shape of `replay --json` and how it is read off the kernel."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvprobe.plan.simulate import books as b
from kvprobe.plan.simulate.cost import StepCost
from kvprobe.plan.simulate.server import Server

TIME_LINE_ROWS = 120


class Spread(msgspec.Struct, kw_only=True):
    """Of all requests that were served; seconds."""

    n: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class Requests(msgspec.Struct, kw_only=True):
    """`refused`: longer than the pool or the context limit; `failed`: alone in the pool and still no room."""

    total: int
    ok: int
    refused: int
    failed: int


class Concurrency(msgspec.Struct, kw_only=True):
    """Requests in the batch; `waiting` have arrived and were not let in yet. Means are over time."""

    mean: float
    peak: int
    waiting_mean: float
    waiting_peak: int


class PoolUse(msgspec.Struct, kw_only=True):
    """Blocks held by requests, a shared one once; ratios are of the pool.

    `physical_over_logical` is held slots over the tokens in them, over time: above 1 is waste, below 1 what
    sharing saves beyond it. `cached_mean_ratio` is unheld blocks that a prefix may still find.
    """

    usable_blocks: int
    block_size: int
    tokens: int
    bytes: int | None
    peak_blocks: int
    peak_ratio: float
    mean_ratio: float
    cached_mean_ratio: float
    physical_over_logical: float | None
    evicted_blocks: int


class Prefixes(msgspec.Struct, kw_only=True):
    """Prompt tokens asked for and found, counted when a request is first let in. `hit_rate` is null
    where nothing can be shared, with the reason in `why_null`."""

    queried_tokens: int
    hit_tokens: int
    hit_rate: float | None
    why_null: str | None


class Preemptions(msgspec.Struct, kw_only=True):
    """`share` is requests preempted at least once; `recomputed_tokens` what was computed a second time."""

    events: int
    requests: int
    share: float
    recomputed_tokens: int
    swapped_out_blocks: int
    swapped_in_blocks: int


class Moment(msgspec.Struct, kw_only=True):
    """A stretch of the time line; ratios are of the pool."""

    t_s: float
    running_mean: float
    running_peak: int
    waiting: int
    used_mean_ratio: float
    used_peak_ratio: float
    preemptions: int


class StepTime(msgspec.Struct, kw_only=True):
    """seconds of a step = fixed (+ or max, see `roofline`) token x tokens + pair x pairs; + kv x contexts.

    `front_s` is of a request, not of a step: network and parsing, in TTFT and end-to-end times.
    """

    source: str
    fixed_s: float
    token_s: float
    kv_token_s: float
    pair_s: float
    front_s: float = 0.0
    roofline: bool
    notes: list[str]
    seen_running: int | None = None


def step_time(cost: StepCost) -> StepTime:
    return StepTime(
        source=cost.source,
        fixed_s=cost.fixed_s,
        token_s=cost.token_s,
        kv_token_s=cost.kv_token_s,
        pair_s=cost.pair_s,
        front_s=cost.front_s,
        roofline=cost.roofline,
        notes=list(cost.notes),
        seen_running=cost.seen_running,
    )


class Rows:
    """The results by row as columns; built once, when the simulation is over."""

    def __init__(self, server: Server) -> None:
        out, places = server.sim.out[: server.rows], server.places
        self.status = out[:, b.O_STATUS]
        self.ok = self.status == b.OK
        self.queue_s = out[:, b.O_QUEUE]
        self.ttft_s, self.e2e_s = (
            out[:, place] + np.float32(server.front_s) for place in (b.O_TTFT, b.O_E2E)
        )
        self.preempted = out[:, b.O_PREEMPTED]
        self.hit = out[:, b.O_HIT]
        """Prompt tokens found in the cache when the request was first let in; -1 where it was not."""
        self.held = np.nan_to_num(out[:, b.O_HELD]).astype(np.float64)
        """Token-seconds."""
        self.arrived_s = _joined(places.times_s)
        self.in_tokens, self.out_tokens = _joined(places.in_tokens), _joined(places.out_tokens)
        self.lines = _joined(places.lines)
        self.session_of = _joined(places.session_of)
        self.names = list(places.sessions)

    def session(self, row: int) -> str | None:
        """The session of a row; null where the trace has none."""
        if not len(self.session_of) or self.session_of[row] < 0:
            return None
        return self.names[self.session_of[row]]

    @property
    def tpot_s(self) -> NDArray[np.float32]:
        """Seconds a token after the first, of requests with at least two."""
        several = self.ok & (self.out_tokens > 1)
        values: NDArray[np.float32] = (self.e2e_s - self.ttft_s)[several] / (self.out_tokens[several] - 1)
        return values


def _joined(parts: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0)


def spread(values: NDArray[Any]) -> Spread | None:
    """Null when there are none."""
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    p50, p95, p99 = np.quantile(known, (0.5, 0.95, 0.99), method="inverted_cdf")
    return Spread(
        n=len(known),
        mean=float(known.mean(dtype=np.float64)),
        p50=float(p50),
        p95=float(p95),
        p99=float(p99),
        max=float(known.max()),
    )


def requests(server: Server, rows: Rows) -> Requests:
    return Requests(
        total=server.rows, ok=int(rows.ok.sum()), refused=server.refused, failed=int(server.sim.n[b.FAILED])
    )


def latencies(rows: Rows) -> dict[str, Spread | None]:
    """By the names of `run --json`."""
    return {
        "queue_s": spread(rows.queue_s[rows.ok]),
        "ttft_s": spread(rows.ttft_s[rows.ok]),
        "tpot_s": spread(rows.tpot_s),
        "e2e_s": spread(rows.e2e_s[rows.ok]),
    }


def pool_use(server: Server, bytes_per_token: float | None) -> PoolUse:
    n, f, settings = server.sim.n, server.sim.f, server.settings
    total, over = settings.total, max(float(f[b.BUSY]), 1e-30)
    stored = float(f[b.S_STORED])
    tokens = total * settings.slot_size // settings.weight if settings.weight else total * settings.slot_size
    shared, held_tokens = settings.groups is not None, float(f[b.S_USED]) * settings.slot_size
    return PoolUse(
        usable_blocks=total,
        block_size=settings.slot_size,
        tokens=tokens,
        bytes=None if bytes_per_token is None else round(tokens * bytes_per_token),
        peak_blocks=int(n[b.PEAK_USED]),
        peak_ratio=float(n[b.PEAK_USED]) / total,
        mean_ratio=float(f[b.S_USED]) / over / total,
        cached_mean_ratio=float(f[b.S_CACHED]) / over / total,
        physical_over_logical=None if shared or not stored else held_tokens / stored,
        evicted_blocks=int(n[b.EVICTED]),
    )


def prefixes(server: Server, *, named: bool) -> Prefixes:
    n, settings = server.sim.n, server.settings
    queried = int(n[b.QUERIED])
    why = None
    if settings.groups is not None:
        why = "reuse is not simulated for models with several kinds of layers"
    elif not settings.caches:
        why = "prefix caching is off"
    elif not named:
        why = "the trace has no hash ids: what its prompts share is not known"
    elif not queried:
        why = "no request was let in"
    rate = None if why else int(n[b.HIT]) / queried
    return Prefixes(queried_tokens=queried, hit_tokens=int(n[b.HIT]), hit_rate=rate, why_null=why)


def preemptions(server: Server, rows: Rows) -> Preemptions:
    n = server.sim.n
    hit = int((rows.preempted > 0).sum())
    served = max(server.rows - server.refused, 1)
    return Preemptions(
        events=int(n[b.PREEMPTIONS]),
        requests=hit,
        share=hit / served,
        recomputed_tokens=int(n[b.RECOMPUTED]),
        swapped_out_blocks=int(n[b.SWAP_OUT]),
        swapped_in_blocks=int(n[b.SWAP_IN]),
    )


def concurrency(server: Server, rows: Rows) -> Concurrency:
    n, f = server.sim.n, server.sim.f
    over = max(float(f[b.BUSY]), 1e-30)
    came, left = _queue_moments(rows)
    length = np.arange(1, len(came) + 1) - np.searchsorted(left, came, side="left")
    return Concurrency(
        mean=float(f[b.S_RUN]) / over,
        peak=int(n[b.PEAK_RUN]),
        waiting_mean=float(np.nansum(rows.queue_s.astype(np.float64))) / over,
        waiting_peak=int(length.max()) if len(length) else 0,
    )


def _queue_moments(rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """When requests that had to wait came into the queue, and when they were let in; sorted."""
    waited = rows.queue_s > 0
    came = rows.arrived_s[waited]
    return came, np.sort(came + rows.queue_s[waited])


def time_line(server: Server, rows: Rows) -> list[Moment]:
    """At most `TIME_LINE_ROWS` stretches of equal length."""
    count = int(server.sim.n[b.BINS])
    if not count:
        return []
    group = -(-count // TIME_LINE_ROWS)
    came, left = _queue_moments(rows)
    width = float(server.sim.f[b.BIN_WIDTH]) * group
    found = []
    for at in range(0, count, group):
        part = server.sim.bins[at : at + group]
        over = max(float(part[:, b.B_TIME].sum()), 1e-30)
        begin = at * float(server.sim.f[b.BIN_WIDTH])
        middle = begin + width / 2
        waiting = int(np.searchsorted(came, middle) - np.searchsorted(left, middle))
        found.append(_moment(part, over, begin, waiting, server.settings.total))
    return found


def _moment(part: NDArray[np.float64], over: float, begin: float, waiting: int, total: int) -> Moment:
    return Moment(
        t_s=begin,
        running_mean=float(part[:, b.B_RUN].sum()) / over,
        running_peak=int(part[:, b.B_MAX_RUN].max()),
        waiting=max(waiting, 0),
        used_mean_ratio=float(part[:, b.B_USED].sum()) / over / total,
        used_peak_ratio=float(part[:, b.B_MAX_USED].max()) / total,
        preemptions=int(part[:, b.B_PREEMPTED].sum()),
    )
