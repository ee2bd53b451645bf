"""A replay on a terminal: what fits, how long it waits, who held the cache, the sweeps."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType

from kvprobe.plan.simulate.holders import Exhaustion, Holder
from kvprobe.plan.simulate.outcome import Spread
from kvprobe.plan.simulate.replay import Replay
from kvprobe.report.ink import Ink
from kvprobe.report.replay_sweep_text import plain_table, smallest_text, sweep_rows
from kvprobe.summary.units import percent, plural, seconds, size, whole

MOMENTS_SHOWN = 3
HOLDERS_SHOWN = 5
LINE_CELLS = 60
_NAMES = (("queue_s", "queue"), ("ttft_s", "TTFT"), ("tpot_s", "TPOT"), ("e2e_s", "end to end"))


def render_replay(found: Replay, console: Console) -> None:
    """Print the whole page."""
    ink = Ink(console)
    if found.beside is not None:
        _side_by_side(ink, found, found.beside)
        ink.blank()
    _one(ink, found)
    if found.beside is not None:
        ink.blank()
        _one(ink, found.beside)


def _one(ink: Ink, found: Replay) -> None:
    ink.rows([("replay", ink.text(_headline(found), "bold")), *_server_rows(ink, found)])
    ink.blank()
    ink.rows(list(_answer_rows(ink, found)))
    ink.blank()
    _latency(ink, found)
    _line(ink, found)
    _exhausted(ink, found)
    _few(ink, found)
    for sweep in found.sweeps:
        sweep_rows(ink, sweep, found)
    if found.smallest is not None:
        ink.blank()
        ink.rows([("smallest pool", ink.text(smallest_text(found.smallest), "bold"))])
    notes = [*found.step_time.notes, *found.assumptions]
    if notes:
        ink.blank()
        ink.rows([("assumed" if n == 0 else "", ink.text(note, "dim")) for n, note in enumerate(notes)])


def _headline(found: Replay) -> str:
    trace = found.trace
    return (
        f"{trace.path}: {plural(trace.rows, 'request')} ({trace.format}) over {seconds(trace.span_s)}, "
        f"{whole(trace.in_tokens_mean)} tokens in and {whole(trace.out_tokens_mean)} out on average"
    )


def _server_rows(ink: Ink, found: Replay) -> Iterator[tuple[str, RenderableType]]:
    if found.trace.dropped:
        said = ", ".join(f"{count:,} with {why}" for why, count in found.trace.dropped.items())
        yield "left out", ink.text(said)
    s, pool = found.settings, found.pool
    held = f"{pool.tokens:,} tokens" + (f" = {size(pool.bytes)}" if pool.bytes is not None else "")
    yield (
        "pool",
        ink.text(
            f"{pool.usable_blocks:,} blocks of {plural(pool.block_size, 'token')} = {held}"
            f"; {s.allocator}, {s.engine}'s admission, {s.preemption}, prefix caching "
            f"{'on' if s.prefix_caching else 'off'}"
        ),
    )
    limit = f", context {s.max_model_len:,}" if s.max_model_len else ""
    step = f"{s.max_num_seqs:,} requests and {s.max_num_batched_tokens:,} tokens a step"
    yield "limits", ink.text(step + limit)
    yield "step time", ink.text(_step_time(found))


def _step_time(found: Replay) -> str:
    t = found.step_time
    terms = f"{seconds(t.fixed_s)} a step {'or' if t.roofline else '+'} {seconds(t.token_s)} a token"
    if t.roofline:
        terms += ", whichever is more,"
    front = f"; {seconds(t.front_s)} a request besides" if t.front_s else ""
    return f"{terms} + {t.kv_token_s * 1e9:.3g} ns a KV token read{front} ({t.source})"


def _answer_rows(ink: Ink, found: Replay) -> Iterator[tuple[str, RenderableType]]:
    r, c, p = found.requests, found.concurrency, found.pool
    bad = r.refused + r.failed
    said = f"{r.ok:,} of {r.total:,} served; {r.refused:,} refused as too long"
    if r.failed:
        said += f"; {r.failed:,} failed for lack of room"
    yield "requests", ink.text(said, "bold yellow" if bad else "bold green")
    yield (
        "at once",
        ink.text(
            f"{c.mean:.1f} on average, {c.peak:,} at most; waiting {c.waiting_mean:.1f} on average, "
            f"{c.waiting_peak:,} at most"
        ),
    )
    yield (
        "pool in use",
        ink.text(
            f"{percent(p.mean_ratio)} on average, {percent(p.peak_ratio)} at most ({p.peak_blocks:,} blocks)"
            f"; {percent(p.cached_mean_ratio)} holds cached blocks that nobody uses"
        ),
    )
    yield "physical", ink.text(_physical(p.physical_over_logical))
    x = found.prefix
    hits = (
        x.why_null if x.hit_rate is None else f"{percent(x.hit_rate)} of {x.queried_tokens:,} prompt tokens"
    )
    yield "prefix hits", ink.text(hits)
    q = found.preemptions
    text = f"{q.events:,}, of {plural(q.requests, 'request')} ({percent(q.share)})"
    if q.events:
        text += f"; {q.recomputed_tokens:,} tokens computed again"
    if q.swapped_out_blocks:
        text += f"; {q.swapped_out_blocks:,} blocks swapped out, {q.swapped_in_blocks:,} in"
    yield "preemptions", ink.text(text, "bold red" if q.share > 0.01 else "")


def _physical(ratio: float | None) -> str:
    if ratio is None:
        return "not told for layers of several kinds"
    if ratio >= 1:
        return f"{ratio:.3f} slots held for each token in them: the rest is tails and reservations"
    return f"{ratio:.3f} slots held for each token in them: shared prefixes lie there once"


def _latency(ink: Ink, found: Replay) -> None:
    table = plain_table(("", "mean", "p50", "p95", "p99", "max"))
    for name, label in _NAMES:
        spread: Spread | None = found.metrics[name]
        cells = ["-"] * 5
        if spread is not None:
            cells = [seconds(v) for v in (spread.mean, spread.p50, spread.p95, spread.p99, spread.max)]
        table.add_row(ink.text(label, "bold"), *(ink.text(cell) for cell in cells))
    ink.console.print(table)


def _line(ink: Ink, found: Replay) -> None:
    if len(found.time_line) < 2:
        return
    used = [(moment.t_s, moment.used_peak_ratio) for moment in found.time_line]
    running = [(moment.t_s, float(moment.running_peak)) for moment in found.time_line]
    waiting = [(moment.t_s, float(moment.waiting)) for moment in found.time_line]
    top = max((value for _, value in waiting), default=0.0)
    ink.blank()
    ink.rows(
        [
            ("pool", ink.sparkline(used, LINE_CELLS)),
            ("at once", ink.sparkline(running, LINE_CELLS, top=max(found.concurrency.peak, 1))),
            (f"queue to {top:,.0f}", ink.sparkline(waiting, LINE_CELLS, top=max(top, 1.0))),
        ]
    )


def _exhausted(ink: Ink, found: Replay) -> None:
    e = found.exhaustions
    ink.blank()
    if not e.count:
        ink.rows([("ran out", ink.text("never: no request was refused room", "green"))])
        return
    first = seconds(e.first_s or 0.0)
    ink.rows([("ran out", ink.text(f"room was refused {plural(e.count, 'time')}, first at {first}", "bold"))])
    worst = sorted(e.moments, key=lambda m: -max((h.share for h in m.holders), default=0.0))
    for moment in worst[:MOMENTS_SHOWN]:
        _moment(ink, moment, found)


def _moment(ink: Ink, moment: Exhaustion, found: Replay) -> None:
    who = "a running request" if moment.kind == "preemption" else "a waiting request"
    if moment.wanted_by_line is not None:
        who += f" (line {moment.wanted_by_line:,})"
    ink.line(
        f"  at {seconds(moment.t_s)}: {who} wanted {plural(moment.wanted_blocks, 'block')}, "
        f"{moment.available_blocks:,} left, {moment.running:,} running. Who held most:"
    )
    for holder in moment.holders[:HOLDERS_SHOWN]:
        ink.line(f"    {_holder(holder, found)}")


def _holder(holder: Holder, found: Replay) -> str:
    session = f", session {holder.session}" if holder.session else ""
    return (
        f"line {holder.line:,}{session}: {holder.tokens:,} tokens, {holder.blocks:,} blocks "
        f"({percent(holder.share)} of the pool), arrived {seconds(holder.age_s)} before"
    )


def _few(ink: Ink, found: Replay) -> None:
    c = found.concentration
    if c is None:
        return
    ink.blank()
    said = (
        f"{percent(c.requests_share)} of requests ({c.requests:,}) hold {percent(c.byte_seconds_share)} of "
        "all byte-seconds"
    )
    ink.rows([("who holds", ink.text(said, "bold"))])
    for heavy in c.heaviest[:HOLDERS_SHOWN]:
        session = f", session {heavy.session}" if heavy.session else ""
        ink.line(
            f"    line {heavy.line:,}{session}: {heavy.in_tokens:,} in, {heavy.out_tokens:,} out: "
            f"{percent(heavy.share)}"
        )


def _side_by_side(ink: Ink, a: Replay, b: Replay) -> None:
    """Two traces on one server."""
    table = plain_table(("", "first trace", "second trace"))
    for (label, left), (_, right) in zip(_facts(a), _facts(b), strict=True):
        table.add_row(ink.text(label, "bold"), ink.text(left), ink.text(right))
    ink.console.print(table)


def _facts(found: Replay) -> list[tuple[str, str]]:
    ttft, e2e = found.metrics["ttft_s"], found.metrics["e2e_s"]

    def of(spread: Spread | None, name: str) -> str:
        return "-" if spread is None else seconds(getattr(spread, name))

    few = found.concentration
    return [
        ("tokens a request", f"{found.trace.in_tokens_mean + found.trace.out_tokens_mean:,.0f} on average"),
        ("refused", f"{found.requests.refused:,} of {found.requests.total:,}"),
        ("at once", f"{found.concurrency.mean:.1f}, {found.concurrency.peak:,} at most"),
        ("preempted", percent(found.preemptions.share)),
        ("TTFT p50", of(ttft, "p50")),
        ("TTFT p95", of(ttft, "p95")),
        ("TTFT p99", of(ttft, "p99")),
        ("end to end p99", of(e2e, "p99")),
        ("heaviest 1 %", "-" if few is None else f"{percent(few.byte_seconds_share)} of byte-seconds"),
    ]
