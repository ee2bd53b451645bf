"""Which block size? What each of several costs on one load: tails, tables, lost hits, scheduling, latency.

The recommendation is made from what was measured, and only among sizes that are not surely slower than
the fastest: what the memory of empty tails and tables comes to, and what prefix hits are lost to a block
that is only reused whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from kvprobe.diagnose.controls_memory import hit_rate
from kvprobe.diagnose.model import Quantity
from kvprobe.diagnose.part_ratio import Of, by_rounds, interval, rounds_of, surely_above, values
from kvprobe.diagnose.suite_answer import Answer, Column, PartView, Statement
from kvprobe.summary.latency import tpot_s, ttft_s
from kvprobe.summary.quantiles import Ratio, quantile
from kvprobe.summary.units import percent

MIN_EACH = 20
SLOWER = 1.05
"""A size is surely slower when the whole interval of its median over the best one lies above this."""
HITS_LOST = 0.05
"""Of all prompt tokens: a size that loses more hits than this to its granularity is left out."""
SAME_WASTE = 0.01
"""Shares of the stored KV data that differ by less are taken as alike."""

COLUMNS = [
    Column("block_size_tokens", "block", "count"),
    Column("requests", "n", "count"),
    Column("blocks_used_mean", "used", "count"),
    Column("blocks_cached_mean", "cached", "count"),
    Column("blocks_free_mean", "free", "count"),
    Column("tail_share", "tails", "ratio"),
    Column("tail_blocks_mean", "empty in tails", "count"),
    Column("table_bytes_mean", "tables", "bytes"),
    Column("hit_rate", "hits", "ratio"),
    Column("scheduling_per_step_s", "sched/step", "s"),
    Column("ttft_p50_s", "TTFT p50", "s"),
    Column("ttft_p95_s", "TTFT p95", "s"),
    Column("tpot_p50_s", "TPOT p50", "s"),
]
_LATENCIES: tuple[tuple[str, Of], ...] = (("TTFT", ttft_s), ("TPOT", tpot_s))


def block_sizes(parts: Sequence[PartView]) -> Answer:
    """One row a size, what differs, and a size with its number."""
    sized = sorted(((size, part) for part in parts if (size := block_size(part))), key=lambda pair: pair[0])
    rows = [{**row(part), "block_size_tokens": size} for size, part in sized]
    found = Answer(question="block_size", statements=[], columns=COLUMNS, rows=rows)
    if len(sized) < 2:
        found.notes.append("fewer than two block sizes can be told apart: the server does not name its own")
        return found
    slower = {size: why for size, part in sized if (why := surely_slower(part, [p for _, p in sized]))}
    found.statements = [latency_statement(sized, slower), waste_statement(rows), hits_statement(rows)]
    found.recommendation = recommend(rows, slower)
    return found


def block_size(part: PartView) -> int | None:
    """As the server's configuration says; null when it does not, or when the runs disagree."""
    sizes = {run.summary.metrics.memory.kv_block_size_tokens for run in part.runs}
    return sizes.pop() if len(sizes) == 1 else None


def row(part: PartView) -> dict[str, Any]:
    """One size's numbers, its runs pooled. Means are over readings at which a request ran."""
    ok = part.ok
    ttft, tpot = values(ok, ttft_s), values(ok, tpot_s)
    tail, stored = _busy(part, "engine.kv_tail_empty_bytes"), _busy(part, "engine.kv_stored_bytes")
    tables = _busy(part, "engine.kv_block_table_bytes")
    block_bytes = (part.largest("engine.kv_bytes_per_token") or 0.0) * (block_size(part) or 0)
    return {
        "requests": len(ok),
        "blocks_used_mean": _mean(_busy(part, "engine.kv_blocks_used")),
        "blocks_cached_mean": _mean(_busy(part, "engine.kv_blocks_cached")),
        "blocks_free_mean": _mean(_busy(part, "engine.kv_blocks_free")),
        "tail_share": sum(tail) / sum(stored) if tail and sum(stored) else None,
        "table_share": sum(tables) / sum(stored) if tables and sum(stored) else None,
        "tail_bytes_mean": _mean(tail),
        "tail_blocks_mean": fmean(tail) / block_bytes if tail and block_bytes else None,
        "table_bytes_mean": _mean(tables),
        "hit_rate": hit_rate(part),
        "scheduling_per_step_s": scheduling_per_step_s(part),
        "ttft_p50_s": quantile(ttft, 0.5).value,
        "ttft_p95_s": quantile(ttft, 0.95).value,
        "tpot_p50_s": quantile(tpot, 0.5).value,
    }


def scheduling_per_step_s(part: PartView) -> float | None:
    """Scheduler time over steps during the loads; null where the server does not count them."""
    from kvprobe.summary.activity import increase

    spent, steps = 0.0, 0.0
    for run in part.runs:
        time = increase(run.data.samples, "engine.engine_scheduling_seconds_total")
        count = increase(run.data.samples, "engine.engine_steps_total")
        if time is None or count is None:
            return None
        spent, steps = spent + time.value, steps + count.value
    return spent / steps if steps else None


def surely_slower(part: PartView, parts: Sequence[PartView]) -> str | None:
    """The latency by which a part is surely slower than the best of all, with its ratio."""
    for name, of in _LATENCIES:
        known = [p for p in parts if len(values(p.ok, of)) >= MIN_EACH]
        if part not in known or len(known) < 2:
            continue
        best = min(known, key=lambda p: median(values(p.ok, of)))
        ratio = by_rounds(part, best, of, seed=21)
        if best is not part and surely_above(ratio, rounds_of(part, best), SLOWER):
            return f"{name} {interval(ratio)} that of {best.name}"
    return None


def largest_ratio(parts: Sequence[PartView], of: Of) -> Ratio | None:
    """Slowest over fastest median, with its interval; null for too few requests."""
    if min(len(values(p.ok, of)) for p in parts) < MIN_EACH:
        return None
    ordered = sorted(parts, key=lambda p: median(values(p.ok, of)))
    return by_rounds(ordered[-1], ordered[0], of, seed=22)


def latency_statement(sized: Sequence[tuple[int, PartView]], slower: dict[int, str]) -> Statement:
    parts = [part for _, part in sized]
    told = []
    for name, of in _LATENCIES:
        ratio = largest_ratio(parts, of)
        told.append(f"{name} {interval(ratio)}" if ratio is not None else f"{name}: n too small")
    spread = f"slowest over fastest: {', '.join(told)}"
    if any("n too small" in each for each in told):
        return Statement(id="latency", verdict="cannot_tell", text=f"Latency is not compared ({spread}).")
    if slower:
        which = "; ".join(f"block {size}: {why}" for size, why in slower.items())
        return Statement(id="latency", verdict="shown", text=f"Latency differs: {which}.")
    if min(len(part.runs) for part in parts) < 2:
        text = f"Latency cannot be told apart: each size ran once ({spread}); use --set rounds=2 or more."
        return Statement(id="latency", verdict="cannot_tell", text=text)
    text = f"Latency: no size is surely more than {percent(SLOWER - 1)} slower than another ({spread})."
    return Statement(id="latency", verdict="not_shown", text=text)


def waste_statement(rows: Sequence[dict[str, Any]]) -> Statement:
    known = [r for r in rows if r["tail_share"] is not None]
    if len(known) < 2:
        text = "What tails and tables take is not known: the server does not export it."
        return Statement(id="waste", verdict="cannot_tell", text=text)
    small, large = known[0], known[-1]
    facts = {f"tail_share_{r['block_size_tokens']}": Quantity(r["tail_share"], "ratio") for r in known}
    text = (
        f"Empty tails take {percent(small['tail_share'])} of the stored KV data at block "
        f"{small['block_size_tokens']} and {percent(large['tail_share'])} at {large['block_size_tokens']}; "
        f"tables take {percent(small['table_share'] or 0.0)} and {percent(large['table_share'] or 0.0)}."
    )
    grown = large["tail_share"] > small["tail_share"]
    return Statement(id="waste", verdict="shown" if grown else "not_shown", text=text, facts=facts)


def hits_statement(rows: Sequence[dict[str, Any]]) -> Statement:
    known = [r for r in rows if r["hit_rate"] is not None]
    if len(known) < 2:
        text = "What block size does to prefix hits is not known: the server exports no hit rate."
        return Statement(id="hits", verdict="cannot_tell", text=text)
    told = ", ".join(f"{percent(r['hit_rate'])} at {r['block_size_tokens']}" for r in known)
    best = max(r["hit_rate"] for r in known)
    lost = best - min(r["hit_rate"] for r in known)
    text = f"Prefix hits, of all prompt tokens: {told}. A prefix is reused in whole blocks only."
    return Statement(id="hits", verdict="shown" if lost > HITS_LOST else "not_shown", text=text)


def recommend(rows: Sequence[dict[str, Any]], slower: dict[int, str]) -> Statement:
    """The size of least waste that is neither surely slower nor loses hits; of alike ones the largest."""
    known = [r for r in rows if r["tail_share"] is not None and r["table_share"] is not None]
    if len(known) < 2:
        text = "No block size is recommended: what the sizes waste is not exported."
        return Statement(id="recommendation", verdict="cannot_tell", text=text)
    best_hits = max((r["hit_rate"] for r in known if r["hit_rate"] is not None), default=None)
    fit = [r for r in known if r["block_size_tokens"] not in slower and not _loses(r, best_hits)]
    if not fit:
        text = "No block size is recommended: each is surely slower than another, or loses prefix hits."
        return Statement(id="recommendation", verdict="cannot_tell", text=text)
    least = min(map(_waste, fit))
    alike = [r for r in fit if _waste(r) - least < SAME_WASTE]
    chosen = max(alike, key=lambda r: int(r["block_size_tokens"]))
    size = chosen["block_size_tokens"]
    others = ", ".join(
        f"{r['block_size_tokens']}: {percent(_waste(r))}{_why_out(r, slower, best_hits)}"
        for r in known
        if r is not chosen
    )
    reason = (
        f"; of the sizes within {percent(SAME_WASTE)} of the least it has the fewest blocks"
        if len(alike) > 1
        else ""
    )
    return Statement(
        id="recommendation",
        verdict="shown",
        text=f"Block size {size} for this load: tails and tables cost {percent(_waste(chosen))} of the "
        f"stored KV data ({others}){reason}. It holds for these lengths and this server only.",
        facts={"block_size": Quantity(size, "tokens"), "waste": Quantity(_waste(chosen), "ratio")},
    )


def _loses(r: dict[str, Any], best: float | None) -> bool:
    return best is not None and r["hit_rate"] is not None and best - r["hit_rate"] > HITS_LOST


def _why_out(r: dict[str, Any], slower: dict[int, str], best: float | None) -> str:
    if r["block_size_tokens"] in slower:
        return ", slower"
    return ", loses hits" if _loses(r, best) else ""


def _waste(r: dict[str, Any]) -> float:
    return float(r["tail_share"] + r["table_share"])


def _busy(part: PartView, metric: str) -> list[float]:
    """Readings of a gauge at the instants at which a request ran."""
    found = []
    for run in part.runs:
        running = run.gauge("engine.requests_running")
        found += [v for t, v in run.gauge(metric).items() if running.get(t, 0.0) >= 1.0]
    return found


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
