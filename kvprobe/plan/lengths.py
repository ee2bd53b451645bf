"""Length distributions: how many tokens one request holds when it is fully grown.

A length is prompt + answer, because that is what stands in the cache just before a request ends. A
distribution is a finite list of lengths with weights: what a trace or a run directory holds as it is, what
a formula describes as quantiles at even steps. Which it is, and what was assumed, stays with the numbers.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from kvprobe.errors import Problem, UsageError
from kvprobe.plan.quantiles import STEPS, TOP, Z, between, through

TAIL_HALVINGS = 14
"""How often the last of these steps is halved: rare giants decide how many requests are safe."""
MAX_TOKENS = 2**40
_FIX = (
    "give fixed:4096, p50=1000,p95=8000,max=32000, lognormal:median=1000,p95=8000, "
    "uniform:100-4000, a trace or a run"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens per request as sorted distinct `tokens` with `weights` that sum to 1.

    `p50_tokens`, `p95_tokens` and `max_tokens` are what the specification says where it says so, else
    the distribution's own; of a formula without an end `max_tokens` is its quantile 0.99975, and `tokens` go
    beyond. `requests` is how many were counted, null for a formula.
    """

    spec: str
    source: str
    tokens: tuple[int, ...]
    weights: tuple[float, ...]
    mean_tokens: float
    p50_tokens: int
    p95_tokens: int
    max_tokens: int
    requests: int | None = None
    assumptions: tuple[str, ...] = ()

    def quantile(self, q: float) -> int:
        """The smallest length that a share `q` of requests does not exceed."""
        at = bisect_left(list(accumulate(self.weights)), q - 1e-12)
        return self.tokens[min(at, len(self.tokens) - 1)]

    def capped(self, most_tokens: int) -> Lengths:
        """The same where no request may be longer than `most_tokens` (a context limit cuts it there)."""
        counts = [min(t, most_tokens) for t in self.tokens]
        return from_counts(
            self.spec, self.source, zip(counts, self.weights, strict=True), self.requests, self.assumptions
        )

    def split(self, at_tokens: int) -> tuple[Lengths | None, Lengths | None]:
        """Requests of at most `at_tokens`, and the longer ones; null where there are none."""
        pairs = list(zip(self.tokens, self.weights, strict=True))
        short = [(t, w) for t, w in pairs if t <= at_tokens]
        long = [(t, w) for t, w in pairs if t > at_tokens]
        make = [
            from_counts(self.spec, self.source, part, None, self.assumptions) if part else None
            for part in (short, long)
        ]
        return make[0], make[1]


def from_counts(
    spec: str,
    source: str,
    pairs: Iterable[tuple[int, float]],
    requests: int | None,
    assumptions: Sequence[str] = (),
) -> Lengths:
    """A distribution of the given lengths; weights need not sum to 1. ValueError when there are none."""
    merged: dict[int, float] = {}
    for tokens, weight in pairs:
        merged[tokens] = merged.get(tokens, 0.0) + weight
    total = sum(merged.values())
    if not total:
        raise ValueError("no lengths")
    lengths = tuple(sorted(merged))
    weights = tuple(merged[t] / total for t in lengths)
    found = Lengths(
        spec=spec,
        source=source,
        tokens=lengths,
        weights=weights,
        mean_tokens=math.fsum(t * w for t, w in zip(lengths, weights, strict=True)),
        p50_tokens=0,
        p95_tokens=0,
        max_tokens=lengths[-1],
        requests=requests,
        assumptions=tuple(assumptions),
    )
    return _with_quantiles(found, found.quantile(0.5), found.quantile(0.95), lengths[-1])


def _with_quantiles(found: Lengths, p50: int, p95: int, longest: int) -> Lengths:
    import dataclasses

    return dataclasses.replace(found, p50_tokens=p50, p95_tokens=p95, max_tokens=longest)


def parse_lengths(spec: str) -> Lengths:
    """A distribution from its text, or from the trace or run directory that the text names.

    Raises UsageError that says what is wrong with the text.
    """
    from pathlib import Path

    if not spec.strip():
        raise _bad(spec, "is empty")
    kind, _, rest = spec.partition(":")
    if kind in _FORMS:
        return _FORMS[kind](spec, rest)
    path = Path(spec)
    if path.exists():
        from kvprobe.plan.traces import read_lengths

        return read_lengths(path, spec)
    if "=" in spec:
        return _quantiles(spec, spec)
    raise _bad(spec, "is neither a length specification nor a file")


def _bad(spec: str, why: str, fix: str = _FIX) -> UsageError:
    return UsageError(Problem("bad_lengths", f"--lengths: `{spec}` {why}", fix))


def _fixed(spec: str, rest: str) -> Lengths:
    tokens = _tokens(spec, rest)
    return from_counts(spec, "user", [(tokens, 1.0)], None)


def _uniform(spec: str, rest: str) -> Lengths:
    named = _pairs(spec, rest, {"min", "max"}) if "=" in rest else None
    low_text, _, high_text = rest.partition("-")
    low, high = (
        (named.get("min", 1), named.get("max", 0))
        if named is not None
        else (_tokens(spec, low_text), _tokens(spec, high_text))
    )
    if not low <= high:
        raise _bad(spec, "needs a smallest and a largest length", "write uniform:100-4000")
    return _sampled(spec, lambda q: low + q * (high - low), ())


def _lognormal(spec: str, rest: str) -> Lengths:
    """ln(tokens) is normal: given by two of median, mean, sigma, p95; cut at max where there is one."""
    named = _numbers(spec, rest, {"median", "mean", "sigma", "p50", "p95", "max"})
    if "p50" in named:
        named["median"] = named.pop("p50")
    centre = named.get("median"), named.get("mean")
    _two_and_in_order(spec, named)
    sigma = named.get("sigma")
    if sigma is None and centre[0] and "p95" in named:
        sigma = math.log(named["p95"] / centre[0]) / Z.inv_cdf(0.95)
    if sigma is None and centre[0] and centre[1]:
        sigma = math.sqrt(max(0.0, 2 * math.log(centre[1] / centre[0])))
    if sigma is None or sigma < 0 or not any(centre):
        raise _bad(spec, "does not give a lognormal", "write lognormal:median=1000,p95=8000 (or sigma=1.26)")
    mu = math.log(centre[0]) if centre[0] else math.log(centre[1] or 1) - sigma**2 / 2
    longest = named.get("max")
    if longest is not None:
        note = f"lognormal cut at its max of {longest:,.0f} tokens: longer draws count as max"
    else:
        note = f"lognormal without a max: `max` is its quantile {TOP}; longer draws count in the chances"
    return _sampled(
        spec, lambda q: min(math.exp(mu + sigma * Z.inv_cdf(q)), longest or MAX_TOKENS), (note,), named
    )


def _two_and_in_order(spec: str, named: dict[str, float]) -> None:
    """Two of median, mean, sigma and p95, no more; a max is the longest, a mean above its median."""
    shape = [name for name in ("median", "mean", "sigma", "p95") if name in named]
    if len(shape) > 2:
        raise _bad(spec, f"gives {', '.join(shape)}: two of them decide a lognormal", "leave one out")
    most = named.get("max")
    above = next((n for n in ("median", "mean", "p95") if most is not None and named.get(n, 0) > most), None)
    if above is not None:
        raise _bad(spec, f"has a max below its {above}", f"give a max of {named[above]:,.0f} or more")
    if named.get("mean", math.inf) < named.get("median", 0):
        raise _bad(spec, "has a mean below its median: no lognormal has", "check which is which")


def _quantiles(spec: str, rest: str) -> Lengths:
    """Lengths through the given quantiles: between two of them ln(tokens) is linear in the normal score."""
    named = _numbers(spec, rest, None)
    longest, shortest = named.get("max"), named.get("min", 1.0)
    knots = sorted((_share(spec, name), value) for name, value in named.items() if name not in ("min", "max"))
    if not knots:
        raise _bad(spec, "names no quantile", "write p50=1000,p95=8000,max=32000")
    if len(knots) == 1 and longest is None:
        name = f"p{100 * knots[0][0]:g}={knots[0][1]:g}"
        raise _bad(
            spec, "says nothing of the longer requests", f"write {name},max=... or fixed:{knots[0][1]:g}"
        )
    values = [shortest, *(v for _, v in knots), *([longest] if longest is not None else [])]
    if any(a > b for a, b in pairwise(values)):
        raise _bad(spec, "has quantiles that fall: a higher one is a longer request", "order them")
    notes = [between(knots, longest)]
    return _sampled(spec, through(knots, shortest, longest), notes, named)


def _sampled(
    spec: str,
    quantile: Callable[[float], float],
    assumptions: Sequence[str],
    named: dict[str, float] | None = None,
) -> Lengths:
    """The distribution at even steps of its quantile function; named quantiles stay as given."""
    points = ((min(MAX_TOKENS, max(1, round(quantile(q)))), weight) for q, weight in _steps())
    found = from_counts(spec, "user", points, None, assumptions)
    given = named or {}
    return _with_quantiles(
        found,
        round(given.get("p50", given.get("median", quantile(0.5)))),
        round(given.get("p95", quantile(0.95))),
        round(given.get("max", quantile(1 - 1e-9 if named is None else TOP))),
    )


def _steps() -> Iterator[tuple[float, float]]:
    """Where a quantile function is asked, and the weight of each point; the last step is split finely.

    With even steps alone no draw of a lognormal went beyond its quantile 0.99975, and a promise of 1 % was
    one of 1.5 %.
    """
    width = 1 / STEPS
    for number in range(STEPS - 1):
        yield (number + 0.5) * width, width
    left = 1 - width
    for _ in range(TAIL_HALVINGS):
        width /= 2
        yield left + width / 2, width
        left += width
    yield 1 - width / 2, width


def _share(spec: str, name: str) -> float:
    try:
        share = float(name.removeprefix("p")) / 100 if name.startswith("p") else -1.0
    except ValueError:
        share = -1.0
    if not 0 < share < 1:
        raise _bad(
            spec, f"names `{name}`, which is no quantile", "quantiles are p50, p95, p99.9; also min and max"
        )
    return share


def _numbers(spec: str, rest: str, allowed: set[str] | None) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in filter(None, rest.split(",")):
        name, equals, text = (word.strip() for word in part.partition("="))
        if not equals or name in found or (allowed is not None and name not in allowed):
            known = ", ".join(sorted(allowed)) if allowed else "pNN, min, max"
            raise _bad(spec, f"holds `{part.strip()}`", f"write name=number once each, of: {known}")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and 0 < value <= MAX_TOKENS):
            raise _bad(spec, f"has no positive number after `{name}=`")
        found[name] = value
    return found


def _pairs(spec: str, rest: str, allowed: set[str]) -> dict[str, int]:
    return {name: round(value) for name, value in _numbers(spec, rest, allowed).items()}


def _tokens(spec: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) <= MAX_TOKENS):
        raise _bad(spec, f"has no whole number of tokens in `{text}`")
    return int(text)


_FORMS: dict[str, Callable[[str, str], Lengths]] = {
    "fixed": _fixed,
    "uniform": _uniform,
    "lognormal": _lognormal,
    "quantiles": _quantiles,
}
