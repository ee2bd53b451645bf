"""Whole-number helpers that every allocator uses. All exact: no floats where blocks are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction

from kvprobe.plan.pool import ByteRange, IntRange


def ceil_div(amount: int, unit: int) -> int:
    return -(-amount // unit)


def round_up(amount: int, unit: int) -> int:
    return ceil_div(amount, unit) * unit


def whole_bytes(amount: Fraction | int) -> int:
    """Bytes of a tensor whose size in a packed format may be a fraction until it is laid out."""
    return ceil_div(Fraction(amount).numerator, Fraction(amount).denominator)


def largest(fits: Callable[[int], bool], limit: int) -> int:
    """The largest number of 1..`limit` for which `fits` holds, 0 if none; `fits` must be monotone."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low


def spread(
    available: ByteRange, count: Callable[[int], int], corners: Iterable[int] = ()
) -> tuple[int, IntRange]:
    """A count at the nominal amount, and its range over all amounts that the rounding allows.

    `corners` are amounts between the ends where the count may turn back.
    """
    nominal = count(available.nominal)
    found = [nominal, *(count(size) for size in (available.lo, available.hi, *corners))]
    return nominal, (min(found), max(found))
