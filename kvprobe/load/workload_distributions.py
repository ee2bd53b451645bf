"""Distributions of lengths as a workload file writes them. Each is a quantile function in tokens."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, RootModel, model_validator
from pydantic_core import PydanticCustomError

from kvprobe.load.workload_base import MAX_TOKENS, Part, Tokens, as_tuple
from kvprobe.plan.quantiles import through

MAX_VALUES = 10_000
_QUANTILE = re.compile(r"p([0-9]{1,2}(?:\.[0-9]{1,6})?)\Z")


class Lognormal(Part):
    """A lognormal distribution cut off at `min` and `max` (cut, not piled up at the ends)."""

    median: Tokens = Field(description="Median before the cut, in tokens.")
    sigma: float = Field(gt=0, le=5, description="Standard deviation of the logarithm (no unit).")
    min: Tokens = Field(description="Smallest value, in tokens.")
    max: Tokens = Field(description="Largest value, in tokens.")

    @model_validator(mode="after")
    def _ordered(self) -> Lognormal:
        if not self.min <= self.median <= self.max:
            message, fix = "`median` must lie between `min` and `max`", "write min <= median <= max"
            raise PydanticCustomError("bad_value", message, {"fix": fix})
        return self

    def quantile(self, u: float) -> int:
        """The value at probability `u` of the distribution cut to [min, max]."""
        normal = NormalDist(math.log(self.median), self.sigma)
        low = normal.cdf(math.log(self.min - 0.5))
        high = normal.cdf(math.log(self.max + 0.5))
        p = min(max(low + u * (high - low), 1e-12), 1 - 1e-12)
        return min(max(round(math.exp(normal.inv_cdf(p))), self.min), self.max)

    def largest(self) -> int:
        """The largest value that can come, in tokens."""
        return self.max


def _knots(value: Any) -> Any:
    """The keys of a mapping of quantiles, judged where they are wrong."""
    if not isinstance(value, dict):
        fix = "write {p50: 500, p95: 2000, max: 8000}"
        raise PydanticCustomError(
            "bad_length", "`quantiles` is a mapping of quantiles to tokens", {"fix": fix}
        )
    for key, tokens in value.items():
        match = _QUANTILE.match(str(key))
        if key not in ("min", "max") and (match is None or not 0 < float(match[1]) < 100):
            context = {"what": f"`{key}` is no quantile", "fix": "write p50, p95 or p99.9; also min and max"}
            raise PydanticCustomError("bad_value", "{what}", context | {"key": (key,)})
        if type(tokens) is not int or not 1 <= tokens <= MAX_TOKENS:
            context = {"what": f"`{key}` is no number of tokens", "fix": f"write 1 to {MAX_TOKENS:,}"}
            raise PydanticCustomError("bad_value", "{what}", context | {"key": (key,)})
    return value


class Quantiles(RootModel[Annotated[dict[str, int], BeforeValidator(_knots)]]):
    """Tokens that shares of the requests do not exceed, such as p50 and p95; `max` is the longest."""

    model_config = {"frozen": True, "strict": True}

    @model_validator(mode="after")
    def _complete(self) -> Quantiles:
        named = self._named()
        twice = next((q for (q, _), (later, _) in pairwise(named) if q == later), None)
        if twice is not None:
            context = {"what": f"`p{100 * twice:g}` is given twice", "fix": "keep one of them"}
            raise PydanticCustomError("bad_value", "{what}", context)
        if len(named) < 1 or "max" not in self.root:
            fix = "write {p50: 500, p95: 2000, max: 8000}"
            raise PydanticCustomError(
                "bad_value", "`quantiles` needs a `max` and at least one quantile", {"fix": fix}
            )
        tokens = [self.root.get("min", 1), *(value for _, value in named), self.root["max"]]
        if any(a > b for a, b in pairwise(tokens)):
            fix = "order them: a higher quantile is a longer request"
            raise PydanticCustomError("bad_value", "these quantiles fall", {"fix": fix})
        return self

    def _named(self) -> list[tuple[float, int]]:
        named = ((float(key[1:]) / 100, value) for key, value in self.root.items() if key.startswith("p"))
        return sorted(named)

    @cached_property
    def _function(self) -> Any:
        knots = [(q, float(value)) for q, value in self._named()]
        return through(knots, float(self.root.get("min", 1)), float(self.root["max"]))

    def quantile(self, u: float) -> int:
        """The value at probability `u`: between two quantiles ln(tokens) is linear in the normal score."""
        low, high = self.root.get("min", 1), self.root["max"]
        value: float = self._function(min(max(u, 1e-12), 1 - 1e-12))
        return min(max(round(value), low), high)

    def largest(self) -> int:
        """The largest value that can come, in tokens."""
        return self.root["max"]


class Empirical(Part):
    """Lengths that were seen: `values` with `weights`, or a column of a trace."""

    values: Annotated[tuple[Tokens, ...], BeforeValidator(as_tuple)] | None = Field(
        default=None, min_length=1, max_length=MAX_VALUES, description="Lengths, in tokens."
    )
    weights: (
        Annotated[tuple[Annotated[float, Field(ge=0, le=1e12)], ...], BeforeValidator(as_tuple)] | None
    ) = Field(
        default=None,
        description="How often each value comes, relative to the others (no unit); all alike if left out.",
    )
    trace: str | None = Field(
        default=None, min_length=1, max_length=4096, description="A trace file, in place of `values`."
    )
    column: Literal["in", "out"] | None = Field(
        default=None, description="Of `trace`: the lengths of its prompts (`in`) or of its answers (`out`)."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Empirical:
        if (self.values is None) == (self.trace is None):
            _refuse(
                "`empirical` takes exactly one of `values` and `trace`", "write {values: [100, 200, 900]}"
            )
        if self.trace is not None and self.column is None:
            _refuse("`trace` needs a `column`", "write `column: in` (prompts) or `column: out` (answers)")
        if self.trace is None and self.column is not None:
            _refuse("`column` belongs to `trace`", "leave it out")
        if self.weights is not None:
            if self.values is None or len(self.weights) != len(self.values):
                _refuse("there must be one weight for each value", "write as many weights as values")
            if not sum(self.weights) > 0:
                _refuse("all weights are 0", "give at least one value a weight")
        return self

    @cached_property
    def _table(self) -> tuple[list[int], list[float]]:
        """Lengths in order, and the summed share of requests up to each."""
        if self.trace is not None:
            return trace_lengths(self.trace, self.column or "in")
        assert self.values is not None
        return _summed(dict_of(self.values, self.weights or (1.0,) * len(self.values)))

    def quantile(self, u: float) -> int:
        """The value at probability `u`: one of those that were seen."""
        tokens, sums = self._table
        return tokens[min(bisect_right(sums, u), len(tokens) - 1)]

    def largest(self) -> int:
        """The largest value that can come, in tokens."""
        return self._table[0][-1]


def _refuse(what: str, fix: str) -> None:
    raise PydanticCustomError("bad_value", "{what}", {"what": what, "fix": fix})


def dict_of(values: tuple[int, ...], weights: tuple[float, ...]) -> dict[int, float]:
    """Weight of each value; values without a weight are left out."""
    found: dict[int, float] = {}
    for value, weight in zip(values, weights, strict=True):
        if weight > 0:
            found[value] = found.get(value, 0.0) + weight
    return found


def _summed(weights: dict[int, float]) -> tuple[list[int], list[float]]:
    tokens = sorted(weights)
    total = math.fsum(weights.values())
    return tokens, [s / total for s in accumulate(weights[t] for t in tokens)]


@lru_cache(maxsize=8)
def trace_lengths(path: str, column: str) -> tuple[list[int], list[float]]:
    """Lengths in a trace in order, and the summed share of requests up to each.

    Raises UsageError for a file that is no trace, or that holds a length above `MAX_TOKENS`.
    """
    from kvprobe.traces.read import open_trace
    from kvprobe.traces.rows import trace_error

    counts: dict[int, float] = {}
    for row in open_trace(Path(path), lengths_only=True).rows():
        tokens = row.in_tokens if column == "in" else row.out_tokens
        if tokens > MAX_TOKENS:
            why = f"has a length of more than {MAX_TOKENS:,} tokens"
            raise trace_error(path, why, "drop that row", row.line)
        counts[tokens] = counts.get(tokens, 0.0) + 1.0
    if not counts:
        raise trace_error(path, "holds no request with tokens", "give a trace with prompt and answer tokens")
    return _summed(counts)
