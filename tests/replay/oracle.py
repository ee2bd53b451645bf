"""The reference server's own scheduler and allocators, driven step by step without a model.

What the simulator is held to: every block, hit, preemption and finish is the server's own code's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from kvprobe.plan.simulate.cost import StepCost
from kvprobe.plan.simulate.settings import SimSettings
from kvprobe.traces.rows import TraceRow
from reference_server.kv.contiguous import ContiguousAllocator
from reference_server.kv.paged import PagedAllocator
from reference_server.kv.preemption import RecomputePreemption
from reference_server.kv.prefix import HashChain, PrefixHasher
from reference_server.kv.reserve import ReservingAllocator
from reference_server.kv.swap import SwapPreemption
from reference_server.scheduler import Scheduler
from reference_server.sequence import Sequence, Timeline

OWN_TOKENS = 1 << 24


class NoCopies:
    """Storage of a server without a model."""

    def export_blocks(self, ids: Any) -> None:
        return None

    def import_blocks(self, ids: Any, host: Any, rows: Any = None) -> None:
        return None


@dataclass
class Told:
    """What the server did, by row."""

    hits: dict[int, int] = field(default_factory=dict)
    ttft: dict[int, float] = field(default_factory=dict)
    e2e: dict[int, float] = field(default_factory=dict)
    queue: dict[int, float] = field(default_factory=dict)
    preempted: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    now: float = 0.0
    peak_used: int = 0
    evicted: int = 0
    free: int = 0
    swapped: tuple[int, int] = (0, 0)
    failed: int = 0
    token_seconds: dict[int, float] = field(default_factory=dict)
    stamps: dict[int, list[float]] = field(default_factory=dict)
    """The instants of a request's tokens."""


def prompt(row: TraceRow, number: int) -> list[int]:
    """Tokens that are equal where the ids are."""
    tokens: list[int] = []
    for one in row.hash_ids or ():
        tokens += [1000 * (one + 1) + i for i in range(row.block_tokens or 0)]
    tokens = tokens[: row.in_tokens]
    return tokens + [OWN_TOKENS * (number + 1) + i for i in range(row.in_tokens - len(tokens))]


def allocator_of(settings: SimSettings) -> Any:
    if settings.allocator == "contiguous":
        return ContiguousAllocator(settings.total + 1, settings.max_model_len or 0)
    kind = ReservingAllocator if settings.allocator == "paged-reserve" else PagedAllocator
    return kind(settings.total + 1, settings.block_size, prefix_caching=settings.prefix_caching)


def serve(rows: list[TraceRow], settings: SimSettings, cost: StepCost, *, check: bool = True) -> Told:
    """All rows to their end, or to their failure; `check`: the allocator's own books after every step."""
    allocator = allocator_of(settings)
    recompute = RecomputePreemption(allocator)
    preemption: Any = (
        SwapPreemption(allocator, NoCopies(), settings.swap_blocks) if settings.swap_blocks else recompute
    )
    scheduler = Scheduler(
        allocator,
        preemption,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
    )
    hasher = PrefixHasher(settings.slot_size, b"0" * 32)
    fitting = [(n, r) for n, r in enumerate(rows) if r.in_tokens + r.out_tokens <= settings.longest_tokens]
    told, coming = Told(), deque(fitting)
    while coming or scheduler.has_work:
        if not scheduler.has_work and coming:
            told.now = max(told.now, coming[0][1].t_s)
        while coming and coming[0][1].t_s <= told.now:
            number, row = coming.popleft()
            scheduler.add(_sequence(row, number, hasher))
        if scheduler.has_work:
            _step(scheduler, told, cost)
            if check:
                scheduler.allocator.check(scheduler.holders())
    usage = allocator.usage(())
    told.evicted, told.free = usage.blocks_evicted_total, usage.blocks_free
    swap = preemption.usage()
    told.swapped = (swap.out_total, swap.in_total)
    return told


def _sequence(row: TraceRow, number: int, hasher: PrefixHasher) -> Sequence:
    tokens = prompt(row, number)
    return Sequence(
        request_id=str(number),
        tokens=tokens,
        num_prompt_tokens=len(tokens),
        max_tokens=row.out_tokens,
        chooser=SimpleNamespace(),  # type: ignore[arg-type]
        text=SimpleNamespace(),  # type: ignore[arg-type]
        chain=HashChain(hasher),
        timeline=Timeline(arrived=row.t_s),
    )


def _step(scheduler: Scheduler, told: Told, cost: StepCost) -> None:
    step = scheduler.schedule()
    for sequence in step.preempted:
        number = int(sequence.request_id)
        told.preempted[number] = told.preempted.get(number, 0) + 1
    told.failed += len(step.failed)
    for sequence in step.admitted:
        number = int(sequence.request_id)
        if number not in told.hits:
            told.hits[number] = sequence.num_computed
            told.queue[number] = told.now - sequence.timeline.arrived
    told.peak_used = max(told.peak_used, scheduler.allocator.usage(()).blocks_used)
    if not step.work:
        return
    seconds = step_seconds(step.work, cost)
    told.steps += 1
    told.now += seconds
    for item in step.work:
        _compute(scheduler, item, told)


def step_seconds(work: list[Any], cost: StepCost) -> float:
    tokens = sum(item.count for item in work)
    contexts = sum(item.sequence.num_computed + item.count for item in work)
    parts = [item for item in work if item.count > 1]
    pairs = sum(i.count * i.sequence.num_computed + i.count * (i.count + 1) // 2 for i in parts)
    by_token = cost.token_s * tokens + cost.pair_s * pairs
    base = max(cost.fixed_s, by_token) if cost.roofline else cost.fixed_s + by_token
    return base + cost.kv_token_s * contexts


def _compute(scheduler: Scheduler, item: Any, told: Told) -> None:
    sequence, completes = item.sequence, item.completes
    number = int(sequence.request_id)
    sequence.num_computed += item.count
    scheduler.allocator.commit(sequence)
    if not completes:
        return
    sequence.tokens.append(OWN_TOKENS * (number + 1) + OWN_TOKENS // 2 + sequence.num_output_tokens)
    told.stamps.setdefault(number, []).append(told.now)
    told.ttft.setdefault(number, told.now - sequence.timeline.arrived)
    if sequence.num_output_tokens >= sequence.max_tokens:
        told.e2e[number] = told.now - sequence.timeline.arrived
        scheduler.remove(sequence)
