"""The lines of a budget and their arithmetic: sums carry ranges and the weakest source."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from kvprobe.plan.pool import ByteRange

Source = Literal["measured", "config", "user", "default", "table"]
_TRUST: tuple[Source, ...] = ("default", "table", "config", "measured", "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One line of the budget. `value` null: `reason` says why. `banded`: a range of what is usual, with no
    number inside it that would be better than another."""

    value: ByteRange | None = None
    source: Source = "default"
    banded: bool = False
    ratio: float | None = None
    note: str | None = None
    reason: str | None = None

    @property
    def nominal(self) -> int | None:
        return None if self.value is None or self.banded else self.value.nominal


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The waterfall. `kv` is per GPU; below zero it is kept as it is: it says how much is missing."""

    total: Term
    utilisation: Term
    weights: Term
    non_torch: Term
    activation_peak: Term
    graphs: Term
    fixed: Term
    margin: Term
    kv: Term
    rule: str = ""
    free: Term = field(default_factory=Term)

    NAMES = (
        "total",
        "utilisation",
        "weights",
        "non_torch",
        "activation_peak",
        "graphs",
        "fixed",
        "margin",
        "kv",
    )

    def terms(self) -> Iterable[tuple[str, Term]]:
        return ((name, getattr(self, name)) for name in self.NAMES)


def scaled(term: Term, share: Fraction) -> Term:
    value = term.value
    if value is None:
        return term
    exact = None if value.exact is None else math.floor(value.exact * share)
    lo, hi = math.floor(value.lo * share), math.floor(value.hi * share)
    return Term(value=ByteRange(lo, hi, exact), source=term.source, banded=term.banded)


def difference(whole: Term, parts: list[Term]) -> Term:
    """`whole` less `parts`: a range when any of them is one, null when any of them is not known."""
    terms = [whole, *parts]
    missing = next((t.reason for t in terms if t.value is None), None)
    if whole.value is None or missing is not None or any(t.value is None for t in parts):
        return Term(reason=missing or "a term of the budget is not known")
    taken = [t.value for t in parts if t.value is not None]
    lo = whole.value.lo - sum(v.hi for v in taken)
    hi = whole.value.hi - sum(v.lo for v in taken)
    exact = None
    if whole.value.exact is not None and all(v.exact is not None for v in taken):
        exact = whole.value.exact - sum(v.exact or 0 for v in taken)
    return Term(value=ByteRange(lo, hi, exact), source=weakest(terms), banded=any(t.banded for t in terms))


def weakest(terms: Iterable[Term]) -> Source:
    """The least certain of the sources: a sum is no better known than its worst term."""
    return min((t.source for t in terms if t.value is not None), key=_TRUST.index, default="default")
