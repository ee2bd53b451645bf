"""What the plan costs, by the hour and by the million tokens."""

from __future__ import annotations

from kvprobe.plan.document import CostPart
from kvprobe.plan.solve import Solution

SECONDS_PER_HOUR = 3_600
MILLION = 1_000_000


def per_million(per_hour: float, tokens_per_s: float) -> float:
    """Price of a million tokens at full load: price of an hour over the tokens of an hour, in millions."""
    return per_hour / (tokens_per_s * SECONDS_PER_HOUR) * MILLION


def cost_of(solution: Solution) -> CostPart | None:
    """Null without --price-per-hour. A plan knows memory, not speed: that of tokens is measured."""
    request = solution.request
    if request.price_per_hour is None:
        return None
    per_hour = request.price_per_hour * request.ranks
    held = solution.safe_capacity
    requests = held.spread.max_num_seqs if held.spread is not None else held.max
    kv = solution.budget.kv.value
    speed = request.output_tokens_per_s
    memory = None if kv is None or kv.lo <= 0 else per_hour / (request.ranks * kv.lo / 2**30)
    note = "at full load; a reservation costs the same when it idles"
    if speed is None:
        note = "the price of tokens needs a measured speed: give --output-tokens-per-s"
    return CostPart(
        gpus=request.ranks,
        per_hour=per_hour,
        per_request_hour=per_hour / requests if requests else None,
        per_gib_hour_of_kv=memory,
        per_million_output_tokens=None if not speed else per_million(per_hour, speed),
        note=note,
    )
