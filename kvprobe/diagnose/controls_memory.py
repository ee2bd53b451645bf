"""What sharing a prefix does to memory; and whether two parts send what can be compared at all."""

from __future__ import annotations

from statistics import fmean, median

import numpy as np

from kvprobe.diagnose.mean_ratio import mean_ratio
from kvprobe.diagnose.model import Quantity
from kvprobe.diagnose.part_ratio import interval, widened
from kvprobe.diagnose.suite_answer import PartView, RunView, Statement
from kvprobe.summary.units import percent, size, whole

LENGTHS_DIFFER = 0.02
NO_SHARING = 0.05
"""Hit rate below which nothing was shared."""
LESS = 0.98
"""Held a sequence, over the other part's: nearer to 1 is taken as alike."""
MIN_READINGS = 8


def unlike_lengths(a: PartView, b: PartView) -> str | None:
    """Why the prompts of two parts are not of one length; null when they are."""
    lengths = [median([r.prompt_tokens or r.asked_prompt_tokens or 0 for r in p.ok] or [0]) for p in (a, b)]
    if min(lengths) <= 0:
        return "the lengths of the prompts are not known"
    if max(lengths) / min(lengths) > 1.0 + LENGTHS_DIFFER:
        return f"prompts of {whole(lengths[0])} and {whole(lengths[1])} tokens are not alike"
    return None


def hit_rate(part: PartView) -> float | None:
    """Mean over the runs of the share of prompt tokens served from the cache; null when one is unknown."""
    found = [run.summary.metrics.prefix_hit_rate.got for run in part.runs]
    known = [v for v in found if v is not None]
    return fmean(known) if known and len(known) == len(found) else None


def memory_shared(repeated: PartView, distinct: PartView) -> Statement:
    """Capacity against latency: KV memory for each running sequence."""
    first, second = _held_each(repeated.runs), _held_each(distinct.runs)
    if not first or not second:
        text = "What sharing does to memory is not known: the server exports no KV bytes held."
        return Statement(id="memory_shared", verdict="cannot_tell", text=text)
    why = unlike_lengths(repeated, distinct)
    if min(len(first), len(second)) < MIN_READINGS:
        why = f"too few readings ({len(first)} and {len(second)}, {MIN_READINGS} each needed)"
    if why is not None:
        text = f"What sharing does to memory is not compared: {why}."
        return Statement(id="memory_shared", verdict="cannot_tell", text=text)
    shared, alone = fmean(first), fmean(second)
    ratio = widened(mean_ratio(np.asarray(first), np.asarray(second)), _by_round(repeated, distinct))
    facts = {"shared": Quantity(shared, "B"), "distinct": Quantity(alone, "B")}
    facts |= {"lo": Quantity(ratio.lo, "ratio"), "hi": Quantity(ratio.hi, "ratio")}
    numbers = (
        f"KV memory held for a running sequence: {size(shared)} with one prefix, {size(alone)} with nothing "
        f"shared, {interval(ratio)} (means of {len(first)} and {len(second)} readings)"
    )
    hits = hit_rate(repeated)
    if ratio.hi is None or ratio.hi >= LESS:
        text = f"{numbers}: no saving is shown."
        return Statement(id="memory_shared", verdict="not_shown", text=text, facts=facts)
    if hits is not None and hits < NO_SHARING:
        text = f"{numbers}: less, but not by sharing ({percent(hits)} of the prompt tokens were hits)."
        return Statement(id="memory_shared", verdict="cannot_tell", text=text, facts=facts)
    text = (
        f"{numbers}: {percent(1 - shared / alone)} less with this many at once. That is capacity; TTFT "
        "is latency. They are two goals: a server may win one and not the other."
    )
    return Statement(id="memory_shared", verdict="shown", text=text, facts=facts)


def _by_round(a: PartView, b: PartView) -> list[float]:
    found = []
    for first in a.runs:
        for second in b.runs:
            above, below = _held_each([first]), _held_each([second])
            if first.round == second.round and above and below:
                found.append(fmean(above) / fmean(below))
    return found


def _held_each(runs: list[RunView]) -> list[float]:
    """KV bytes held over requests running, at each reading at which some ran."""
    found = []
    for run in runs:
        held, running = run.gauge("engine.kv_used_bytes"), run.gauge("engine.requests_running")
        found += [held[t] / running[t] for t in held if running.get(t, 0.0) >= 1.0 and held[t] > 0]
    return found
