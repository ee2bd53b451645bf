"""How many requests the pool holds: at a given length, and for a distribution of lengths.

A pool has one or more resources (blocks; full and sliding tokens in SGLang; shares where an engine only says
how many requests of a length it holds). A request takes some of each; a set of requests fits when every
resource suffices. Caps that do not depend on length (`max_num_seqs`, state slots) stand beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvprobe.plan.fitting import LEVELS, MAX_CELLS, Fitting
from kvprobe.plan.kv_cost import KVCost
from kvprobe.plan.lengths import Lengths
from kvprobe.plan.pool import Pool

SHARE_UNITS = 10**9
"""Units of a pool that only says how many requests of a length it holds."""
Cost = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that requests use up: `name` for the verdict, `capacity` and `cost` in one unit."""

    name: str
    capacity: int
    cost: Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The answer for the whole distribution.

    `max_num_seqs` requests fit together with a chance of at least `1 - preemption_probability`. `fits`
    pairs a number of requests with the chance that they fit; `over_pool` is the share of requests that
    are longer than the whole pool holds. `method` says how it was computed.
    """

    max_num_seqs: int
    preemption_probability: float
    mean_bound: int
    fits: tuple[tuple[int, float], ...]
    over_pool: float
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """One pool's answer; counts are capped by `cap` (`cap_name` says by what)."""

    mean: int | None = None
    p50: int | None = None
    p95: int | None = None
    max: int | None = None
    spread: Spread | None = None
    cap: int | None = None
    cap_name: str | None = None
    binds: str | None = None
    resources: tuple[Resource, ...] = field(default=(), repr=False)


def resources_of(pool: Pool, cost: KVCost) -> tuple[Resource, ...]:
    """What requests use up in this pool, in the engine's own units."""
    if pool.engine == "sglang" and pool.full_tokens is not None and pool.swa_tokens is not None:
        return _two_pools(pool, cost)
    if pool.engine == "sglang" and pool.tokens:
        return (Resource("the KV pool", pool.tokens, _paged(pool.block_size or 1)),)
    if pool.engine == "llama.cpp" and pool.tokens is not None and pool.tokens == pool.max_model_len:
        return (Resource("the cells of the context", pool.tokens, lambda tokens: tokens),)
    if pool.engine in ("formula", "transformers") and pool.available_bytes is not None and _grows(pool):
        return (Resource("the KV pool", max(0, pool.available_bytes), _bytes(cost, pool.block_size)),)
    if pool.holds is None:
        usable = max(0, (pool.num_blocks or 0) - pool.null_blocks)
        return (Resource("the KV pool", usable, pool.blocks_for),)
    name = "the slots" if pool.engine == "llama.cpp" else "the KV pool"
    if not _grows(pool):  # a share of fixed size for every request (a static cache, split slots)
        fixed, longest = _share(pool, 1), pool.max_model_len or 1
        return (Resource(name, SHARE_UNITS, lambda tokens: fixed if tokens <= longest else SHARE_UNITS + 1),)
    return (Resource(name, SHARE_UNITS, lambda tokens: _share(pool, tokens)),)


def _grows(pool: Pool) -> bool:
    """Does a longer request take more of the pool?"""
    holds = pool.holds
    return holds is None or pool.max_model_len is None or holds(1) != holds(pool.max_model_len)


def _two_pools(pool: Pool, cost: KVCost) -> tuple[Resource, ...]:
    """SGLang's full and sliding pools; a request keeps its window and one page more (its `holds` rule)."""
    page = pool.block_size or 1
    grows = bool(cost.growing)  # without a layer of full attention there is no pool for one
    window = max((part.window_tokens for part in cost.parts if part.window_tokens is not None), default=1)
    paged, kept = _paged(page), -(-window // page) * page + page
    sliding = Resource("the sliding-window pool", pool.swa_tokens or 0, lambda t: min(paged(t), kept))
    full = Resource("the full-attention pool", pool.full_tokens or 0, paged)
    return (full, sliding) if grows else (sliding,)


def _paged(page: int) -> Cost:
    return lambda tokens: -(-tokens // page) * page


def _bytes(cost: KVCost, block: int | None) -> Cost:
    return lambda tokens: cost.bytes_at(-(-tokens // block) * block if block else tokens)


def _share(pool: Pool, tokens: int) -> int:
    """The part of the pool that a request takes, rounded up; more than all of it when it does not fit."""
    holds = pool.holds
    held = holds(tokens) if holds is not None else 0
    return SHARE_UNITS // held if held > 0 else SHARE_UNITS + 1


def with_shared_prefix(resources: Sequence[Resource], prefix_tokens: int, block: int) -> tuple[Resource, ...]:
    """The same where all requests share the whole blocks of their first `prefix_tokens` tokens: held once,
    while what a request needs however short it is (states, its last block) stays its own."""
    whole = prefix_tokens // max(1, block) * max(1, block)
    return tuple(_shared(resource, whole) for resource in resources) if whole else tuple(resources)


def _shared(resource: Resource, whole_tokens: int) -> Resource:
    saved = max(0, resource.cost(whole_tokens + 1) - resource.cost(1))

    def cost(tokens: int) -> int:
        return max(1, resource.cost(max(tokens, whole_tokens + 1)) - saved)

    return Resource(resource.name, max(0, resource.capacity - saved), cost)


def held_at(resources: Sequence[Resource], tokens: int) -> tuple[int, str]:
    """Requests of `tokens` tokens that fit at once, and what binds."""
    counts = [(r.capacity // max(1, r.cost(tokens)), r.name) for r in resources]
    return min(counts, key=lambda pair: pair[0])


def capacity_of(
    pool: Pool,
    resources: tuple[Resource, ...],
    lengths: Lengths | None,
    context_tokens: int | None,
    caps: Sequence[tuple[int, str]],
    preemption_probability: float,
    *,
    curve: bool = True,
    cells: int = MAX_CELLS,
) -> Capacity:
    """Everything about one pool. Without lengths only the longest request (`context_tokens`) is asked."""
    cap, cap_name = min(caps, default=(None, None), key=lambda pair: pair[0] or 0)

    def at(tokens: int) -> int:
        held = held_at(resources, tokens)[0]
        return held if cap is None else min(held, cap)

    if lengths is None:
        longest = None if context_tokens is None else at(context_tokens)
        binds = _binds(resources, context_tokens, cap, cap_name)
        return Capacity(max=longest, cap=cap, cap_name=cap_name, resources=resources, binds=binds)
    mean_tokens = round(lengths.mean_tokens)
    return Capacity(
        mean=at(mean_tokens),
        p50=at(lengths.p50_tokens),
        p95=at(lengths.p95_tokens),
        max=at(lengths.max_tokens),
        spread=spread_of(resources, lengths, preemption_probability, cap, curve=curve, cells=cells),
        cap=cap,
        cap_name=cap_name,
        binds=_binds(resources, mean_tokens, cap, cap_name),
        resources=resources,
    )


def _binds(
    resources: Sequence[Resource], tokens: int | None, cap: int | None, cap_name: str | None
) -> str | None:
    if tokens is None or not resources:
        return cap_name
    held, name = held_at(resources, tokens)
    return cap_name if cap is not None and cap_name and cap <= held else name


def spread_of(
    resources: Sequence[Resource],
    lengths: Lengths,
    preemption_probability: float,
    cap: int | None,
    *,
    curve: bool = True,
    cells: int = MAX_CELLS,
) -> Spread:
    """P(fit) for the distribution. With several resources the chance that one fails is at most the sum
    of their chances (Boole), which is what is used: cautious."""
    fittings = [
        Fitting([r.cost(t) for t in lengths.tokens], lengths.weights, max(1, r.capacity), cells)
        for r in resources
    ]
    level = 1 - preemption_probability

    def probability(n: int) -> float:
        if cap is not None and n > cap:
            return 0.0
        return max(0.0, 1.0 - sum(1.0 - f.probability(n) for f in fittings))

    fittings.sort(key=lambda f: f.capacity / f.mean if f.mean else 0.0)
    safe = _largest(probability, _at_level(fittings, level), level, cap)
    mean_bound = int(fittings[0].capacity / fittings[0].mean) if fittings[0].mean else 0
    points = {safe, mean_bound} | ({_at_level(fittings, at) for at in LEVELS} if curve else set())
    capped = {n if cap is None else min(n, cap) for n in points}
    over = max(sum(w for c, w in zip(f.costs, f.weights, strict=True) if c > f.capacity) for f in fittings)
    return Spread(
        max_num_seqs=safe,
        preemption_probability=preemption_probability,
        mean_bound=mean_bound if cap is None else min(mean_bound, cap),
        fits=tuple((n, probability(n)) for n in sorted(capped) if n > 0),
        over_pool=over,
        method=_method(fittings, lengths),
    )


def _at_level(fittings: Sequence[Fitting], level: float) -> int:
    """The largest n that each resource holds with that chance; the tightest is asked first, and the
    others only whether they hold so many too."""
    n = fittings[0].largest(level)
    for other in fittings[1:]:
        if n and other.probability(n) < level:
            n = min(n, other.largest(level))
    return n


def _largest(probability: Callable[[int], float], start: int, level: float, cap: int | None) -> int:
    n = start if cap is None else min(start, cap)
    while n > 0 and probability(n) < level:
        n -= 1
    return n


def _method(fittings: Sequence[Fitting], lengths: Lengths) -> str:
    if len(lengths.tokens) == 1:
        return "one length: whole division"
    how = (
        "exact convolution of blocks"
        if all(f.exact for f in fittings)
        else f"convolution on {fittings[0].cells:,} cells of the pool"
    )
    several = ", chances of failure added over the pools" if len(fittings) > 1 else ""
    return f"{how}{several}; independent requests, each at full growth"
