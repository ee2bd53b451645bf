"""Weights of one GPU when the tensor-parallel split changes."""

from __future__ import annotations

import dataclasses

from kvprobe.plan.pool import ByteRange
from kvprobe.plan.request import PlanRequest


def resplit(request: PlanRequest, before: int, after: int) -> PlanRequest:
    """The request with the user's `--weights` per GPU rescaled from `before` to `after` ranks.

    Weights that come from files or from the parameter count are split by the budget itself. Even split:
    what is repeated on each rank (norms, routers) is small beside the rest.
    """
    if request.weights is None:
        return request
    w = request.weights
    exact = None if w.exact is None else -(-w.exact * before // after)
    scaled = ByteRange(w.lo * before // after, -(-w.hi * before // after), exact)
    return dataclasses.replace(request, weights=scaled)
