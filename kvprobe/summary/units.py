"""Numbers as a person reads them. Null never reaches these functions: say why instead."""

from __future__ import annotations

_BINARY = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def seconds(value: float) -> str:
    """`12.3 ms`, `1.24 s`, `850 us`: three figures, the unit that keeps them readable."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f} s"
    if size >= 1:
        return f"{value:.2f} s" if size < 9.995 else f"{value:.1f} s"
    if size >= 1e-3:
        return f"{figures(value * 1e3)} ms"
    return f"{figures(value * 1e6)} us" if value else "0 ms"


MOST_PERCENT = 1_000_000
"""Whatever says more is no share, and its digits mean nothing."""


def figures(value: float) -> str:
    """Three figures without an exponent."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def percent(ratio: float) -> str:
    """`92.9 %`, `0.00 %`; two figures after the point only where they say something."""
    value = 100 * ratio
    if abs(value) >= MOST_PERCENT:
        return f"over {MOST_PERCENT:,} %"
    if abs(value) >= 1000:
        return f"{value:,.0f} %"
    return f"{value:.1f} %" if abs(value) >= 1 or value == 0 else f"{value:.2f} %"


def whole(value: float) -> str:
    """`12,345`"""
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes in binary units, named as such."""
    for unit, factor in _BINARY:
        if abs(value) >= factor:
            return f"{figures(value / factor)} {unit}"
    return f"{value:,.0f} B"


def plural(n: int, noun: str) -> str:
    """`1 request`, `2 requests`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
