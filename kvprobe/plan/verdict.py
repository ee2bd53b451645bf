"""The answer in one sentence, and what is missing when it is no."""

from __future__ import annotations

from kvprobe.plan.document import Shortfall
from kvprobe.plan.solve import Solution
from kvprobe.summary.units import percent, plural, size, whole


def shortfall_of(solution: Solution) -> Shortfall | None:
    """What one request of the longest kind lacks; null when it fits or nothing can be said."""
    pool = solution.safe_pool
    if pool is None or solution.fits() is not False:
        return None
    tokens = solution.wanted_tokens()
    kv = solution.budget.kv.value
    usable = max(0, (pool.num_blocks or 0) - pool.null_blocks)
    if pool.num_blocks is not None and pool.block_bytes is not None and kv is not None and kv.nominal > 0:
        missing = max(0, pool.blocks_for(tokens) - usable)
        return Shortfall(tokens=tokens, blocks=missing, bytes=missing * pool.block_bytes)
    needed = pool.needed_bytes or solution.cost.bytes_at(tokens)
    have = 0 if kv is None else (kv.lo if solution.banded else kv.nominal)
    return Shortfall(tokens=tokens, blocks=None, bytes=max(0, needed - have))


def binding(solution: Solution) -> str | None:
    """What limits the number of requests: weights that leave nothing, a pool, slots, a setting."""
    kv = solution.budget.kv.value
    if kv is not None and (kv.lo if solution.banded else kv.nominal) <= 0:
        return "weights and work space" if solution.request.available_kv is None else "--available-kv"
    return solution.safe_capacity.binds


def verdict_of(solution: Solution) -> str:
    """One sentence with the numbers that decide."""
    fits, name = solution.fits(), solution.request.spec.name
    if solution.pool is None or solution.budget.kv.value is None:
        needs = f"; its context needs {size(_needed(solution))}" if _needed(solution) else ""
        return f"{name}: {_token(solution)}{needs}; what fits is not known: {solution.budget.kv.reason}"
    if fits is None:
        return f"{name} may fit: {_range(solution)}"
    if not fits:
        return f"{name} does not fit: {_missing(solution)}"
    # Bytes over bytes: what no allocator reaches must not be taken for a setting.
    bound = "; a logical upper bound, an engine holds less" if solution.request.engine is None else ""
    return f"{name} fits: {_held(solution)}{bound}"


def _needed(solution: Solution) -> int:
    return 0 if solution.pool is None else solution.pool.needed_bytes or 0


def _token(solution: Solution) -> str:
    return f"a token costs {size(float(solution.cost.bytes_per_token))} of KV cache per GPU"


def _missing(solution: Solution) -> str:
    kv, short = solution.budget.kv.value, shortfall_of(solution)
    tokens = solution.wanted_tokens()
    if kv is not None and kv.hi <= 0:
        if solution.request.available_kv is not None:
            return "--available-kv leaves nothing for the KV cache"
        much = f"{size(-kv.nominal)} more than the budget allows" if kv.nominal < 0 else "all that there is"
        return f"weights and work space take {much}, nothing is left for the KV cache"
    lack = size(short.bytes) if short is not None else "memory"
    blocks = f" ({whole(short.blocks)} more blocks)" if short is not None and short.blocks is not None else ""
    if solution.request.engine == "llama.cpp":
        return f"its context needs {lack} more than there is"
    return f"one request of {plural(tokens, 'token')} lacks {lack}{blocks}"


def _range(solution: Solution) -> str:
    kv = solution.budget.kv.value
    low, high = (size(max(0, end)) for end in (kv.lo, kv.hi)) if kv is not None else ("?", "?")
    short = f" (at worst {size(-kv.lo)} too little)" if kv is not None and kv.lo < 0 else ""
    return (
        f"{low} to {high} are left for the KV cache{short}, and one request of "
        f"{plural(solution.wanted_tokens(), 'token')} fits only in the upper part; measure the terms that "
        "are ranges"
    )


def _held(solution: Solution) -> str:
    pool, held = solution.safe_pool, solution.safe_capacity
    if pool is None:
        return "nothing more is known"
    amount = pool.tokens if pool.tokens is not None else pool.full_tokens
    at_least = "at least " if solution.banded else ""
    tokens = f"{at_least}{whole(amount)} tokens of KV cache" if amount is not None else "its states"
    if held.spread is not None:
        chance = percent(held.spread.preemption_probability)
        at_once = plural(held.spread.max_num_seqs, "request")
        return f"{tokens}; {at_once} at once with a chance of preemption of at most {chance}"
    context = solution.request.context_tokens()
    if held.max is not None and context is not None:
        if held.max == 0:
            return f"{tokens}, less than one request of the context limit of {whole(context)} tokens"
        return f"{tokens}; {plural(held.max, 'request')} of {whole(context)} tokens at once"
    return tokens
