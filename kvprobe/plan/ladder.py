"""Utilisation as a ladder: settings to climb one by one, with the check to make after each.

The right utilisation is found on the machine, not computed: the terms that a plan cannot know (activation
peak, other processes, graphs) decide how high it may go.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from kvprobe.plan.request import PlanRequest
from kvprobe.plan.solve import Solution, solve_quickly
from kvprobe.summary.units import size

_RUNGS = (0.80, 0.85, 0.88, 0.90, 0.92, 0.94, 0.95, 0.96, 0.97)
_FIELD = {
    "vllm": "utilisation",
    "sglang": "mem_fraction_static",
    "trtllm": "kv_fraction",
    "lmdeploy": "kv_fraction",
}
_FLAG = {
    "vllm": "--gpu-memory-utilization",
    "sglang": "--mem-fraction-static",
    "trtllm": "--kv_cache_free_gpu_memory_fraction",
    "lmdeploy": "--cache-max-entry-count",
}
MOST_RUNGS = 5
MOST_SHARE = 0.97
"""Above this share no start is stable: the context, the display and the allocator need the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One setting. `left_bytes` is what stays outside the engine's share; `check` comes before the next."""

    setting: str
    value: float
    kv_bytes: int
    pool_tokens: int | None
    max_num_seqs: int | None
    left_bytes: int
    check: str


def smallest_utilisation(solution: Solution, tokens: int) -> float | None:
    """The smallest share, in hundredths, at which one request of `tokens` fits; above 1 when none does."""
    budget, request = solution.budget, solution.request
    total, kv = budget.total.value, budget.kv.value
    if request.engine != "vllm" or request.available_kv is not None or total is None or kv is None:
        return None
    if budget.utilisation.value is None:
        return None
    middle = budget.utilisation.value.nominal - kv.nominal
    taken = budget.utilisation.value.lo - kv.lo if budget.kv.banded else middle
    share = math.ceil((taken + solution.cost.bytes_at(tokens)) / total.nominal * 100)
    while (budget.utilisation.ratio or 0) * 100 < share <= MOST_SHARE * 100:
        if _fits_at(request, share / 100, tokens):  # blocks of a hybrid take more than its logical bytes
            break
        share += 1
    return share / 100


def _fits_at(request: PlanRequest, share: float, tokens: int) -> bool:
    solved = solve_quickly(dataclasses.replace(request, utilisation=share))
    return solved.safe_pool is not None and solved.requests_in(solved.safe_pool, tokens) > 0


def ladder(solution: Solution) -> tuple[Rung, ...]:
    """Rungs from the first that fits a request (or the present setting) upwards; none where the engine has
    no such setting or the memory was given directly."""
    request = solution.request
    engine = request.engine or ""
    total = solution.budget.total.value
    if (
        engine not in _FIELD
        or request.available_kv is not None
        or total is None
        or solution.budget.kv.value is None
    ):
        return ()
    present = solution.budget.utilisation.ratio or 0.9
    least = smallest_utilisation(solution, solution.wanted_tokens())
    first = present if least is None or not present < least <= MOST_SHARE else least
    values = sorted({first, *(rung for rung in _RUNGS if rung > first)})
    rungs = [_rung(request, engine, value, total.nominal) for value in values]
    found = [rung for rung in rungs if rung is not None and rung.kv_bytes > 0]
    return tuple(_with_checks(found[:MOST_RUNGS]))


def _rung(request: PlanRequest, engine: str, value: float, total: int) -> Rung | None:
    changes = {_FIELD[engine]: value}
    solved = solve_quickly(dataclasses.replace(request, **changes))  # type: ignore[arg-type]
    kv, pool = solved.budget.kv.value, solved.safe_pool
    if kv is None or pool is None:
        return None
    held = solved.safe_capacity
    return Rung(
        setting=f"{_FLAG[engine]} {value:g}",
        value=value,
        kv_bytes=kv.lo if solved.banded else kv.nominal,
        pool_tokens=pool.tokens if pool.tokens is not None else pool.full_tokens,
        max_num_seqs=held.spread.max_num_seqs if held.spread is not None else held.max,
        left_bytes=int(total * (1 - value)),
        check="",
    )


def _with_checks(rungs: list[Rung]) -> list[Rung]:
    checks = (
        (
            "start it and compare the cache size in its log with this row; a smaller one means a "
            "term of the budget is larger"
        ),
        (
            "send one request of the longest kind, then the P95 load for ten minutes: no "
            "out-of-memory error, no preemption"
        ),
        "send the longest prompts together: free memory (nvidia-smi) stays above 0.5 GiB at the peak",
        (
            "run for an hour, restart once under load; other processes of the card count: stay "
            "here if anything failed"
        ),
    )
    out = []
    for number, rung in enumerate(rungs):
        left = f" ({size(rung.left_bytes)} of the card stay outside)"
        out.append(dataclasses.replace(rung, check=checks[min(number, len(checks) - 1)] + left))
    return out
