"""Sections 2 and 3: every assumption with its source, and the memory budget step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kvprobe.report.charts_capacity import number
from kvprobe.report.charts_memory import Bar, waterfall
from kvprobe.report.content import Block, Bullets, Inline, Num, Para, Said, Section, Table
from kvprobe.report.prelaunch.machine import heads, machine
from kvprobe.report.prelaunch.view import Prelaunch, tokens_per_request
from kvprobe.summary.units import figures, percent, seconds, size, whole

Row = tuple[str, str | None, str]


def assumptions(view: Prelaunch) -> Section:
    """Each value with where it is from: measured, config, user, default, table, formula."""
    w = view.w
    rows = [row for row in (*_planned(view), *heads(view), *machine(view), *_measured(view)) if row[1]]
    table = Table(
        name="assumptions",
        caption=w("Each value and its source"),
        columns=[w("assumption"), w("value"), w("source")],
        rows=[[name, value or "", w(source)] for name, value, source in rows],
    )
    blocks: list[Block] = [table]
    told = view.get("assumptions")
    told = [t for t in told if isinstance(t, str)] if isinstance(told, list) else []
    if told:
        blocks += [
            Para(Said(w("Taken for granted by the plan"), strong=True)),
            Bullets([said(view, t) for t in told]),
        ]
    return Section("s2", w("2 Assumptions"), blocks)


def said(view: Prelaunch, text: str) -> Said:
    known = view.w.known(text)
    return Said(known) if known is not None else Said(text, foreign=True)


def _planned(view: Prelaunch) -> list[Row]:
    w, get = view.w, view.get
    if view.plan is None:
        return []
    cost = view.number("kv.bytes_per_token_per_gpu")
    context, block = view.number("pool.max_model_len"), view.number("pool.block_size")
    price, speed = view.number("cost.per_hour"), view.number("cost.per_million_output_tokens")
    cache = (
        get("kv.dtype_k")
        if get("kv.dtype_k") == get("kv.dtype_v")
        else f"K {get('kv.dtype_k')}, V {get('kv.dtype_v')}"
    )
    return [
        (w("model"), _join(get("model.name"), get("model.architecture")), "config"),
        (w("weights in"), _join(get("model.dtype"), get("model.quantization")), "config"),
        (w("layers"), _count(get("model.layers")), "config"),
        (w("cache layout and format"), _join(get("kv.layout"), cache), "config"),
        (w("KV cache of one token"), size(cost) if cost is not None else None, "formula"),
        (
            w("engine"),
            _join(get("engine"), get("engine_version") or w("newest known"))
            if get("engine")
            else w("none: the plain formula"),
            "user",
        ),
        ("GPU", _text(get("gpu")), "user"),
        (
            w("tensor x pipeline parallel"),
            f"{get('tp')} x {get('pp')}",
            "default" if get("tp") == get("pp") == 1 else "user",
        ),
        (w("context limit, tokens"), _count(context), "config"),
        (w("block, tokens"), _count(block), "default"),
        (w("lengths p50 / p95 / max, tokens"), _lengths(view), _text(get("lengths.source")) or "user"),
        (w("price of an hour"), figures(price) if price is not None else None, "user"),
        (w("price of a million output tokens"), figures(speed) if speed is not None else None, "formula"),
    ]


def _lengths(view: Prelaunch) -> str | None:
    found = [view.number(f"lengths.{name}_tokens") for name in ("p50", "p95", "max")]
    return " / ".join(whole(v) for v in found if v is not None) if None not in found else None


def _measured(view: Prelaunch) -> list[Row]:
    w, run = view.w, view.run
    if run is None:
        return [(w("demand"), _demand(view), "user")]
    s = run.summary
    m, tokens = s.metrics, tokens_per_request(view)
    arrival = s.arrival
    return [
        (w("demand"), _demand(view), "user"),
        (w("engine that was loaded"), _join(s.engine, s.engine_version), "measured"),
        (
            w("load"),
            _join(s.workload, f"{arrival.loop or ''} {arrival.users or arrival.rate_per_s or ''}".strip()),
            "user",
        ),
        (w("length of the load"), seconds(s.window.seconds) if s.window.seconds else None, "measured"),
        (w("prompt tokens, median"), _count(m.prompt_tokens.got_median), "measured"),
        (w("output tokens of a request, mean"), figures(tokens) if tokens is not None else None, "measured"),
        (
            w("prefix hits"),
            percent(m.prefix_hit_rate.got) if m.prefix_hit_rate.got is not None else None,
            "measured",
        ),
        (w("workload digest"), s.workload_hash, "measured"),
    ]


def _demand(view: Prelaunch) -> str | None:
    if view.demand_per_s is not None:
        return view.w("{n} requests/s", n=figures(view.demand_per_s))
    if view.demand_at_once is not None:
        return view.w("{n} requests at once", n=whole(view.demand_at_once))
    return view.w("not stated")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _join(*parts: Any) -> str | None:
    return ", ".join(str(p) for p in parts if p) or None


def _count(value: Any) -> str | None:
    n = number(value)
    return whole(n) if n is not None else None


_TERMS = (
    ("weights", "weights", "s1"),
    ("non_torch", "memory outside torch", "s4"),
    ("activation_peak", "activations at their peak", "s2"),
    ("graphs", "CUDA graphs", "s5"),
    ("fixed", "fixed runtime", "s4"),
    ("margin", "safety margin", "s6"),
)


def budget(view: Prelaunch) -> Section:
    """Total to KV cache, then to tokens and to requests."""
    w = view.w
    if view.plan is None:
        return Section(
            "s3", w("3 Memory budget"), [fill(view, "kvprobe plan --model DIR --gpu NAME --json > PLAN.json")]
        )
    blocks: list[Block] = []
    bars, note = _bars(view)
    if bars:
        blocks.append(
            waterfall(
                w,
                "budget",
                w("Memory of one GPU"),
                w("Rule: {rule}.", rule=str(view.get("budget.rule") or "?")),
                bars,
                note,
            )
        )
    blocks.append(_steps(view))
    return Section("s3", w("3 Memory budget"), blocks)


def _bars(view: Prelaunch) -> tuple[list[Bar], str]:
    """The waterfall in the cautious reading: a term that is only a range counts with its upper end."""
    w, total = view.w, view.number("budget.total.bytes")
    if not total:
        return [], ""
    bars = [Bar(w("total"), 0.0, total, "s6", _source(view, "total"))]
    left, note = total, ""
    used = view.number("budget.utilisation.bytes")
    if used is not None:
        ratio = view.number("budget.utilisation.ratio")
        bars.append(
            Bar(
                w("not used (utilisation {u})", u=f"{ratio:g}" if ratio is not None else "?"),
                left,
                used,
                "free",
                _source(view, "utilisation"),
            )
        )
        left = used
    for name, words, style in _TERMS:
        term = view.get(f"budget.{name}")
        if not isinstance(term, Mapping):
            continue
        value, ends = number(term.get("bytes")), term.get("range")
        label = w(words)
        if value is None and isinstance(ends, list | tuple) and len(ends) == 2:
            value, label = number(ends[1]), w("{words} (upper end)", words=w(words))
            note = w(
                "Terms that are known only as a range stand with their upper end, so the cache shown is "
                "the smallest that is left."
            )
        if value:
            bars.append(Bar(label, left, left - value, style, _source(view, name)))
            left -= value
    if left > 0:
        bars.append(Bar(w("KV cache"), 0.0, left, "s3", w("the rest")))
    return bars, note


def _source(view: Prelaunch, name: str) -> str:
    source, note = view.get(f"budget.{name}.source"), view.get(f"budget.{name}.note")
    return "; ".join(view.w(str(p)) if p is source else str(p) for p in (source, note) if p)


Step = tuple[str, str, Callable[[float], str], str]


def _rules(view: Prelaunch) -> list[Step]:
    """Label, path (its range stands beside it as `_range`), form, and the formula or rule."""
    w = view.w
    by_length = w("tokens / length, in whole blocks")
    cost = w("2 x layers x KV heads x head dim x bytes (or the layout's own formula)")
    kept = w("blocks x tokens of a block, less what the engine keeps")
    method = str(view.get("concurrency.distribution.method") or "")
    return [
        (w("KV cache"), "budget.kv", size, str(view.get("budget.rule") or "")),
        (w("KV cache of one token"), "kv.bytes_per_token_per_gpu", size, cost),
        (w("blocks"), "pool.num_blocks", whole, w("KV cache / bytes of a block, whole")),
        (w("tokens"), "pool.tokens", whole, kept),
        (w("requests of the p50 length"), "concurrency.p50", whole, by_length),
        (w("requests of the p95 length"), "concurrency.p95", whole, by_length),
        (w("requests of the longest length"), "concurrency.max", whole, by_length),
        (w("requests by the distribution"), "concurrency.distribution.max_num_seqs", whole, method),
    ]


def _steps(view: Prelaunch) -> Table:
    """KV cache, tokens, requests: each with the formula or field that it comes from."""
    w = view.w
    rows: list[list[Inline]] = []
    for label, path, form, how in _rules(view):
        exact, ends = (f"{path}.bytes", f"{path}.range") if path == "budget.kv" else (path, f"{path}_range")
        value, pair = view.number(exact), view.get(ends)
        low, high = (
            (number(v) for v in pair) if isinstance(pair, list | tuple) and len(pair) == 2 else (None, None)
        )
        if value is not None:
            rows.append([label, Num(form(value), value), how])
        elif low is not None and high is not None:
            rows.append([label, Num(w("{a} to {b}", a=form(low), b=form(high)), low), how])
    columns = [w("step"), w("amount"), w("how")]
    return Table("budget-steps", w("From memory to requests"), columns, rows, frozenset((1,)))


def fill(view: Prelaunch, command: str) -> Para:
    """What would fill a section that is empty."""
    return Para(Said(view.w("Not known yet. This would fill it: {command}", command=f"`{command}`"), "dim"))
