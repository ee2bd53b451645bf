"""Step times fitted to a run directory: what its requests' tokens and first tokens took.

Two regressions without negative terms, over requests that ended well and had no failure:

1. gaps between tokens while no prompt was under way: gap = fixed + kv x contexts of all that decoded;
2. times to first token of prompts that had no other prompt beside them: TTFT = one step's wait + steps of the
   prompt; what is left by its length is the time of a token, by its square that of a query-key pair.

The fit is of the client's times: the network and the server's front end lie in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvprobe.errors import Problem, UsageError
from kvprobe.evidence.rundata import RunData, load_run
from kvprobe.plan.simulate.cost import StepCost

Floats = NDArray[np.float64]
LEAST_REQUESTS = 8
MOST_POINTS = 20_000
DEFAULT_BUDGET_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Seen:
    """Columns of a run's good requests; seconds from the first one."""

    sent: Floats
    first: Floats
    last: Floats
    prompt: Floats
    cached: Floats
    gaps: list[Floats]

    def __len__(self) -> int:
        return len(self.sent)


def fit_run(path: Path, budget_tokens: int = DEFAULT_BUDGET_TOKENS) -> StepCost:
    """The cost of a step on the server of that run. Raises UsageError where its requests do not tell."""
    return fit_data(load_run(path), name=path.name, budget_tokens=budget_tokens)


def fit_data(run: RunData, *, name: str, budget_tokens: int = DEFAULT_BUDGET_TOKENS) -> StepCost:
    """The same of a run that is loaded; `budget_tokens` is the most that its server computed in a step."""
    seen = _seen(run)
    if len(seen) < LEAST_REQUESTS:
        raise _too_little(name, f"{len(seen)} requests that ended well and have gaps between tokens")
    fixed, kv, spread = _decode(seen, name)
    token, pair = _prefill(seen, fixed, kv, budget_tokens)
    notes = [
        f"fitted to {len(seen):,} requests of {name}: the network and the front end are in them",
        f"decode gaps of that run deviate by {spread:.0%} from the fit (median)",
    ]
    if any(r.failure is None and r.cached_tokens is None for r in run.records):
        notes.append(
            "that run does not say what its prompts found in the cache: if they found much, a token takes "
            "longer than this, and waits are longer"
        )
    return StepCost(
        fixed_s=fixed,
        token_s=token,
        kv_token_s=kv,
        pair_s=pair,
        source=f"fitted to {name}",
        notes=tuple(notes),
    )


def _seen(run: RunData) -> Seen:
    good = [
        r
        for r in run.records
        if r.failure is None
        and not r.warmup
        and r.sent_ns is not None
        and r.first_token_ns is not None
        and r.last_token_ns is not None
        and r.prompt_tokens
        and len(r.gaps_ns) > 1
    ]
    start = min((r.sent_ns or 0 for r in good), default=0)

    def column(values: list[int]) -> Floats:
        return (np.array(values, dtype=np.int64) - start) / 1e9

    return Seen(
        sent=column([r.sent_ns or 0 for r in good]),
        first=column([r.first_token_ns or 0 for r in good]),
        last=column([r.last_token_ns or 0 for r in good]),
        prompt=np.array([r.prompt_tokens or 0 for r in good], dtype=float),
        cached=np.array([r.cached_tokens or 0 for r in good], dtype=float),
        gaps=[np.array(r.gaps_ns) / 1e9 for r in good],
    )


def _decode(seen: Seen, name: str) -> tuple[float, float, float]:
    """Fixed seconds of a step, seconds a KV token, and the median relative error of the gaps."""
    at, gap = _gap_points(seen)
    quiet = _under_way(seen.sent, seen.first, at) == 0
    if quiet.sum() < LEAST_REQUESTS:
        quiet = np.ones(len(at), dtype=bool)
    at, gap = at[quiet], gap[quiet]
    if len(at) < LEAST_REQUESTS:
        raise _too_little(name, f"{len(at)} gaps between tokens")
    contexts = _contexts(seen, at)
    # Bins of contexts, the median gap of each: a stall of the machine must not bend the line.
    edges = np.unique(np.quantile(contexts, np.linspace(0, 1, 25)))
    place = np.clip(np.searchsorted(edges, contexts, side="right") - 1, 0, max(len(edges) - 2, 0))
    kinds = np.unique(place)
    x = np.array([np.median(contexts[place == kind]) for kind in kinds])
    y = np.array([np.median(gap[place == kind]) for kind in kinds])
    weight = np.sqrt([float((place == kind).sum()) for kind in kinds])
    fixed, kv = not_negative(np.column_stack((np.ones(len(x)), x)), y, weight)
    modelled = fixed + kv * contexts
    return fixed, kv, float(np.median(np.abs(modelled - gap) / np.maximum(gap, 1e-9)))


def _gap_points(seen: Seen) -> tuple[Floats, Floats]:
    """Middles and lengths of gaps between tokens; of very many, some at even distances."""
    at, gap = [], []
    for first, gaps in zip(seen.first, seen.gaps, strict=True):
        ends = first + np.cumsum(gaps)
        at.append(ends - gaps / 2)
        gap.append(gaps)
    ats, gaps_all = np.concatenate(at), np.concatenate(gap)
    step = max(1, len(ats) // MOST_POINTS)
    return ats[::step], gaps_all[::step]


def _under_way(begin: Floats, end: Floats, at: Floats) -> NDArray[np.int64]:
    """How many intervals hold each instant."""
    return np.searchsorted(np.sort(begin), at, side="right") - np.searchsorted(np.sort(end), at, side="right")


def _contexts(seen: Seen, at: Floats) -> Floats:
    """Tokens of KV that all decoding requests hold at each instant.

    A request has its prompt at its first token and grows evenly to its last one: two sums over those that
    have begun, less the same over those that have ended.
    """
    length = np.maximum(seen.last - seen.first, 1e-9)
    speed = np.array([len(gaps) for gaps in seen.gaps]) / length
    base = seen.prompt - speed * seen.first

    def total(edges: Floats) -> Floats:
        order = np.argsort(edges)
        place = np.searchsorted(edges[order], at, side="right")
        bases = np.concatenate(([0.0], np.cumsum(base[order])))
        speeds = np.concatenate(([0.0], np.cumsum(speed[order])))
        found: Floats = bases[place] + speeds[place] * at
        return found

    return np.maximum(total(seen.first) - total(seen.last), 0.0)


def _prefill(seen: Seen, fixed: float, kv: float, budget_tokens: int) -> tuple[float, float]:
    """Seconds of a prompt's token and of a query-key pair."""
    new = np.maximum(seen.prompt - seen.cached, 1.0)
    beside = np.array(
        [
            ((seen.sent < last) & (seen.first > begin)).sum() - 1
            for begin, last in zip(seen.sent, seen.first, strict=True)
        ]
    )
    # A prompt that was computed beside others has waited for them: take those with the fewest beside.
    few = beside <= max(0, int(np.quantile(beside, 0.25)))
    waits = fixed + kv * _contexts(seen, seen.sent)
    decoding = _under_way(seen.first, seen.last, seen.sent) > 0
    steps = np.ceil(new / budget_tokens)
    left = seen.first - seen.sent - waits * (steps + decoding / 2)
    left = np.maximum(left / (1 + beside), 0.0)[few]
    pairs = (new * seen.cached + new * (new + 1) / 2)[few]
    token, pair = not_negative(np.column_stack((new[few], pairs)), left, 1 / np.maximum(new[few], 1.0))
    return token, pair


def not_negative(columns: Floats, target: Floats, weight: Floats) -> tuple[float, float]:
    """Weighted least squares of two columns, neither coefficient below zero; columns are scaled first."""
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    best, error = np.zeros(2), float("inf")
    for kept in (*combinations(range(2), 2), (0,), (1,)):
        part = columns[:, kept] / scale[list(kept)]
        found, *_ = np.linalg.lstsq(part * weight[:, None], target * weight, rcond=None)
        left = float((((part @ found) - target) ** 2 * weight**2).sum())
        if (found >= 0).all() and left < error:
            best, error = np.zeros(2), left
            best[list(kept)] = found / scale[list(kept)]
    return float(best[0]), float(best[1])


def _too_little(name: str, what: str) -> UsageError:
    fix = f"fit to a run with at least {LEAST_REQUESTS} streamed requests of several tokens each"
    return UsageError(Problem("fit_too_little", f"--fit: {name} has {what}", fix))
