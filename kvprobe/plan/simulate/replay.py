"""A trace through a simulated server, and what came of it as one document (`kvprobe.replay/1`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvprobe.errors import Problem, UsageError
from kvprobe.plan.simulate import books as b
from kvprobe.plan.simulate.cost import ASSUMED, StepCost
from kvprobe.plan.simulate.holders import Concentration, Exhaustions, concentration, exhaustions
from kvprobe.plan.simulate.outcome import (
    Concurrency,
    Moment,
    PoolUse,
    Preemptions,
    Prefixes,
    Requests,
    Rows,
    Spread,
    StepTime,
    concurrency,
    latencies,
    pool_use,
    preemptions,
    prefixes,
    requests,
    step_time,
    time_line,
)
from kvprobe.plan.simulate.rows import Chunk, chunks
from kvprobe.plan.simulate.settings import SimSettings

if TYPE_CHECKING:
    from kvprobe.plan.simulate.server import Server
    from kvprobe.traces.read import Trace

SCHEMA = "kvprobe.replay/1"
Progress = Callable[[int, float], None]
"""Told how many rows were fed and at which second of the trace that is."""
BEYOND = 1.25
"""So many times the load of a fit is said to be beyond it."""


class TracePart(msgspec.Struct, kw_only=True):
    """`dropped` are rows that cannot be used, by reason. `span_s` is from the first arrival to the last."""

    path: str
    format: str
    rows: int
    dropped: dict[str, int]
    span_s: float
    in_tokens_mean: float
    out_tokens_mean: float
    hash_block_tokens: int | None


class SettingsPart(msgspec.Struct, kw_only=True):
    """As simulated; null where there is no such limit."""

    engine: str
    allocator: str
    block_size: int
    prefix_caching: bool
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int | None
    max_tokens: int | None
    preemption: str
    swap_blocks: int
    full_prompt: bool
    watermark: float
    bytes_per_token: float | None
    blocks_per_block_of_tokens: int


class SweepRow(msgspec.Struct, kw_only=True):
    """One value of what was swept; nulls where nothing was served or the thing does not exist."""

    value: str
    usable_blocks: int
    pool_bytes: int | None
    refused: int
    failed: int
    running_mean: float
    running_peak: int
    peak_ratio: float
    hit_rate: float | None
    preemptions: int
    preempted_share: float
    queue_p95_s: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    e2e_p95_s: float | None
    physical_over_logical: float | None


class Sweep(msgspec.Struct, kw_only=True):
    """`knee` is the first value (as given) whose end-to-end p95 is within a tenth of
    the best one's; null where nothing was served. `why` says so in words."""

    name: str
    rows: list[SweepRow]
    knee: str | None
    why: str


class Smallest(msgspec.Struct, kw_only=True):
    """The smallest pool that keeps a limit; null with a reason where none of the tried ones does."""

    limit: str
    usable_blocks: int | None
    tokens: int | None
    bytes: int | None
    measured: float | None
    tried: int
    why: str


class Replay(msgspec.Struct, kw_only=True):
    """`kvprobe.replay/1`. Times are seconds by `step_time`, whose `source` says what they are worth."""

    schema: str = SCHEMA
    trace: TracePart
    settings: SettingsPart
    step_time: StepTime
    requests: Requests
    concurrency: Concurrency
    pool: PoolUse
    prefix: Prefixes
    preemptions: Preemptions
    metrics: dict[str, Spread | None]
    exhaustions: Exhaustions
    concentration: Concentration | None
    time_line: list[Moment]
    simulated_s: float
    steps: int
    events: int
    sweeps: list[Sweep] = []
    smallest: Smallest | None = None
    beside: Replay | None = None
    assumptions: list[str] = []


def replay_schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    schema = msgspec.json.schema(Replay)
    schema["$defs"]["Replay"]["properties"]["schema"] = {"const": SCHEMA}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": SCHEMA, **schema}


def simulate(
    parts: Iterable[Chunk],
    settings: SimSettings,
    cost: StepCost = ASSUMED,
    *,
    progress: Progress | None = None,
) -> Server:
    """Serve all chunks to the end. Raises UsageError where there is no row."""
    from kvprobe.plan.simulate.server import Server

    server = Server(settings, cost)
    waiting = iter(parts)
    current = next(waiting, None)
    if current is None:
        fix = "give a trace with at least one request that has a prompt and an answer"
        raise UsageError(Problem("bad_trace", "the trace has no row that can be simulated", fix))
    while current is not None:
        after = next(waiting, None)
        server.feed(current, last=after is None)
        if progress is not None:
            progress(server.rows, float(current.times_s[-1]))
        current = after
    return server


class TraceChunks:
    """The chunks of a trace, kept for another pass where they are few."""

    KEPT_ROWS = 200_000

    def __init__(self, open_it: Callable[[], Trace]) -> None:
        self._open = open_it
        self._kept: list[Chunk] | None = []
        self._complete = False
        self.trace = open_it()
        self.block_tokens: int | None = None

    def __iter__(self) -> Iterator[Chunk]:
        if self._complete and self._kept is not None:
            yield from self._kept
            return
        kept: list[Chunk] | None = []
        rows = 0
        for chunk in chunks(self.trace.rows()):
            rows += len(chunk)
            self.block_tokens = chunk.block_tokens or self.block_tokens
            kept = [*kept, chunk] if kept is not None and rows <= self.KEPT_ROWS else None
            yield chunk
        self._kept, self._complete = kept, kept is not None


def document(
    server: Server,
    source: TraceChunks,
    path: Path,
    cost: StepCost,
    bytes_per_token: float | None,
    assumptions: Iterable[str] = (),
) -> Replay:
    """All answers of one simulation."""
    rows = Rows(server)
    return Replay(
        trace=_trace_part(source, path, rows),
        settings=_settings_part(server.settings, bytes_per_token),
        step_time=step_time(cost),
        requests=requests(server, rows),
        concurrency=concurrency(server, rows),
        pool=pool_use(server, bytes_per_token),
        prefix=prefixes(server, named=source.block_tokens is not None),
        preemptions=preemptions(server, rows),
        metrics=latencies(rows),
        exhaustions=exhaustions(server, rows),
        concentration=concentration(rows, bytes_per_token),
        time_line=time_line(server, rows),
        simulated_s=server.now_s,
        steps=server.steps,
        events=server.events,
        assumptions=[*assumptions, *_beyond(cost, int(server.sim.n[b.PEAK_RUN]))],
    )


def _beyond(cost: StepCost, peak: int) -> Iterator[str]:
    """A fit knows the loads that its run had."""
    if cost.seen_running is not None and peak > BEYOND * cost.seen_running:
        yield (
            f"the run of the fit had {cost.seen_running:,} requests decoding at once at most, this replay "
            f"{peak:,}: steps with more are extrapolated in a straight line; fit to a run under such a load"
        )


def _trace_part(source: TraceChunks, path: Path, rows: Rows) -> TracePart:
    return TracePart(
        path=str(path),
        format=source.trace.format,
        rows=len(rows.status),
        dropped=dict(source.trace.dropped),
        span_s=float(rows.arrived_s[-1] - rows.arrived_s[0]),
        in_tokens_mean=float(rows.in_tokens.mean()),
        out_tokens_mean=float(rows.out_tokens.mean()),
        hash_block_tokens=source.block_tokens,
    )


def _settings_part(settings: SimSettings, bytes_per_token: float | None) -> SettingsPart:
    return SettingsPart(
        engine=settings.engine,
        allocator=settings.allocator,
        block_size=settings.slot_size,
        prefix_caching=settings.caches,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_model_len=settings.max_model_len,
        max_tokens=settings.max_tokens,
        preemption="swap" if settings.swap_blocks else "recompute",
        swap_blocks=settings.swap_blocks,
        full_prompt=settings.full_prompt,
        watermark=settings.watermark,
        bytes_per_token=bytes_per_token,
        blocks_per_block_of_tokens=settings.weight,
    )
