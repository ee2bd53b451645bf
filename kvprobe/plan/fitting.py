"""The chance that n requests of a length distribution fit at the same time.

Requests are drawn independently, each at full growth: the sum of n draws is compared with the pool. That is
the cautious reading: while requests run, most are not fully grown yet.

The distribution of the sum is the n-fold convolution of one request's cost, taken as the n-th power of its
characteristic function (Fourier transform on a grid of cells). Up to `MAX_CELLS` the cells are the engine's
own blocks and the result is exact but for rounding of the last digits. A larger pool is divided into
so many cells, and a cost between two cells is split over both in proportion: its mean is kept exactly and
its variance grows by at most a quarter of a cell squared, so the answer errs to the cautious side. The grid
spans eight pools; sums beyond it would wrap around, which for costs of at most one pool has a probability
below 1e-6 (Bennett's inequality) wherever the pool is not hopelessly small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

MAX_CELLS = 16_000
QUICK_CELLS = 4_000
SPAN = 8
NEGLIGIBLE = -44.0
"""Natural logarithm of a power too small to matter: 8e-20, and there are 65,000 of them at most."""
LEVELS = (0.5, 0.9, 0.95, 0.99, 0.999)


@dataclass(slots=True)
class Fitting:
    """P(n requests fit) for one distribution of costs and one capacity, both in the same units."""

    costs: Sequence[int]
    weights: Sequence[float]
    capacity: int
    cells: int = MAX_CELLS
    exact: bool = True
    mean: float = 0.0
    _known: dict[int, float] = field(default_factory=dict)
    _log: Any = None
    _window: Any = None

    def __post_init__(self) -> None:
        self.mean = math.fsum(c * w for c, w in zip(self.costs, self.weights, strict=True))
        self.exact = self.capacity <= self.cells or len(self.costs) == 1

    def probability(self, n: int) -> float:
        """P(the sum of n costs is at most the capacity)."""
        if n <= 0:
            return 1.0
        if len(self.costs) == 1:
            return 1.0 if n * self.costs[0] <= self.capacity else 0.0
        if n not in self._known:
            self._known[n] = self._convolved(n)
        return self._known[n]

    def largest(self, level: float) -> int:
        """The largest n with P(fit) >= level; 0 when not even one request fits so surely."""
        if self.mean <= 0:
            return 0
        if self.probability(1) < level:
            return 0
        low, step = 1, 1
        guess = max(1, self._guess(level))
        if self.probability(guess) >= level:
            low = guess
            while self.probability(low + step) >= level:
                low, step = low + step, step * 2
            high = low + step
        else:
            high = guess
            while high - step > 1 and self.probability(high - step) < level:
                high, step = high - step, step * 2
            low = max(1, high - step)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.probability(middle) >= level else (low, middle)
        return low

    def _guess(self, level: float) -> int:
        """Where a normal sum would put it: a start for the search, nothing more."""
        from statistics import NormalDist

        square = math.fsum(c * c * w for c, w in zip(self.costs, self.weights, strict=True))
        spread = math.sqrt(max(0.0, square - self.mean**2)) * NormalDist().inv_cdf(level)
        root = (-spread + math.sqrt(spread**2 + 4 * self.mean * self.capacity)) / (2 * self.mean)
        return int(root**2)

    def _convolved(self, n: int) -> float:
        """The n-th power of the spectrum, summed against the window; what is below 1e-19 is left out."""
        import numpy as np

        if self._log is None:
            self._prepare()
        kept = np.flatnonzero(self._log.real > NEGLIGIBLE / n)
        total = (np.exp(n * self._log[kept]) * self._window[kept]).real.sum()
        return float(np.clip(total, 0.0, 1.0))

    def _prepare(self) -> None:
        import numpy as np

        cells = min(self.capacity, self.cells)
        scale = cells / self.capacity
        grid = 1 << math.ceil(math.log2(SPAN * (cells + 1)))
        costs = np.asarray(self.costs, dtype=np.float64) * (1.0 if self.exact else scale)
        # What exceeds the pool alone never fits, however far it goes beyond.
        costs = np.minimum(costs, cells + 1)
        weights = np.asarray(self.weights, dtype=np.float64)
        floor = np.floor(costs).astype(np.int64)
        rest = costs - floor
        density = np.zeros(grid)
        np.add.at(density, floor, weights * (1 - rest))
        np.add.at(density, np.minimum(floor + 1, grid - 1), weights * rest)
        inside = np.zeros(grid)
        inside[: cells + 1] = 1.0 / grid
        with np.errstate(divide="ignore"):
            self._log = np.log(np.fft.rfft(density))
        window = np.conj(np.fft.rfft(inside))
        # The half spectrum of a real sequence: all but the first and the last count twice.
        window[1:-1] *= 2
        self._window = window
