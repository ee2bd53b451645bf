"""Sizes as GPU frameworks print them: all are powers of 1024, whatever the unit is called.

PyTorch's `format_size` prints bytes, KiB, MiB and GiB; MPS and vLLM print "GB" and "MB" for the same
powers (the sums in their own lines show it).
"""

from __future__ import annotations

from typing import Final

SIZE: Final = r"(?<![\d.])(-?\d[\d,]{0,24}(?:\.\d{1,6})?) ?(bytes|B|[KMGT]i?B)(?![\w/])"
"""Two groups: the number, the unit."""

_POWER: Final = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def to_bytes(number: str, unit: str) -> int:
    """`("14.62", "GiB")` -> bytes, rounded."""
    factor: int = 1024 ** _POWER[unit[0].lower()]
    return round(float(number.replace(",", "")) * factor)
