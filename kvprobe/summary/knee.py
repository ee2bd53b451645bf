"""Where more load stops to buy throughput: the knee of a curve that was measured or published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from kvprobe.summary.sweep import Axis, Step

KNEE_ELASTICITY = 0.5
"""Of the relative rise of the load, the share that throughput still follows; below it is the knee."""
KNEE_TTFT = 1.5
KNEE_DEAR = 4.0
"""Times: TTFT that rises so much more than throughput is a knee whatever throughput does."""


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """Two neighbouring loads between which more load stops to buy throughput."""

    below: float
    above: float
    throughput_gain: float
    """Relative: 0.13 is +13 %."""
    ttft_ratio: float
    measure: Literal["tokens", "requests"]


def find_knee(steps: Sequence[Step], axis: Axis = "users") -> Knee | None:
    """The first pair of neighbours where throughput stops to follow the load and TTFT takes off.

    Null where no pair does: the knee lies above what was tried, or there is none. The relative gain
    of throughput is laid beside that of the load, ln(throughput ratio) / ln(load ratio) < 1/2, or TTFT
    rises at least four times as much as throughput (Kleinrock's power, throughput over delay, falls).
    """
    ordered = sorted((s for s in steps if s.valid), key=lambda s: s.load)
    for a, b in pairwise(ordered):
        measured = _throughputs(a, b, axis)
        first, second = a.ttft_s.get("p50", a.ttft_s.get("mean")), b.ttft_s.get("p50", b.ttft_s.get("mean"))
        if measured is None or first is None or second is None or not first.value or not second.value:
            continue
        if a.load <= 0 or b.load <= a.load:
            continue
        low, high, measure = measured
        ttft_ratio = second.value / first.value
        elasticity = math.log(high / low) / math.log(b.load / a.load)
        flat = elasticity < KNEE_ELASTICITY and not _follows_later(a, b, ordered, axis)
        dear = flat or ttft_ratio >= KNEE_DEAR * high / low
        if dear and ttft_ratio >= KNEE_TTFT:
            return Knee(
                below=a.load,
                above=b.load,
                throughput_gain=high / low - 1.0,
                ttft_ratio=ttft_ratio,
                measure=measure,
            )
    return None


def _follows_later(a: Step, b: Step, ordered: Sequence[Step], axis: Axis) -> bool:
    """Whether throughput follows the load from `a` to some load above `b`: a dip between is no knee."""
    later = [(c, found) for c in ordered if c.load > b.load and (found := _throughputs(a, c, axis))]
    return any(
        math.log(high / low) >= KNEE_ELASTICITY * math.log(c.load / a.load) for c, (low, high, _) in later
    )


def _throughputs(a: Step, b: Step, axis: Axis) -> tuple[float, float, Literal["tokens", "requests"]] | None:
    """Of rates, what was done while requests came: tokens also come after, while a backlog is worked off."""
    if axis == "users" and a.output_tokens_per_s and b.output_tokens_per_s:
        return a.output_tokens_per_s, b.output_tokens_per_s, "tokens"
    if a.served_per_s and b.served_per_s:
        return a.served_per_s, b.served_per_s, "requests"
    return None
