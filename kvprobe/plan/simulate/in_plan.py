"""Requests through the pool of a plan: what arrivals, growth, reuse and preemption make of it.

The plan's own numbers take every request at full growth at the same time. This part is the other reading:
requests grow as they are served. Of a trace its head, when it says; of a distribution as many draws, all
waiting from the start, for a distribution knows no arrivals: what a server does that is never idle. It is
bounded, so that a plan stays quick: `kvprobe replay` takes the whole trace.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from kvprobe.errors import UsageError
from kvprobe.plan.replayed import ReplayPart, ReplayRun

if TYPE_CHECKING:
    from kvprobe.plan.lengths import Lengths
    from kvprobe.plan.pool import Pool
    from kvprobe.plan.simulate.cost import StepCost
    from kvprobe.plan.simulate.rows import Chunk
    from kvprobe.plan.simulate.settings import SimSettings
    from kvprobe.plan.solve import Solution
    from kvprobe.traces.rows import TraceRow

HEAD_ROWS = 2_000
"""Some two seconds of plain Python for both runs; the same head on every machine, compiled or not."""
DRAWS = 300
ANSWER_SHARE = 0.25
"""Of all tokens; a distribution does not tell prompts from answers."""
MOST_EVENTS = 20_000
"""A head that preempts at every step ends earlier."""
CHUNK_ROWS = 100
"""At most, and no more than tokens in a step: rows of many steps each are counted after fewer of them."""
BLOCK_TOKENS = 16
_ASSUMED = (
    "20 ms a step and 40 us a token are an order of magnitude, no more: times, and how many requests run "
    "at once, follow from it; give --gpu NAME of the table, or use `kvprobe replay --fit RUN`"
)
_TRACED = ("requests come when the trace says and grow as they are served; `kvprobe replay` takes all of it",)
_DRAWN = (
    "these lengths know no arrivals: the draws all wait from the start, as before a server that is never "
    "idle, and grow as they are served",
    f"assumed: {ANSWER_SHARE:.0%} of all tokens are answers, and prompts share nothing. Where long requests "
    "have long answers they also stay longer, so that those running are longer than those that come: more "
    "are preempted than the lengths alone make likely; give --lengths TRACE, a file with arrivals",
)
_SIMULATED = ("vllm", "sglang", "reference")
_PROBES = (1, 1_000, 300_000)


def replay_part(solution: Solution) -> ReplayPart | str:
    """The head of `--lengths TRACE`, or draws of another `--lengths`, in the plan's pool; or why not."""
    lengths = solution.request.lengths
    if lengths is None:
        return "no --lengths were given"
    try:
        return _simulated(solution, lengths)
    except UsageError as error:
        return f"not simulated: {error.problems[0].message}"


def _simulated(solution: Solution, lengths: Lengths) -> ReplayPart | str:
    from kvprobe.plan.simulate import compiled

    settings = _settings(solution)
    if isinstance(settings, str):
        return settings
    # Loading a compiled kernel takes longer than so few rows.
    compiled.choose(0)
    cost, whence = _cost(solution)
    traced = lengths.source.startswith("trace")
    rows = {"": _head_of(Path(lengths.spec))} if traced else _drawn(lengths)
    at_once = min(CHUNK_ROWS, settings.max_num_batched_tokens)
    heads = {kind: _Head(some, at_once) for kind, some in rows.items()}
    runs = [
        _run(head, settings, cost, seats, why + kind)
        for number, (seats, why) in enumerate(_seats(solution, settings))
        # The second reading is about what is advised.
        for kind, head in list(heads.items())[: 1 + number]
    ]
    head = next(iter(heads.values()))
    return ReplayPart(
        arrivals="trace" if traced else "all at once",
        requests=head.rows,
        trace_requests=(lengths.requests or head.rows) if traced else None,
        span_s=head.span_s,
        admission=settings.engine,
        prefix_caching=settings.caches,
        usable_blocks=settings.total,
        block_size=settings.slot_size,
        step_time_source=cost.source,
        step_fixed_s=cost.fixed_s,
        step_token_s=cost.token_s,
        runs=runs,
        notes=[*whence, *(_TRACED if traced else _DRAWN), *_notes(solution, settings)],
    )


def _head_of(path: Path) -> Iterator[TraceRow]:
    """The path is the user's, checked by `--lengths` before."""
    from kvprobe.traces.read import open_trace

    return islice(open_trace(path).rows(), HEAD_ROWS)


def _drawn(lengths: Lengths) -> dict[str, Iterator[TraceRow]]:
    """Two readings of lengths at even steps of their distribution, in an order that is always the same."""
    tokens = [max(lengths.quantile((place + 0.5) / DRAWS), 2) for place in range(DRAWS)]
    random.Random(0).shuffle(tokens)
    mean = ANSWER_SHARE * sum(tokens) / len(tokens)
    found = {", answers alike": _rows((one, min(mean, one / 2)) for one in tokens)}
    if len(set(tokens)) > 1:
        found[", long answers to long requests"] = _rows((one, ANSWER_SHARE * one) for one in tokens)
    return found


def _rows(sizes: Iterable[tuple[int, float]]) -> Iterator[TraceRow]:
    """Requests of so many tokens, and how many of them are the answer; all at one instant."""
    from kvprobe.traces.rows import TraceRow

    for place, (tokens, answer) in enumerate(sizes):
        out = max(round(answer), 1)
        yield TraceRow(0.0, tokens - out, out, None, None, None, None, place + 1)


class _Head:
    """Rows, kept for a second run; a run that was cut short cuts the next one too."""

    def __init__(self, rows: Iterable[TraceRow], at_once: int) -> None:
        from kvprobe.plan.simulate.rows import chunks

        self.parts: list[Chunk] = list(chunks(rows, at_once))

    @property
    def rows(self) -> int:
        return sum(len(part) for part in self.parts)

    @property
    def span_s(self) -> float:
        return float(self.parts[-1].times_s[-1] - self.parts[0].times_s[0]) if self.parts else 0.0

    @property
    def named(self) -> bool:
        return any(part.block_tokens is not None for part in self.parts)


def _run(head: _Head, settings: SimSettings, cost: StepCost, seats: int, why: str) -> ReplayRun:
    from dataclasses import replace

    from kvprobe.plan.simulate.outcome import Rows, concurrency
    from kvprobe.plan.simulate.server import Server
    from kvprobe.plan.simulate.sweep import sweep_row

    server = Server(replace(settings, max_num_seqs=seats), cost)
    for number, part in enumerate(head.parts):
        last = number + 1 == len(head.parts) or server.events > MOST_EVENTS
        server.feed(part, last=last)
        if last:
            head.parts = head.parts[: number + 1]
            break
    row = sweep_row(str(seats), server, None, named=head.named)
    waits = concurrency(server, Rows(server))
    return ReplayRun(
        max_num_seqs=seats,
        why=why,
        running_mean=row.running_mean,
        running_peak=row.running_peak,
        waiting_mean=waits.waiting_mean,
        waiting_peak=waits.waiting_peak,
        pool_peak_ratio=row.peak_ratio,
        preemptions=row.preemptions,
        preempted_share=row.preempted_share,
        refused=row.refused,
        failed=row.failed,
        hit_rate=row.hit_rate,
        queue_p95_s=row.queue_p95_s,
        ttft_p95_s=row.ttft_p95_s,
    )


def _settings(solution: Solution) -> SimSettings | str:
    """The plan's pool as the simulator's, or why it has none."""
    from kvprobe.plan.simulate.ask import BATCH, SEATS, groups_of
    from kvprobe.plan.simulate.settings import SimSettings

    request, pool = solution.request, solution.safe_pool
    engine = request.engine or "vllm"
    if engine not in _SIMULATED:
        return f"the scheduler of {engine} is not simulated (known: {', '.join(_SIMULATED)})"
    if pool is None:
        return "the pool is not known"
    if pool.state_slots is not None or pool.swa_tokens is not None:
        return f"{engine} keeps this model in two pools, which are not simulated"
    block, blocks = _blocks(solution, pool)
    if blocks < 1:
        return "there is no pool to simulate"
    groups = groups_of(pool, block) if pool.num_blocks is not None else None
    budget = request.options.max_num_batched_tokens or BATCH[engine]
    seats = solution.safe_capacity.cap or request.options.max_num_seqs or SEATS[engine]
    return SimSettings(
        usable_blocks=blocks,
        block_size=block if groups is None else groups.block_size,
        engine=engine,  # type: ignore[arg-type]
        prefix_caching=_caches(solution),
        max_num_seqs=seats if engine == "sglang" else min(seats, budget),
        max_num_batched_tokens=budget,
        max_model_len=request.context_tokens(),
        full_prompt=engine == "vllm",
        groups=groups,
    )


def _caches(solution: Solution) -> bool:
    """As asked, else the engine's default: vLLM reuses prefixes by itself since its second core."""
    wish = solution.request.options.prefix_caching
    if wish is not None:
        return wish
    return solution.request.engine != "vllm" or solution.request.at_least(0, 8)


def _blocks(solution: Solution, pool: Pool) -> tuple[int, int]:
    """Tokens of a block, and blocks that can be handed out; 0 where bytes do not grow by the token."""
    block = pool.block_size or (1 if solution.request.engine == "sglang" else BLOCK_TOKENS)
    if pool.num_blocks is not None:
        return block, pool.num_blocks - pool.null_blocks
    grows = all(
        solution.cost.bytes_at(tokens) == tokens * solution.cost.bytes_per_token for tokens in _PROBES
    )
    return block, (pool.tokens or 0) // block if grows else 0


def _seats(solution: Solution, settings: SimSettings) -> list[tuple[int, str]]:
    """The limit as it stands, and the recommended one where that is lower."""
    spread, now = solution.safe_capacity.spread, settings.max_num_seqs
    told = solution.request.options.max_num_seqs is not None
    found = [(now, "as given" if told else "the default limit")]
    if spread is not None and 0 < spread.max_num_seqs < now:
        found.append((spread.max_num_seqs, "as this plan recommends"))
    return found


def _cost(solution: Solution) -> tuple[StepCost, list[str]]:
    from kvprobe.plan.simulate.cost import ASSUMED, from_gpu

    request = solution.request
    if request.gpu is not None and request.total_source == "table" and request.options.pp == 1:
        try:
            cost = from_gpu(
                request.gpu,
                request.spec,
                kv_bytes_per_token=float(solution.cost.bytes_per_token),
                tp=request.options.tp,
            )
        except UsageError as error:
            return ASSUMED, [f"no roofline: {error.problems[0].message}", _ASSUMED]
        return cost, list(cost.notes)
    return ASSUMED, [_ASSUMED]


def _notes(solution: Solution, settings: SimSettings) -> list[str]:
    notes = []
    if solution.banded:
        notes.append("the pool is the lower end of its range, as for what is safe")
    if solution.request.engine is None:
        notes.append(f"no --engine: vLLM's admission and blocks of {settings.slot_size} tokens are assumed")
    if solution.request.shared_prefix_tokens:
        notes.append("--shared-prefix is not used here: what prompts share is what the trace's hash ids say")
    if settings.groups is not None:
        notes.append("layers of several kinds: prefixes are not reused here")
    return notes
