"""Step times fitted to a run directory: what its steps took, by what they computed.

One regression without negative terms over the steps that the run's tokens show (`seen_steps`):

    seconds = steps x fixed + tokens x token + KV tokens read x kv + query-key pairs x pair (+ front)

`front` is what a request spends before the server's first step on it and after the last: network, parsing,
the client. It is told from prompts that came to an idle server, and belongs to a request, not to a step.

Residuals are weighed by 1 / (seconds that the fit gives): the fitted seconds then add up to the measured
ones, which is what decides how long a queue grows.
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
from kvprobe.plan.simulate.seen import Floats, Seen, seen
from kvprobe.plan.simulate.seen_steps import Steps, steps_of

LEAST_REQUESTS = 8
LEAST_STEPS = 30
MOST_STEPS = 50_000
LEAST_FRONTS = 5
UNLIKE = 4.0
"""A step that takes so many times what the fit gives, or so little of it, is left out: the machine stalled,
or a prompt's part was laid into the wrong step."""
MOST_DEVIATION = 0.5
ROUNDS = 12
SEEN_QUANTILE = 0.99
"""Of the steps by how many decoded: a load that hardly occurred has not been seen."""
DEFAULT_BUDGET_TOKENS = 512
PAIRS, FRONT = 3, 4


@dataclass(frozen=True, slots=True)
class _Fit:
    terms: Floats
    """Seconds: a step, a token, a KV token, a pair, a request's front."""
    deviation: float
    """Median of |fitted - measured| / measured over the steps."""
    steps: int
    unlike: int
    measured_s: float
    unlike_s: float
    """What those took beyond the fit, together; negative where they took less."""


def fit_run(path: Path, budget_tokens: int = DEFAULT_BUDGET_TOKENS) -> StepCost:
    """The cost of a step on the server of that run. Raises UsageError where its requests do not tell."""
    return fit_data(load_run(path), name=path.name, budget_tokens=budget_tokens)


def fit_data(run: RunData, *, name: str, budget_tokens: int = DEFAULT_BUDGET_TOKENS) -> StepCost:
    """The same of a run that is loaded; `budget_tokens` is the most that its server computed in a step."""
    of = seen(run.records, run.opened)
    streamed = int(
        sum(len(one) > 2 for one, at in zip(of.stamps, of.sent, strict=True) if at >= of.warmup_until)
    )
    odd = f" ({_odd(of)})" if of.odd else ""
    if streamed < LEAST_REQUESTS:
        what = f"{streamed} requests that ended well after the warm-up and have gaps between tokens"
        raise _too_little(name, what + odd)
    steps = steps_of(of, budget_tokens)
    if len(steps) < LEAST_STEPS:
        clouded = (
            f"; {len(of.clouded):,} requests took part that do not tell their work" if of.clouded else ""
        )
        raise _too_little(name, f"{len(steps)} steps that can be told apart{clouded}{odd}")
    found = _fit(steps)
    _check(found, name, budget_tokens)
    fixed, token, kv, pair, front = (float(term) for term in found.terms)
    return StepCost(
        fixed_s=fixed,
        token_s=token,
        kv_token_s=kv,
        pair_s=pair,
        front_s=front,
        source=f"fitted to {name}",
        notes=tuple(_notes(run, of, found, name)),
        seen_running=max(1, round(float(np.quantile(steps.decoders, SEEN_QUANTILE)))),
    )


def _check(found: _Fit, name: str, budget_tokens: int) -> None:
    """Raises UsageError where no cost of steps describes the run: a wrong one is worse than none."""
    fixed, token = float(found.terms[0]), float(found.terms[1])
    if not np.isfinite(found.terms).all() or fixed + token <= 0:
        why = "its steps would take no time"
    elif found.deviation > MOST_DEVIATION:
        why = f"they deviate by {found.deviation:.0%} from the best fit (median)"
    elif abs(found.unlike_s) > found.measured_s / 2:
        why = (
            f"{found.unlike_s:+.2g} s of the {found.measured_s:.2g} s in its steps are not explained by work"
        )
    else:
        return
    fix = (
        f"give --max-num-batched-tokens as the server of that run had it ({budget_tokens:,} is taken), "
        "or fit to another run: one without a proxy that holds answers back, on a machine that does not stall"
    )
    raise UsageError(Problem("fit_bad", f"--fit: no step time describes {name}: {why}", fix))


def _odd(of: Seen) -> str:
    return f"{of.odd:,} that ended well are left out: their counts or stamps are missing or cannot be"


def _notes(run: RunData, of: Seen, found: _Fit, name: str) -> list[str]:
    notes = [
        f"fitted to {found.steps:,} steps of {of.requests:,} requests of {name}, as its client saw them",
        f"the steps of that run deviate by {found.deviation:.0%} from the fit (median)",
    ]
    if of.odd:
        notes.append(_odd(of))
    if found.unlike:
        notes.append(
            f"{found.unlike:,} steps that took over {UNLIKE:g} times what the fit gives, or under "
            f"1/{UNLIKE:g} of it, are left out ({found.unlike_s:+.2g} s together)"
        )
    if any(r.failure is None and r.cached_tokens is None for r in run.records):
        notes.append(
            "that run does not say what its prompts found in the cache: if they found much, a token takes "
            "longer than this, and waits are longer"
        )
    return notes


def _fit(steps: Steps) -> _Fit:
    """Weighted least squares; weights, and what is left out, from the round before."""
    every = max(1, len(steps) // MOST_STEPS)
    columns, seconds = steps.terms()[::every], steps.seconds[::every]
    if columns[:, FRONT].sum() < LEAST_FRONTS:
        kept = columns[:, FRONT] == 0
        columns, seconds = columns[kept], seconds[kept]
    likely = np.maximum(seconds, float(np.median(seconds)))
    usual = np.ones(len(seconds), dtype=bool)
    terms = np.zeros(columns.shape[1])
    for _ in range(ROUNDS):
        terms = not_negative(columns[usual], seconds[usual], 1 / np.sqrt(likely[usual]))
        likely = np.maximum(columns @ terms, 1e-7)
        usual = (seconds <= UNLIKE * likely) & (seconds >= likely / UNLIKE)
    deviation = float(np.median(np.abs(likely - seconds) / seconds))
    unlike_s = float((seconds - likely)[~usual].sum())
    return _Fit(terms, deviation, len(seconds), int((~usual).sum()), float(seconds.sum()), unlike_s)


def not_negative(columns: Floats, target: Floats, weight: Floats) -> NDArray[np.float64]:
    """Weighted least squares, no coefficient below zero; columns are scaled first.

    By trying all sets of columns: the best of those whose solution has no negative coefficient is the
    constrained optimum, and there are five columns at most.
    """
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    scaled, aim = columns / scale * weight[:, None], target * weight
    best, error = np.zeros(columns.shape[1]), float("inf")
    used = [column for column in range(columns.shape[1]) if np.abs(columns[:, column]).max() > 0]
    gram, moment = scaled.T @ scaled, scaled.T @ aim
    for size in range(1, len(used) + 1):
        for kept in map(list, combinations(used, size)):
            found, *_ = np.linalg.lstsq(gram[np.ix_(kept, kept)], moment[kept], rcond=None)
            left = float(found @ gram[np.ix_(kept, kept)] @ found - 2 * found @ moment[kept])
            if (found >= 0).all() and left < error:
                best, error = np.zeros(columns.shape[1]), left
                best[kept] = found / scale[kept]
    return best


def _too_little(name: str, what: str) -> UsageError:
    fix = f"fit to a run with at least {LEAST_REQUESTS} streamed requests of several tokens each"
    return UsageError(Problem("fit_too_little", f"--fit: {name} has {what}", fix))
