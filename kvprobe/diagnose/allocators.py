"""Who owns the KV memory: what each owner makes of the same memory and the same requests.

Capacity and latency are two questions. *Crowd* parts ask how many requests run at once when more want to
than fit; *alone* parts ask how long one request takes by itself. More at once and no faster alone is a
success of paging, not half a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

import numpy as np

from kvprobe.diagnose.mean_ratio import mean_ratio
from kvprobe.diagnose.model import Quantity
from kvprobe.diagnose.part_ratio import by_rounds, interval, rounds_of, sameness, values
from kvprobe.diagnose.suite_answer import Answer, Column, PartView, Statement, Verdict
from kvprobe.summary.latency import e2e_s, ttft_s
from kvprobe.summary.memory import cache_config
from kvprobe.summary.quantiles import Floats, quantile
from kvprobe.summary.units import percent

MIN_ALONE = 20
MIN_READINGS = 8
CLAIM = "2-4 times, of whole systems of 2023 (arXiv 2309.06180)"

COLUMNS = [
    Column("allocator", "allocator", "text"),
    Column("requests", "n", "count"),
    Column("max_active", "most at once", "count"),
    Column("running_mean", "at once, mean", "count"),
    Column("use_of_held", "held in use", "ratio"),
    Column("output_tokens_per_s", "output", "tokens_per_s"),
    Column("preemptions", "preempted", "count"),
    Column("ttft_crowd_p50_s", "TTFT crowd", "s"),
    Column("e2e_alone_p50_s", "alone e2e", "s"),
    Column("ttft_alone_p50_s", "alone TTFT", "s"),
]


def allocators(parts: Sequence[PartView]) -> Answer:
    """A row an owner; each compared with the first."""
    crowds = [p for p in parts if p.role == "crowd"]
    alone = {owner_of(p): p for p in parts if p.role == "alone"}
    rows = [row(p, alone.get(owner_of(p))) for p in crowds]
    found = Answer(question="allocator", statements=[], columns=COLUMNS, rows=rows)
    if len(crowds) < 2:
        found.notes.append("fewer than two owners of the memory were run: nothing is compared")
        return found
    base = crowds[0]
    for other in crowds[1:]:
        found.statements.append(capacity(base, other))
        first, second = alone.get(owner_of(base)), alone.get(owner_of(other))
        if first is not None and second is not None:
            found.statements.append(latency(first, second))
    found.statements.append(use(crowds))
    found.recommendation = recommend(crowds, found.statements)
    return found


def owner_of(part: PartView) -> str:
    """The allocator as the server's configuration names it, else the part's name."""
    for run in part.runs:
        named = cache_config(run.data).get("allocator")
        if isinstance(named, str):
            return named
    return part.name


def row(crowd: PartView, alone: PartView | None) -> dict[str, Any]:
    def p50(part: PartView | None, of: Any) -> float | None:
        return quantile(values(part.ok, of) if part is not None else [], 0.5).value

    rates = [v for run in crowd.runs if (v := run.summary.metrics.output_tokens_per_s) is not None]
    preempted = [v for run in crowd.runs if (v := run.summary.metrics.preemptions) is not None]
    active = [v for run in crowd.runs if (v := run.summary.metrics.active.server) is not None]
    running = queued(crowd, "engine.requests_running")
    return {
        "allocator": owner_of(crowd),
        "requests": len(crowd.ok),
        "max_active": max(active, default=None),
        "running_mean": float(running.mean()) if running.size else None,
        "use_of_held": use_of_held(crowd),
        "output_tokens_per_s": fmean(rates) if rates else None,
        "preemptions": sum(preempted) if preempted else None,
        "ttft_crowd_p50_s": p50(crowd, ttft_s),
        "e2e_alone_p50_s": p50(alone, e2e_s),
        "ttft_alone_p50_s": p50(alone, ttft_s),
    }


def queued(part: PartView, metric: str) -> Floats:
    """Readings of a gauge at the instants at which somebody waited: the memory was the limit.

    The rise at the start is left out: until the requests that run have once reached their median, those
    that wait do so for the prefill of others.
    """
    found: list[float] = []
    for run in part.runs:
        waiting = run.gauge("engine.requests_waiting", with_warmup=True)
        full = {t: v for t, v in run.gauge("engine.requests_running", with_warmup=True).items() if v >= 1.0}
        busy = [t for t in full if waiting.get(t, 0.0) >= 1.0]
        if not busy:
            continue
        level = median(full[t] for t in busy)
        start = min(t for t in busy if full[t] >= level)
        readings = run.gauge(metric, with_warmup=True)
        found += [readings[t] for t in busy if t >= start and t in readings]
    return np.asarray(found, dtype=np.float64)


def use_of_held(part: PartView) -> float | None:
    """Stored over stored + tails + reserved, while somebody waited; null where it is not exported."""
    names = ("kv_stored_bytes", "kv_tail_empty_bytes", "kv_reserved_empty_bytes")
    stored, tail, reserved = (queued(part, f"engine.{name}") for name in names)
    held = float(stored.sum() + tail.sum() + reserved.sum())
    return float(stored.sum()) / held if held else None


def capacity(base: PartView, other: PartView) -> Statement:
    """How many times as many requests ran at once while others waited."""
    first, second = (queued(part, "engine.requests_running") for part in (base, other))
    names = f"{owner_of(other)} over {owner_of(base)}"
    ident = f"capacity_{owner_of(other)}"
    if min(first.size, second.size) < MIN_READINGS:
        text = (
            f"Concurrency, {names}: cannot be told; somebody waited at only {first.size} and {second.size} "
            f"readings ({MIN_READINGS} needed). Without a queue the memory was not the limit: give it less, "
            "or take more users."
        )
        return Statement(id=ident, verdict="cannot_tell", text=text)
    ratio = mean_ratio(second, first)
    verdict: Verdict = "not_shown"
    if ratio.lo is not None and ratio.hi is not None:
        verdict = "shown" if ratio.lo > 1.0 else "opposite" if ratio.hi < 1.0 else "not_shown"
    word = {"shown": "more", "opposite": "fewer"}.get(verdict, "as many, within noise,")
    text = f"Concurrency, {names}: {interval(ratio)}: {word} at once in the same memory (claimed: {CLAIM})."
    return Statement(id=ident, verdict=verdict, text=text, facts={"ratio": Quantity(ratio.value, "ratio")})


def latency(base: PartView, other: PartView) -> Statement:
    """One request by itself: no faster is what to expect."""
    names = f"{owner_of(other)} over {owner_of(base)}"
    ident = f"alone_{owner_of(other)}"
    first, second = (values(p.ok, e2e_s) for p in (base, other))
    if min(len(first), len(second)) < MIN_ALONE:
        text = f"One request alone, {names}: n too small ({len(first)} and {len(second)})."
        return Statement(id=ident, verdict="cannot_tell", text=text)
    ratio = by_rounds(other, base, e2e_s, seed=31)
    found = sameness(ratio, rounds_of(base, other))
    numbers = f"One request alone, {names}: {interval(ratio)} as long"
    facts = {"ratio": Quantity(ratio.value, "ratio")}
    if found == "unchanged":
        text = f"{numbers}: no faster, which is success too. Capacity is what paging is for."
        return Statement(id=ident, verdict="shown", text=text, facts=facts)
    if found == "cannot_tell":
        text = f"{numbers}: whether it differs cannot be told."
        return Statement(id=ident, verdict="cannot_tell", text=text, facts=facts)
    word = "slower" if (ratio.value or 0.0) > 1.0 else "faster"
    text = (
        f"{numbers}: {word}. The owner of the memory is not expected to change that; more rounds will tell."
    )
    return Statement(id=ident, verdict="not_shown", text=text, facts=facts)


def use(crowds: Sequence[PartView]) -> Statement:
    known = [(owner_of(p), v) for p in crowds if (v := use_of_held(p)) is not None]
    if len(known) < 2:
        text = "Use of the held memory is not known: it is not exported, or nobody waited."
        return Statement(id="use_of_held", verdict="cannot_tell", text=text)
    told = ", ".join(f"{name} {percent(value)}" for name, value in known)
    facts = {name: Quantity(value, "ratio") for name, value in known}
    text = f"Of the KV memory held while others waited, in use: {told} (claimed for contiguous: 20-40 %)."
    return Statement(id="use_of_held", verdict="shown", text=text, facts=facts)


def recommend(crowds: Sequence[PartView], statements: Sequence[Statement]) -> Statement:
    """The owner that surely holds the most, if it is not surely slower alone."""
    said = {s.id: s for s in statements}
    base = owner_of(crowds[0])
    better = []
    for part in crowds[1:]:
        name = owner_of(part)
        capacity_said, alone_said = said.get(f"capacity_{name}"), said.get(f"alone_{name}")
        slower = alone_said is not None and alone_said.verdict == "not_shown" and _ratio(alone_said) > 1.0
        if capacity_said is not None and capacity_said.verdict == "shown" and not slower:
            better.append((_ratio(capacity_said), name))
    if not better:
        text = (
            f"No owner surely holds more than {base} at no cost to a single request: nothing is recommended."
        )
        return Statement(id="recommendation", verdict="not_shown", text=text)
    ratio, name = max(better)
    text = (
        f"`{name}`: {ratio:.1f} times the requests of `{base}` at once in the same memory. It follows from "
        "these lengths: with a higher context limit the contiguous reservation loses more."
    )
    facts = {"ratio": Quantity(ratio, "ratio"), "allocator": Quantity(name)}
    return Statement(id="recommendation", verdict="shown", text=text, facts=facts)


def _ratio(statement: Statement) -> float:
    value = statement.facts["ratio"].value if "ratio" in statement.facts else None
    return float(value) if isinstance(value, int | float) else 1.0
