"""The cache of a run, as sections: the pool, the prefix cache, lengths, memory, predictions."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from kvprobe.evidence.rundata import RunData
from kvprobe.report import charts_memory, charts_prefix, charts_time
from kvprobe.report.charts_memory import Bar, HitPoint
from kvprobe.report.content import Block, Facts, Inline, Para, Said, Section
from kvprobe.report.run_series import Span, gauge, increments, total
from kvprobe.report.run_view import RunView
from kvprobe.summary import activity
from kvprobe.summary.rates import Asked
from kvprobe.summary.units import percent, size, whole

MIN_WARM = 5


def pool(view: RunView) -> Section:
    """KV use with queue and preemptions; what the pool held when it was fullest."""
    w, m, data, span = view.w, view.summary.metrics, view.data, view.span
    held = m.memory
    rows: list[tuple[str, Inline]] = []
    if held.kv_blocks is not None and held.kv_block_size_tokens is not None:
        text = w("{n} blocks of {b} tokens", n=whole(held.kv_blocks), b=whole(held.kv_block_size_tokens))
        rows.append(
            (w("pool"), text + (f" ({size(held.kv_pool_bytes)})" if held.kv_pool_bytes is not None else ""))
        )
    else:
        rows.append((w("pool"), view.reason(held.kv_pool_reason)))
    if held.kv_pool_tokens is not None:
        rows.append((w("tokens it holds"), whole(held.kv_pool_tokens)))
    preempted = m.preemptions
    rows.append(
        (
            w("preemptions"),
            whole(preempted) if preempted is not None else view.reason(m.reasons.get("preemptions")),
        )
    )
    blocks: list[Block] = [Facts(rows)]
    if data is not None and span is not None:
        blocks += _pool_charts(view, data, span)
    if m.kv_usage_max is None:
        blocks.append(Para(Said(view.reason(m.reasons.get("kv_usage_max")), "dim")))
    return Section("pool", w("KV cache pool"), blocks)


def _pool_charts(view: RunView, data: RunData, span: Span) -> list[Block]:
    usage = gauge(data, activity.KV_USAGE, span)
    out: list[Block] = []
    if usage:
        series = charts_time.PoolSeries(
            usage=usage,
            running=total(data, activity.RUNNING, span),
            waiting=total(data, "engine.requests_waiting", span),
            preempted=increments(total(data, "engine.preemptions_total", span)),
        )
        out.append(charts_time.pool_chart(view.w, series, span.seconds))
    bars = _fullest(view, data, span)
    if bars is not None:
        out.append(bars)
    return out


_HELD = (
    # metric, words, colour: parts of the pool at one instant
    ("engine.kv_null_block_bytes", "the engine's own block", "s6"),
    ("engine.kv_stored_bytes", "tokens of running requests", "s1"),
    ("engine.kv_tail_empty_bytes", "empty slots in last blocks", "s2"),
    ("engine.kv_reserved_empty_bytes", "reserved and still empty", "badr"),
    ("engine.kv_cached_bytes", "prefixes kept for reuse", "s3"),
)


def _fullest(view: RunView, data: RunData, span: Span) -> Block | None:
    """What the pool was made of at its fullest reading; null where the engine does not say."""
    w, pool_bytes = view.w, dict(total(data, "engine.kv_pool_bytes", span))
    parts = {name: dict(total(data, name, span)) for name, _, _ in _HELD}
    used = dict(total(data, "engine.kv_used_bytes", span))
    stored = parts["engine.kv_stored_bytes"]
    instants = [t for t in pool_bytes if t in used and t in stored]
    if not instants:
        return None
    t = max(instants, key=lambda t: used[t])
    whole_bytes = pool_bytes[t]
    bars, at = [Bar(w("pool"), 0.0, whole_bytes, "s6", "engine.kv_pool_bytes")], 0.0
    for name, words, style in _HELD:
        value = parts[name].get(t)
        if value:
            bars.append(Bar(w(words), at, at + value, style, name))
            at += value
    left = whole_bytes - at
    if left < -0.01 * whole_bytes:
        return None  # parts that overlap (shared blocks counted twice) must not be drawn as a sum
    bars.append(Bar(w("free"), at, at + max(left, 0.0), "free", w("the rest")))
    return charts_memory.waterfall(
        w,
        "pool-fullest",
        w("What the pool held at its fullest"),
        w(
            "At {t} s of the load, when {used} of {all} were in use by requests.",
            t=f"{t:.1f}",
            used=size(used[t]),
            all=size(whole_bytes),
        ),
        bars,
    )


def prefix(view: RunView) -> Section:
    """Aimed at, possible, got; against prefix length with block steps."""
    w, rate = view.w, view.summary.metrics.prefix_hit_rate
    layout = view.summary.layout
    rows: list[tuple[str, Inline]] = [
        (w("aimed at by the workload"), percent(rate.aimed) if rate.aimed is not None else w("not known")),
        (
            w("ceiling of these prompts"),
            percent(rate.ceiling) if rate.ceiling is not None else w("not known"),
        ),
        (
            w("got"),
            f"{percent(rate.got)} ({w('from')} {w(str(rate.got_source))})"
            if rate.got is not None
            else view.reason(rate.reason),
        ),
    ]
    if layout.block_size_tokens is not None:
        rows.append((w("unit of reuse"), w("{n} tokens (a block)", n=whole(layout.block_size_tokens))))
    if layout.diverge_token is not None:
        rows.append((w("prompts part at token"), whole(layout.diverge_token)))
    if layout.diverge_texts:
        rows.append((w("and go on with"), Said(" | ".join(layout.diverge_texts[:3]), foreign=True)))
    if layout.reuse_distance_tokens:
        distance = layout.reuse_distance_tokens
        rows.append(
            (
                w("working set: tokens between two uses of a block"),
                w("median {a}, at most {b}", a=whole(distance[len(distance) // 2]), b=whole(distance[-1])),
            )
        )
    blocks: list[Block] = [Facts(rows)]
    chart = _hit_chart(view)
    if chart is not None:
        blocks.append(chart)
    if (tree := shared_tree(view)) is not None:
        blocks.append(tree)
    return Section("prefix", w("Prefix cache"), blocks)


def shared_tree(view: RunView) -> Block | None:
    """What the run's prompts share, as it was found when it ended; null for runs that did not look."""
    facts = view.data.facts if view.data is not None else []
    value = next((f.value for f in reversed(facts) if f.name == charts_prefix.FACT), None)
    return charts_prefix.tree_chart(view.w, value)


def _hit_chart(view: RunView) -> Block | None:
    """Groups of requests that share a prefix: its length as cached for the first time is not known, so a
    group is drawn at what its warm requests share."""
    data, layout = view.data, view.summary.layout
    block = view.summary.metrics.memory.kv_block_size_tokens or layout.block_size_tokens
    shared = layout.shared_prefix_tokens
    if data is None or not block or not shared:
        return None
    groups: dict[str, list[float]] = defaultdict(list)
    rests = []
    for r in data.records:
        if r.warmup or r.failure is not None or not r.prompt_tokens or r.cached_tokens is None:
            continue
        rests.append(max(0, r.prompt_tokens - shared))
        if r.cached_tokens or r.prefix_id:
            groups[r.prefix_id or ""].append(r.cached_tokens / r.prompt_tokens)
    warm = [hit for hits in groups.values() for hit in hits[1:]] or [
        h for hits in groups.values() for h in hits
    ]
    if len(warm) < MIN_WARM:
        return None
    point = HitPoint(
        float(shared), median(warm), len(warm), view.w("requests after the first of their prefix")
    )
    return charts_memory.hit_chart(view.w, [point], block, median(rests))


def lengths(view: RunView) -> Section | None:
    """Prompt and answer lengths: asked, got, and their grid."""
    w, m = view.w, view.summary.metrics
    rows: list[tuple[str, Inline]] = [
        (w("prompts"), _asked(view, m.prompt_tokens)),
        (w("answers"), _asked(view, m.completion_tokens)),
    ]
    blocks: list[Block] = [Facts(rows)]
    if view.data is not None:
        pairs = [
            (r.prompt_tokens, r.completion_tokens)
            for r in view.data.records
            if not r.warmup
            and r.failure is None
            and r.prompt_tokens is not None
            and r.completion_tokens is not None
        ]
        if pairs:
            blocks.append(charts_memory.lengths_chart(w, pairs))
    return Section("lengths", w("Lengths"), blocks)


def _asked(view: RunView, asked: Asked) -> str:
    w = view.w
    if asked.got_median is None or asked.asked_median is None:
        return view.reason(asked.reason)
    return w(
        "asked {a}, got {b} tokens (medians), {c} to {d}",
        a=whole(asked.asked_median),
        b=whole(asked.got_median),
        c=whole(asked.got_min or 0),
        d=whole(asked.got_max or 0),
    )


def memory(view: RunView) -> Section | None:
    """Host and card over time."""
    w, held, data, span = view.w, view.summary.metrics.memory, view.data, view.span
    rows: list[tuple[str, Inline]] = []
    if held.server_rss_max_bytes is not None:
        rows.append((w("server process"), w("{n} at most", n=size(held.server_rss_max_bytes))))
    for gpu, used in sorted(held.gpu_used_max_bytes.items()):
        rows.append((f"GPU {gpu}", w("{n} at most", n=size(used))))
    if not held.gpu_used_max_bytes:
        rows.append(("GPU", view.say(held.gpu_note) if held.gpu_note else w("not measured")))
    blocks: list[Block] = [Facts(rows)]
    if data is not None and span is not None:
        lines = [(w("server process"), total(data, "server.rss_bytes", span))]
        for gpu in sorted(held.gpu_used_max_bytes):
            points = [
                ((s.t_ns - span.start_ns) * 1e-9, v)
                for s, v in activity.readings(data.samples, "gpu.memory_used_bytes")
                if s.labels.get("gpu", "0") == gpu and span.start_ns <= s.t_ns <= span.end_ns
            ]
            lines.append((f"GPU {gpu}", points))
        kept = [(label, points) for label, points in lines if len(points) > 1]
        if kept:
            blocks.append(
                charts_memory.memory_chart(w, "memory", w("Memory over the run"), kept, span.seconds)
            )
    return Section("memory", w("Memory"), blocks)
