"""From values to places on a chart, with the marks that a person would choose."""

from __future__ import annotations

import math
import unicodedata
from dataclasses import dataclass

FEWEST = 3
"""Values on a logarithmic axis: with fewer nobody can read it."""


@dataclass(frozen=True, slots=True)
class Scale:
    """`lo..hi` (values) to `start..end` (pixels), linear or logarithmic."""

    lo: float
    hi: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        if self.log:
            low, high = math.log(self.lo), math.log(self.hi)
            part = (math.log(max(value, self.lo)) - low) / (high - low) if high > low else 0.5
        else:
            part = (value - self.lo) / (self.hi - self.lo) if self.hi > self.lo else 0.5
        return self.start + min(max(part, 0.0), 1.0) * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """At most about `most` round values inside the scale."""
        return log_ticks(self.lo, self.hi, most) if self.log else linear_ticks(self.lo, self.hi, most)


def linear_ticks(lo: float, hi: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    if not hi > lo or most < 1:
        return [lo]
    step = nice_step((hi - lo) / most)
    first = math.ceil(lo / step - 1e-9)
    last = math.floor(hi / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def nice_step(raw: float) -> float:
    """The smallest 1, 2 or 5 times a power of ten that is not below `raw`."""
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw * (1 - 1e-9))


def log_ticks(lo: float, hi: float, most: int) -> list[float]:
    """Powers of ten, with 2 and 5 between them where there is room."""
    decades = range(math.floor(math.log10(lo)), math.ceil(math.log10(hi)) + 1)
    for multiples in ((1, 2, 5), (1, 3), (1,)):
        found = [m * 10.0**d for d in decades for m in multiples]
        inside = [v for v in found if lo * (1 - 1e-9) <= v <= hi * (1 + 1e-9)]
        if len(inside) < FEWEST:  # less than a decade: round steps tell more
            between = [v for v in linear_ticks(lo, hi, min(most, 5)) if v > 0]
            return between if len(between) > len(inside) else inside or [lo, hi]
        if len(inside) <= most:
            return inside
    return inside[:: math.ceil(len(inside) / max(1, most))]


def nice_top(value: float) -> float:
    """A round end of an axis that begins at 0 and holds `value`."""
    return nice_step(value / 4) * math.ceil(value / nice_step(value / 4) - 1e-9) if value > 0 else 1.0


def text_width(text: str, size_px: float) -> float:
    """About how wide `text` stands, px: generous, so that what does not overlap here does not on screen."""
    ems = sum(1.02 if unicodedata.east_asian_width(c) in "WF" else 0.6 for c in text)
    return ems * size_px
