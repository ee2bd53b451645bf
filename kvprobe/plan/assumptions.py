"""What a plan takes for granted, in sentences."""

from __future__ import annotations

from kvprobe.plan.solve import Solution
from kvprobe.summary.units import whole


def assumptions_of(solution: Solution) -> list[str]:
    """Everything that was not said by the user and not read from a file."""
    request, spec = solution.request, solution.request.spec
    found = list(spec.assumptions)
    if not spec.verified:
        found.append(f"the reading of `{spec.family}` was not checked against a published log")
    if request.total_note:
        found.append(request.total_note)
    if request.lengths is not None:
        found += request.lengths.assumptions
        found.append("requests are independent and all at full growth at the same time: the cautious reading")
        if request.lengths.source.startswith("trace"):
            found.append(
                "these counts use the trace's lengths alone; arrivals, reuse and preemptions are in `replay`"
            )
    if solution.pool is not None:
        found += solution.pool.assumptions
    if request.shared_prefix_tokens:
        found.append(
            f"the first {whole(request.shared_prefix_tokens)} tokens of every request are the "
            "same and stay cached"
        )
    if request.ranks > 1 and request.weights is None and solution.budget.weights.value is not None:
        found.append(f"weights are split evenly over {request.ranks} GPUs")
    if request.options.pp > 1:
        found.append(f"the cache of pipeline stage {solution.cost.stage} is shown: the costliest one")
    if solution.budget.kv.value is not None and request.available_kv is None:
        found.append("nothing else uses the card; memory counted is per GPU")
    return list(dict.fromkeys(found))
