"""One part of a suite over another: the ratio of two medians, and how sure it is.

Requests of one run share the machine's mood of those seconds, which resampling them cannot see; what
the machine did from one round to the next can be seen. So an interval also covers what each round gives
alone, and with one or two rounds only a difference that no usual drift makes is called sure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from kvprobe.diagnose.suite_answer import PartView
from kvprobe.evidence.records import RequestRecord
from kvprobe.summary.quantiles import Ratio, median_ratio

_DRIFT = {0: 1.5, 1: 1.5, 2: 1.25}
"""By rounds: medians of equal runs a minute apart differ by so much on a machine that others use as well.
Two rounds, forwards and backwards, cancel a steady drift and no other; from three on the rounds themselves
show what the machine does."""

UNCHANGED = 0.15
DIFFERS = 0.05
"""A sure difference below this is what the layout of memory or the mood of a machine makes."""

Of = Callable[[RequestRecord], float | None]


def values(rows: Sequence[RequestRecord], of: Of) -> list[float]:
    return [v for r in rows if (v := of(r)) is not None]


def rounds_of(a: PartView, b: PartView) -> int:
    """Rounds that both parts have."""
    return len({run.round for run in a.runs} & {run.round for run in b.runs})


def by_rounds(above: PartView, below: PartView, of: Of, *, seed: int) -> Ratio:
    """Ratio of the medians over all rounds; the interval covers each round's own ratio too."""
    pooled = median_ratio(values(above.ok, of), values(below.ok, of), seed=seed)
    rounds = [
        median_ratio(values(a.ok, of), values(b.ok, of), seed=seed, resamples=1).value
        for a in above.runs
        for b in below.runs
        if a.round == b.round
    ]
    return widened(pooled, [value for value in rounds if value is not None])


def widened(ratio: Ratio, rounds: Sequence[float]) -> Ratio:
    """The interval stretched to cover `rounds`; a ratio without one stays without."""
    if ratio.lo is None or ratio.hi is None or len(rounds) < 2:
        return ratio
    return msgspec.structs.replace(ratio, lo=min(ratio.lo, *rounds), hi=max(ratio.hi, *rounds))


def surely_above(ratio: Ratio, rounds: int, factor: float = 1.0) -> bool:
    """Is the ratio above `factor`, drift allowed for?"""
    return ratio.lo is not None and ratio.lo > factor * _DRIFT.get(rounds, 1.0)


def surely_below(ratio: Ratio, rounds: int, factor: float = 1.0) -> bool:
    return ratio.hi is not None and ratio.hi < factor / _DRIFT.get(rounds, 1.0)


def sameness(ratio: Ratio, rounds: int) -> Literal["unchanged", "differs", "cannot_tell"]:
    """`unchanged` if the whole interval is near 1, `differs` if all of it is away from 1."""
    if ratio.lo is None or ratio.hi is None:
        return "cannot_tell"
    if ratio.lo >= 1.0 - UNCHANGED and ratio.hi <= 1.0 + UNCHANGED:
        return "unchanged"
    apart = surely_above(ratio, rounds, 1.0 + DIFFERS) or surely_below(ratio, rounds, 1.0 - DIFFERS)
    return "differs" if apart else "cannot_tell"


def interval(ratio: Ratio) -> str:
    """`4.71x [4.20, 5.12]`"""
    if ratio.value is None:
        return ratio.reason or "not known"
    if ratio.lo is None or ratio.hi is None:
        return f"{ratio.value:.2f}x ({ratio.reason})"
    return f"{ratio.value:.2f}x [{ratio.lo:.2f}, {ratio.hi:.2f}]"
