"""The first screen of a run: verdict, validity, the primary finding, five numbers with intervals."""

from __future__ import annotations

from kvprobe.diagnose.causes import HEALTHY, UNKNOWN
from kvprobe.gates.intervals import wilson
from kvprobe.report.content import Block, Card, Facts, Inline, Para, Said, Tile, Tiles, Tone, clipped
from kvprobe.report.kept_up import behind
from kvprobe.report.run_series import hit_share, output_rate
from kvprobe.report.run_view import RunView, interval
from kvprobe.summary.latency import Distribution
from kvprobe.summary.units import figures, percent, seconds, whole

FEW_REQUESTS = 20


def badges(view: RunView) -> list[Said]:
    """What must be seen before any number: is it valid, is it whole."""
    w, out = view.w, []
    if view.summary.status != "complete":
        out.append(Said(w("PARTIAL"), "warn"))
    if view.diagnosis.validity is None:
        out.append(Said(w("validity not judged"), "warn"))
    elif view.valid:
        n = len(view.diagnosis.validity.warnings)
        out.append(Said(w("VALID measurement"), "good"))
        if n:
            out.append(Said(w("1 warning") if n == 1 else w("{n} warnings", n=n), "warn"))
    else:
        out.append(Said(w("INVALID: do not quote these numbers"), "bad"))
    if n := view.summary.requests.failed_before_end:
        out.append(Said(w("1 request failed") if n == 1 else w("{n} requests failed", n=whole(n)), "bad"))
    if n := view.summary.requests.cut_at_end:
        out.append(Said(w("{n} cut off at the end", n=whole(n)), "warn"))
    gates = [g for g in view.document.get("thresholds") or [] if isinstance(g, dict)]
    missed = sum(1 for g in gates if g.get("verdict") != "pass")
    if gates:
        told = (
            w("{missed} of {n} thresholds not kept", missed=missed, n=len(gates))
            if missed
            else w("thresholds kept")
        )
        out.append(Said(told, "bad" if missed else "good"))
    return out


def first_screen(view: RunView) -> list[Block]:
    return [*_partial(view), _verdict(view), Tiles(_tiles(view)), _strip(view)]


def _partial(view: RunView) -> list[Block]:
    if view.summary.status == "complete":
        return []
    w = view.w
    cut = (
        w("The run was killed, or is still going.")
        if view.summary.status == "killed"
        else w("The run did not go to its planned end.")
    )
    parts = [cut]
    if view.data is not None and view.data.opened:
        parts.append(w("{n} requests in flight have no row.", n=whole(len(view.data.opened))))
    if view.summary.bad_lines:
        parts.append(w("{n} damaged lines were left out.", n=whole(view.summary.bad_lines)))
    return [Card(w("PARTIAL: what was written until then"), [Para(" ".join(parts))], "warn")]


def _verdict(view: RunView) -> Card:
    """The answer: what, how sure, why, where to look first, what mends it."""
    w = view.w
    findings = view.diagnosis.findings
    if not findings:
        few = view.summary.requests.ok < FEW_REQUESTS
        blocks: list[Block] = [Para(view.say(o.text)) for o in view.diagnosis.observations[:1]]
        if few:
            blocks.insert(
                0, Para(w("It rests on {n} requests, which is few.", n=whole(view.summary.requests.ok)))
            )
        if (lagged := behind(view.diagnosis)) is not None:
            title = w("The server did not keep up with the load; no other cause was found")
            said = view.say(lagged)
            why = Said(_capital(said.text), foreign=said.foreign)
            return Card(title, [Para(why), *blocks], "warn", w("Verdict"))
        healthy = view.diagnosis.primary == HEALTHY
        title = w("Nothing wrong was found") if healthy else w.cause(view.diagnosis.primary)
        tone: Tone = ("good" if healthy and not few else "warn") if view.valid else "bad"
        return Card(_invalid(view, title), blocks, tone, f"{w('Verdict')} · {view.diagnosis.primary}")
    first = findings[0]
    rows: list[tuple[str, Inline]] = []
    if (advice := w.advice(first.cause)) is not None:
        rows.append((w("what usually mends it"), advice))
    rows += [(w("look first"), view.say(step)) for step in first.check_first[:1]]
    rows += [(w("remedy"), view.say(step)) for step in first.remedy[:1]]
    also = [f for f in findings[1:] if f.role == "secondary" and f.cause != UNKNOWN]
    if also:
        rows.append((w("also"), "; ".join(f"{w.cause(f.cause)} ({f.cause})" for f in also)))
    label = f"{w('Verdict')} · {first.cause} · {w(first.confidence)}"
    blocks = [Para(view.say(first.why)), Facts(rows)]
    return Card(
        _invalid(view, _capital(w.cause(first.cause))),
        blocks,
        "bad" if first.confidence == "certain" or not view.valid else "warn",
        label,
    )


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _invalid(view: RunView, title: str) -> str:
    return title if view.valid else view.w("The measurement is INVALID. {title}", title=title)


def _tiles(view: RunView) -> list[Tile]:
    w, m = view.w, view.summary.metrics
    return [
        _latency_tile(view, "TTFT", m.ttft_s, w("time to first token")),
        _latency_tile(view, w("chunk gap"), m.gap_s, w("between two chunks of an answer")),
        _output_tile(view),
        _failed_tile(view),
        _pool_tile(view),
    ]


def _latency_tile(view: RunView, label: str, found: Distribution, what: str) -> Tile:
    """The highest percentile that n can carry, up to p99; the median beside it."""
    w = view.w
    for name in ("p99", "p95", "p50"):
        value: float | None = getattr(found, name)
        if value is not None:
            note = what if name == "p99" else w("{what}; p99: n too small ({n})", what=what, n=whole(found.n))
            if name != "p50" and found.p50 is not None:
                note = f"{note}; p50 {seconds(found.p50)}"
            return Tile(f"{label} {name}", seconds(value), interval(value, found.ci.get(name)), note)
    if found.n:
        return Tile(label, w("n too small"), w("{n} values", n=whole(found.n)), what, "warn")
    return Tile(label, w("not known"), view.reason(found.reasons.get("p50")), what, "warn")


def _output_tile(view: RunView) -> Tile:
    w, m, span = view.w, view.summary.metrics, view.summary.window
    label = w("output tokens/s")
    value = m.output_tokens_per_s
    if value is None:
        return Tile(label, w("not known"), view.reason(m.reasons.get("output_tokens_per_s")), "", "warn")
    done = m.rates.completed_per_s
    note = w("{n} requests/s done", n=figures(done)) if done is not None else ""
    if view.data is None or span.start_ns is None or span.end_ns is None:
        return Tile(label, figures(value), "", note)
    found = output_rate(view.data.records, span.start_ns, span.end_ns, value)
    if found.lo is None or found.hi is None:
        return Tile(label, figures(value), w("n too small for an interval"), note)
    return Tile(label, figures(value), f"[{figures(found.lo)} - {figures(found.hi)}]", note)


def _failed_tile(view: RunView) -> Tile:
    w, counted = view.w, view.summary.requests
    failed = counted.failed_before_end
    bounds = wilson(failed, counted.ok + failed)
    label = w("failed requests")
    if bounds is None:
        return Tile(label, w("none ended"), "", w("{n} sent", n=whole(counted.sent)), "warn")
    note = w("{failed} of {n}", failed=whole(failed), n=whole(counted.ok + failed))
    if counted.cut_at_end:
        note += w("; {n} cut off at the end apart", n=whole(counted.cut_at_end))
    tone: Tone = "bad" if failed else ""
    return Tile(
        label,
        percent(failed / (counted.ok + failed)),
        f"[{percent(bounds[0])} - {percent(bounds[1])}]",
        note,
        tone,
    )


def _pool_tile(view: RunView) -> Tile:
    """The prefix hit rate where prompts share anything; else the most that the pool held."""
    w, m = view.w, view.summary.metrics
    rate = m.prefix_hit_rate
    if rate.got is not None and (rate.ceiling or rate.got > 0):
        note = w("ceiling of these prompts {n}", n=percent(rate.ceiling)) if rate.ceiling is not None else ""
        pairs = (
            []
            if view.data is None
            else [
                (r.cached_tokens, r.prompt_tokens)
                for r in view.data.records
                if not r.warmup and r.cached_tokens is not None and r.prompt_tokens
            ]
        )
        found = hit_share(pairs, rate.got)
        told = (
            f"[{percent(found.lo)} - {percent(found.hi)}]"
            if found.lo is not None and found.hi is not None
            else w("n too small for an interval")
        )
        return Tile(w("prefix hits"), percent(rate.got), told, note)
    if m.kv_usage_max is None:
        return Tile(
            w("KV pool, most in use"), w("not known"), view.reason(m.reasons.get("kv_usage_max")), "", "warn"
        )
    note = w("of {n} readings; what passed between two was not seen", n=whole(m.kv_usage.samples))
    tone: Tone = "bad" if m.kv_usage_max >= 0.9 else ""
    return Tile(w("KV pool, most in use"), percent(m.kv_usage_max), w("sampled: a lower bound"), note, tone)


def _strip(view: RunView) -> Facts:
    """What was run, against what."""
    w, s = view.w, view.summary
    who = " ".join(p for p in (s.engine, s.engine_version) if p) or w("not known")
    model = s.model or w("model not known")
    rows: list[tuple[str, Inline]] = [
        (w("workload"), clipped(s.workload or w("not known"))),
        (w("target"), " · ".join(map(clipped, (s.target or w("not known"), model, who)))),
        (w("requests"), requests_text(view)),
    ]
    usage = s.metrics.kv_usage_max
    told = percent(usage) if usage is not None else view.reason(s.metrics.reasons.get("kv_usage_max"))
    preempted = s.metrics.preemptions
    jolts = (
        w("{n} preemptions", n=whole(preempted)) if preempted is not None else w("preemptions not exported")
    )
    rows.append((w("KV pool, most in use"), f"{told}; {jolts}"))
    active = s.metrics.max_active
    rows.append((w("most in flight"), whole(active) if active is not None else w("not known")))
    return Facts(rows)


def requests_text(view: RunView) -> str:
    """`120 sent, 120 ok, 0 failed in 13.5 s; 4 warm-up requests apart`"""
    w, c = view.w, view.summary.requests
    parts = [
        w("{n} sent", n=whole(c.sent)),
        w("{n} ok", n=whole(c.ok)),
        w("{n} failed", n=whole(c.failed_before_end)),
    ]
    if c.cut_at_end:
        parts.append(w("{n} cut off at the end", n=whole(c.cut_at_end)))
    if c.unsent:
        parts.append(w("{n} never sent", n=whole(c.unsent)))
    if c.unfinished:
        parts.append(w("{n} cut in flight", n=whole(c.unfinished)))
    told = w(", ").join(parts)
    if view.summary.window.seconds:
        told += w(" in {t}", t=seconds(view.summary.window.seconds))
    if c.warmup:
        told += w("; {n} warm-up requests apart", n=whole(c.warmup))
    return told
