"""The three controls: one prefix repeated, nothing shared, long and short mixed; on one server.

Expected: the repeated prefix has the better TTFT and the same decode speed, because a prefix cache saves
prefill and never decode; and it holds as many sequences in less memory. Where that does not show, the
statement says so and what it may mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import Any

from kvprobe.diagnose.calm import calm_ratio
from kvprobe.diagnose.controls_memory import hit_rate, memory_shared, unlike_lengths
from kvprobe.diagnose.model import Quantity
from kvprobe.diagnose.part_ratio import (
    by_rounds,
    interval,
    rounds_of,
    sameness,
    surely_above,
    surely_below,
    values,
)
from kvprobe.diagnose.suite_answer import Answer, Column, PartView, Statement, Verdict
from kvprobe.summary.latency import tpot_s, ttft_s
from kvprobe.summary.quantiles import Ratio, median_ratio, quantile
from kvprobe.summary.units import percent, seconds, whole

MIN_EACH = 20
"""Requests of a part, for a comparison to say anything."""
FAILED_SHARE = 0.05
"""Of a part's requests: the slow ones fail first, and the medians of the rest look better than the server."""
LITTLE_REUSE = 0.5
"""Of the ceiling: below it the cache did not do what these prompts allow."""
NEARLY_NONE = 0.05

COLUMNS = [
    Column("part", "part", "text"),
    Column("requests", "n", "count"),
    Column("prompt_tokens_p50", "prompt", "tokens"),
    Column("hit_rate", "hits", "ratio"),
    Column("ttft_p50_s", "TTFT p50", "s"),
    Column("ttft_p95_s", "TTFT p95", "s"),
    Column("prefill_mean_s", "server's prefill, mean", "s"),
    Column("tpot_p50_s", "TPOT p50", "s"),
    Column("output_tokens_per_s", "output", "tokens_per_s"),
    Column("max_active", "most active", "count"),
    Column("kv_held_max_bytes", "KV held, most", "bytes"),
    Column("server_rss_max_bytes", "server process", "bytes"),
]


def controls(parts: Sequence[PartView]) -> Answer:
    """The table and what its differences mean."""
    by_role = {part.role: part for part in parts}
    repeated, distinct, mixed = (by_role.get(role) for role in ("repeated", "distinct", "mixed"))
    statements: list[Statement] = []
    if repeated is not None and distinct is not None:
        prefill, decode = prefill_saved(repeated, distinct), decode_unchanged(repeated, distinct)
        statements = [meaning(prefill, decode), prefill, decode, memory_shared(repeated, distinct)]
    if mixed is not None:
        statements.append(lengths_mixed(mixed))
    return Answer(
        question="three_controls", statements=statements, columns=COLUMNS, rows=[row(p) for p in parts]
    )


def row(part: PartView) -> dict[str, Any]:
    """One part's numbers, its runs pooled."""
    ok = part.ok
    ttft = values(ok, ttft_s)
    prefill = [v for run in part.runs if (v := run.mean_of("engine.prefill_seconds")) is not None]
    rates = [v for run in part.runs if (v := run.summary.metrics.output_tokens_per_s) is not None]
    active = [v for run in part.runs if (v := run.summary.metrics.max_active) is not None]
    rss = [v for run in part.runs if (v := run.summary.metrics.memory.server_rss_max_bytes) is not None]
    prompts = [r.prompt_tokens for r in ok if r.prompt_tokens]
    return {
        "part": part.name,
        "requests": len(ok),
        "prompt_tokens_p50": median(prompts) if prompts else None,
        "hit_rate": hit_rate(part),
        "ttft_p50_s": quantile(ttft, 0.5).value,
        "ttft_p95_s": quantile(ttft, 0.95).value,
        "prefill_mean_s": fmean(prefill) if prefill else None,
        "tpot_p50_s": quantile(values(ok, tpot_s), 0.5).value,
        "output_tokens_per_s": fmean(rates) if rates else None,
        "max_active": max(active, default=None),
        "kv_held_max_bytes": part.largest("engine.kv_used_bytes"),
        "server_rss_max_bytes": max(rss, default=None),
    }


def failed_share(part: PartView) -> float:
    """Failed or never sent, of the requests that were wanted."""
    wanted = sum(run.summary.requests.intended or 0 for run in part.runs)
    lost = sum(run.summary.requests.failed + run.summary.requests.unsent for run in part.runs)
    return lost / wanted if wanted else 0.0


def prefill_saved(repeated: PartView, distinct: PartView) -> Statement:
    """(a) has a better TTFT than (b)?"""
    fast, slow = values(repeated.ok, ttft_s), values(distinct.ok, ttft_s)
    if why := _not_comparable(repeated, distinct, fast, slow):
        return Statement(id="prefill_saved", verdict="cannot_tell", text=f"TTFT is not compared: {why}.")
    ratio = by_rounds(distinct, repeated, ttft_s, seed=11)
    hits, ceiling = hit_rate(repeated), _ceiling(repeated)
    numbers = (
        f"TTFT p50 {seconds(median(fast))} with one prefix repeated, {seconds(median(slow))} with nothing "
        f"shared: {interval(ratio)}"
    )
    verdict, told = _prefill_words(ratio, rounds_of(repeated, distinct), hits, ceiling)
    verdict, told = _beside_hits_of_distinct(verdict, told, hit_rate(distinct))
    facts = {"ttft_ratio": Quantity(ratio.value, "ratio"), "hit_rate": Quantity(hits, "ratio")}
    facts |= {"lo": Quantity(ratio.lo, "ratio"), "hi": Quantity(ratio.hi, "ratio")}
    return Statement(id="prefill_saved", verdict=verdict, text=f"{numbers}. {told}", facts=facts)


def _beside_hits_of_distinct(verdict: Verdict, told: str, hits: float | None) -> tuple[Verdict, str]:
    """Prompts that should share nothing, and were served from the cache all the same, are no control."""
    if hits is None or hits <= NEARLY_NONE:
        return verdict, told
    also = f"{percent(hits)} of the prompt tokens that share nothing came from the cache as well"
    if verdict == "shown":
        return verdict, f"{told} {also}: without that the gain would be larger."
    return "cannot_tell", f"{told} But {also}: the comparison has no control."


def _prefill_words(
    ratio: Ratio, rounds: int, hits: float | None, ceiling: float | None
) -> tuple[Verdict, str]:
    served = (
        "the server exports no hit rate" if hits is None else f"{percent(hits)} of its prompt tokens came"
    )
    from_cache = served if hits is None else f"{served} from the cache"
    if surely_above(ratio, rounds):
        if hits is not None and hits < NEARLY_NONE:
            return "cannot_tell", (
                f"The repeated prefix is faster, but not by prefix reuse: {from_cache}; look for another "
                "difference between the parts."
            )
        if hits is None:
            return "shown", (
                f"The repeated prefix is faster, and in nothing else do the parts differ; {from_cache}, so "
                "that it is the cache is not shown."
            )
        return "shown", f"Prefill saved: {from_cache}."
    if surely_below(ratio, rounds):
        return "opposite", f"The repeated prefix is slower, which no prefix cache explains ({from_cache})."
    if hits is not None and hits < LITTLE_REUSE * (ceiling if ceiling is not None else 1.0):
        most = f", and these prompts allow {percent(ceiling)}" if ceiling is not None else ""
        return "not_shown", (
            f"No prefill is saved: {from_cache}{most}. The prefix is not reused; the part's own report says "
            "why (caching off, a block longer than the prefix, a pool too small, a layout that changes)."
        )
    return "not_shown", (
        f"No difference is shown ({from_cache}): prefill is a small part of TTFT here; try longer prompts "
        "or fewer users."
    )


def decode_unchanged(repeated: PartView, distinct: PartView) -> Statement:
    """Decode in undisturbed gaps; plain TPOT holds the neighbours' prefill and can prove only sameness."""
    if why := unlike_lengths(repeated, distinct):
        text = f"Decode is not compared: {why}, and a token takes longer after a longer context."
        return Statement(id="decode_unchanged", verdict="cannot_tell", text=text)
    method = "gaps in which nobody waited for a first token, at equal numbers of sequences decoding"
    ratio = calm_ratio(repeated.runs, distinct.runs)
    if ratio is not None:
        verdict = sameness(ratio, rounds_of(repeated, distinct))
    else:
        first, second = values(repeated.ok, tpot_s), values(distinct.ok, tpot_s)
        if min(len(first), len(second)) < MIN_EACH:
            counts = f"{len(first)} and {len(second)} requests"
            return Statement(
                id="decode_unchanged",
                verdict="cannot_tell",
                text=f"Decode is not compared: n too small ({counts} with a TPOT, {MIN_EACH} needed).",
            )
        method = "whole TPOT, which holds the neighbours' prefill"
        ratio = by_rounds(repeated, distinct, tpot_s, seed=12)
        found = sameness(ratio, rounds_of(repeated, distinct))
        verdict = "cannot_tell" if found == "differs" else found
    said: dict[str, tuple[Verdict, str]] = {
        "unchanged": ("shown", "Decode unchanged"),
        "differs": ("not_shown", "Decode differs, which a prefix cache does not do"),
        "cannot_tell": ("cannot_tell", "Whether decode differs by more than a little cannot be told"),
    }
    shown, words = said[verdict]
    text = f"{words}: time per token {interval(ratio)} (repeated over distinct; {method})."
    facts = {"tpot_ratio": Quantity(ratio.value, "ratio")}
    facts |= {"lo": Quantity(ratio.lo, "ratio"), "hi": Quantity(ratio.hi, "ratio")}
    return Statement(id="decode_unchanged", verdict=shown, text=text, facts=facts)


def meaning(prefill: Statement, decode: Statement) -> Statement:
    """The two together, as one sentence."""
    if prefill.verdict == "shown" and decode.verdict == "shown":
        text = "As expected: better TTFT, the same decode speed. Prefix caching saves prefill, never decode."
        return Statement(id="meaning", verdict="shown", text=text)
    if prefill.verdict == "shown":
        told = "decode is not unchanged" if decode.verdict == "not_shown" else "of decode nothing can be told"
        text = f"Prefill is saved; {told} (below)."
        return Statement(id="meaning", verdict=decode.verdict, text=text)
    text = {
        "not_shown": "Not as expected: a repeated prefix gives no better TTFT on this server.",
        "opposite": "Not as expected: a repeated prefix gives a worse TTFT on this server.",
    }.get(prefill.verdict, "What a repeated prefix is worth on this server cannot be told from these runs.")
    return Statement(id="meaning", verdict=prefill.verdict, text=text)


def lengths_mixed(mixed: PartView) -> Statement:
    """What the long ones cost, and hold, beside the short ones."""
    rows = sorted((r for r in mixed.ok if r.prompt_tokens), key=lambda r: r.prompt_tokens or 0)
    if mixed.ok and not rows:
        text = "Lengths mixed: cannot be told; the server reports no prompt tokens."
        return Statement(id="lengths_mixed", verdict="cannot_tell", text=text)
    quarter = len(rows) // 4
    if quarter < MIN_EACH // 4 or len(rows) < MIN_EACH:
        text = f"Lengths mixed: n too small ({len(rows)} requests, {MIN_EACH} needed)."
        return Statement(id="lengths_mixed", verdict="cannot_tell", text=text)
    short, long = rows[:quarter], rows[-quarter:]
    ratio = median_ratio(values(long, ttft_s), values(short, ttft_s), seed=13)
    tokens = [sum(r.prompt_tokens or 0 for r in part) for part in (rows, long)]
    text = (
        f"Long and short mixed: {whole(rows[0].prompt_tokens or 0)} to {whole(rows[-1].prompt_tokens or 0)} "
        f"tokens. The longest quarter holds {percent(tokens[1] / tokens[0])} of the prompt tokens, and its "
        f"TTFT is {interval(ratio)} that of the shortest. Plan with the distribution, not with its mean."
    )
    verdict: Verdict = "shown" if ratio.lo is not None and ratio.lo > 1.0 else "not_shown"
    return Statement(
        id="lengths_mixed", verdict=verdict, text=text, facts={"ttft_ratio": Quantity(ratio.value, "ratio")}
    )


def _not_comparable(a: PartView, b: PartView, first: list[float], second: list[float]) -> str | None:
    if min(len(first), len(second)) < MIN_EACH:
        return f"n too small ({len(first)} and {len(second)} requests, {MIN_EACH} each needed)"
    for part in (a, b):
        if (share := failed_share(part)) > FAILED_SHARE:
            return (
                f"{percent(share)} of the requests of {part.name} failed, and those that are left are no "
                "fair sample"
            )
    return unlike_lengths(a, b)


def _ceiling(part: PartView) -> float | None:
    known = [v for run in part.runs if (v := run.summary.metrics.prefix_hit_rate.ceiling) is not None]
    return fmean(known) if known else None
