"""One request, one answer: cost, budget, pool, concurrency, with their ranges.

Where the budget is a range, the engine's rule is asked three times, for its lower end, its middle and its
upper end: ranges of every count follow from that, whatever an engine does with the bytes.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from kvprobe.plan.budget import budget_of
from kvprobe.plan.concurrency import (
    Capacity,
    Resource,
    capacity_of,
    held_at,
    resources_of,
    with_shared_prefix,
)
from kvprobe.plan.fitting import MAX_CELLS, QUICK_CELLS
from kvprobe.plan.formula import formula_pool
from kvprobe.plan.kv_cost import KVCost, kv_cost
from kvprobe.plan.lengths import Lengths
from kvprobe.plan.pool import ByteRange, Pool
from kvprobe.plan.request import PlanRequest
from kvprobe.plan.terms import Budget

FULL_UPFRONT = ("llama.cpp",)
"""Engines that take the whole context's memory at the start: what they need decides, not what is left."""

REFUSES_SHORT_POOLS = ("vllm",)
"""Engines that do not start when one request of the context limit is more than the pool, set or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The answer to one request. `low` and `high` are the pool at the ends of the budget's range; the
    same objects as `pool` when there is no range. `banded`: the middle is no better than the ends."""

    request: PlanRequest
    cost: KVCost
    budget: Budget
    pool: Pool | None
    low: Pool | None
    high: Pool | None
    capacity: Capacity
    capacity_low: Capacity
    capacity_high: Capacity

    @property
    def banded(self) -> bool:
        return self.budget.kv.banded

    @property
    def safe_pool(self) -> Pool | None:
        """What can be relied on: the lower end of a band, else the pool as computed."""
        return self.low if self.banded else self.pool

    @property
    def safe_capacity(self) -> Capacity:
        return self.capacity_low if self.banded else self.capacity

    def fits(self) -> bool | None:
        """Does at least one request of the longest kind fit, weights and all? Null when it cannot be said."""
        if self.pool is None or self.low is None or self.high is None or self.budget.kv.value is None:
            return None
        if not self.banded:
            return self._holds_one(self.pool)
        low, high = self._holds_one(self.low), self._holds_one(self.high)
        return low if low == high else None

    def _holds_one(self, pool: Pool) -> bool:
        kv = self.budget.kv.value
        if kv is not None and kv.hi <= 0:
            return False
        if self.request.engine in FULL_UPFRONT:
            return pool.fits
        return self.requests_in(pool, self.wanted_tokens()) > 0

    def wanted_tokens(self) -> int:
        """The length that has to fit at all: the longest request expected, else the context limit."""
        request = self.request
        lengths, context = request.lengths, request.context_tokens()
        if lengths is not None:
            return lengths.max_tokens if context is None else min(lengths.max_tokens, context)
        if request.options.max_model_len is None and request.engine not in REFUSES_SHORT_POOLS:
            return request.options.tokens or 1
        return context or request.options.tokens or 1

    def requests_in(self, pool: Pool, tokens: int) -> int:
        return held_at(resources(self.request, self.cost, pool), tokens)[0]


def solve(request: PlanRequest, *, curve: bool = True) -> Solution:
    """The whole answer. `curve` false leaves out the points of the fit curve (what-ifs need none).

    Raises UsageError for settings that no engine could run.
    """
    cost = _cost(request)
    budget = budget_of(request)
    kv = budget.kv.value
    pool = _pool(request, cost, kv)
    if kv is None or pool is None or kv.lo == kv.hi:
        held = _capacity(request, cost, pool, curve)
        return _solution(request, cost, budget, (pool, pool, pool), (held, held, held))
    ends = [_pool(request, cost, ByteRange.of(end)) for end in (kv.lo, kv.hi)]
    # The curve is drawn once, for the pool that can be relied on.
    middle = _capacity(request, cost, pool, curve and not budget.kv.banded)
    low = _capacity(request, cost, ends[0], curve and budget.kv.banded)
    high = _capacity(request, cost, ends[1], False)
    return _solution(request, cost, budget, (pool, *ends), (middle, low, high))


def _solution(
    request: PlanRequest,
    cost: KVCost,
    budget: Budget,
    pools: tuple[Pool | None, ...],
    held: tuple[Capacity, ...],
) -> Solution:
    """Pools and capacities are middle, low, high."""
    return Solution(
        request=request,
        cost=cost,
        budget=budget,
        pool=pools[0],
        low=pools[1],
        high=pools[2],
        capacity=held[0],
        capacity_low=held[1],
        capacity_high=held[2],
    )


def solve_quickly(request: PlanRequest) -> Solution:
    """The same for the amount that can be relied on alone, without ranges and on a coarser grid: what-ifs
    and the ladder compare many of them."""
    cost = _cost(request)
    budget = budget_of(request)
    kv = budget.kv.value
    amount = None if kv is None else ByteRange.of(kv.lo if budget.kv.banded else kv.nominal)
    pool = _pool(request, cost, amount)
    held = _capacity(request, cost, pool, curve=False, cells=QUICK_CELLS)
    return _solution(request, cost, budget, (pool, pool, pool), (held, held, held))


def _cost(request: PlanRequest) -> KVCost:
    """The cost as this engine caches the model: some pack a format, or decompress MLA."""
    if request.engine is None:
        return kv_cost(request.spec, request.options)
    from kvprobe.plan.engines import as_cached

    options = dataclasses.replace(request.options, gpu_name=request.gpu)
    cached = as_cached(request.engine, request.engine_version, request.spec, options)
    return kv_cost(cached.spec, cached.options)


def _pool(request: PlanRequest, cost: KVCost, available: ByteRange | None) -> Pool | None:
    if request.engine is None:
        return None if available is None else formula_pool(request, cost, available)
    if available is None and request.engine not in FULL_UPFRONT:
        return None
    from kvprobe.plan.engines import pool_for

    if available is not None and available.hi <= 0:
        available = ByteRange.of(0)
    elif available is not None and available.lo < 0:
        available = ByteRange(0, available.hi, available.exact)
    options = request.options
    if request.total is not None:
        options = dataclasses.replace(options, gpu_memory_bytes=request.total.nominal, gpu_name=request.gpu)
    return pool_for(request.engine, request.engine_version, request.spec, options, available)


def resources(request: PlanRequest, cost: KVCost, pool: Pool) -> tuple[Resource, ...]:
    """What requests use up, a shared prefix taken off where one is said."""
    found = resources_of(pool, cost)
    if not request.shared_prefix_tokens or request.options.prefix_caching is False:
        return found
    return with_shared_prefix(found, request.shared_prefix_tokens, pool.block_size or 1)


def _capacity(
    request: PlanRequest, cost: KVCost, pool: Pool | None, curve: bool, cells: int = MAX_CELLS
) -> Capacity:
    if pool is None:
        return Capacity()
    return capacity_of(
        pool,
        resources(request, cost, pool),
        _lengths(request),
        request.context_tokens(),
        _caps(request, pool),
        request.preemption_probability,
        curve=curve,
        cells=cells,
    )


def _lengths(request: PlanRequest) -> Lengths | None:
    """The lengths that the server would admit: longer ones are cut at the context limit."""
    lengths, limit = request.lengths, request.options.max_model_len
    if lengths is None or limit is None or lengths.tokens[-1] <= limit:
        return lengths
    return lengths.capped(limit)


def _caps(request: PlanRequest, pool: Pool) -> list[tuple[int, str]]:
    options = request.options
    caps = [
        (options.max_num_seqs, "--max-num-seqs"),
        (options.max_running_requests if request.engine == "sglang" else None, "--max-running-requests"),
        (pool.max_requests, "the slots of the pool"),
    ]
    return [(number, name) for number, name in caps if number is not None]
