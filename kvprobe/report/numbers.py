"""The numbers of a run as a table and as labelled lines. A value that is not known says why, never 0."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvprobe.report.ink import LABEL_WIDTH, Ink
from kvprobe.summary.build import Summary
from kvprobe.summary.latency import Distribution
from kvprobe.summary.rates import Asked
from kvprobe.summary.units import figures, percent, plural, seconds, size, whole

SHOWN = ("p50", "p95", "p99")
FROM_SCHEDULE_DIFFERS = 0.01
"""Latency from the schedule is shown where it differs from latency from sent by so much."""
SPARK_MAX = 60
SPARK_SCALES = (0.1, 0.25, 0.5, 1.0)
ROOMY_COLUMNS = 96
"""From here on the table has wider gaps; below, each cell of it still fits 80 columns."""


def latency_table(ink: Ink, summary: Summary) -> Table:
    """TTFT, TPOT, gaps and end to end: percentiles with 95 % intervals."""
    roomy = ink.console.width >= ROOMY_COLUMNS
    table = Table(box=None, padding=(0, 2 if roomy else 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column("latency", no_wrap=True, min_width=LABEL_WIDTH if roomy else None)
    table.add_column("n", justify="right", no_wrap=True)
    for name in SHOWN:
        table.add_column(f"{name} [95 %]", no_wrap=True)
    for label, found in _rows(summary):
        table.add_row(ink.text(label), ink.text(whole(found.n)), *(_cell(ink, found, name) for name in SHOWN))
        if summary.requests.failed and found.with_failures is not None:
            _add_with_failures(ink, table, found)
    return table


def _rows(summary: Summary) -> list[tuple[str, Distribution]]:
    m = summary.metrics
    rows = [("TTFT", m.ttft_s)]
    if _differ(m.ttft_s, m.ttfo_s):
        rows.append(("TTFO", m.ttfo_s))
    if _differ(m.ttft_s, m.response_ttft_s):
        rows.append(("  scheduled", m.response_ttft_s))
    rows += [("TPOT", m.tpot_s), ("chunk gap", m.gap_s), ("end to end", m.e2e_s)]
    if _differ(m.e2e_s, m.response_latency_s):
        rows.append(("  scheduled", m.response_latency_s))
    return rows


def _differ(a: Distribution, b: Distribution) -> bool:
    """Do two readings of one latency tell different stories (in the mean, p50 or p95)?"""
    pairs = [(a.mean, b.mean), (a.p50, b.p50), (a.p95, b.p95)]
    return any(
        x is not None and y is not None and abs(x - y) > FROM_SCHEDULE_DIFFERS * max(x, y) for x, y in pairs
    )


def _cell(ink: Ink, found: Distribution, name: str) -> Text:
    value: float | None = getattr(found, name)
    if value is None and name == "p50" and found.min is not None and found.max is not None:
        # Too few for a median: what was seen is still worth seeing.
        low, high = seconds(found.min), seconds(found.max)
        return ink.text(f"seen {low}" if found.n == 1 else f"seen {low}-{high}", "dim")
    if value is None:
        return ink.text(_short_reason(found.reasons.get(name)), "dim")
    ci = found.ci.get(name)
    return ink.join((seconds(value), "bold"), (f" {_interval(value, ci)}" if ci else "", "dim"))


def _interval(value: float, ci: dict[str, float | None]) -> str:
    """Bounds in the unit of the value; a one-sided bound as `<= x`."""
    factor = 1.0 if value >= 1 else 1e3 if value >= 1e-3 else 1e6
    lo, hi = ci.get("lo"), ci.get("hi")
    if hi is None:
        return ""
    return (
        f"[<= {figures(hi * factor)}]" if lo is None else f"[{figures(lo * factor)}-{figures(hi * factor)}]"
    )


def _short_reason(reason: str | None) -> str:
    if reason is None:
        return "not known"
    return "n too small" if reason.startswith("n too small") else reason.partition(":")[0]


def _add_with_failures(ink: Ink, table: Table, found: Distribution) -> None:
    """The same latency with failed requests let in; waits that were cut short count as longer."""
    other = found.with_failures
    if other is None or other.n == found.n:
        return
    cells = []
    for name in SHOWN:
        value: float | None = getattr(other, name)
        cells.append(
            ink.text(seconds(value) if value is not None else _short_reason(other.reasons.get(name)), "dim")
        )
    label = f"  {other.censored} cut short" if other.censored else "  with failed"
    table.add_row(ink.text(label, "dim"), ink.text(whole(other.n), "dim"), *cells)


def load_rows(ink: Ink, summary: Summary) -> list[tuple[str, RenderableType]]:
    """Throughput, concurrency, KV use, hits, lengths, memory."""
    return [
        ("output", ink.text(_throughput(summary))),
        ("most active", ink.text(_active(summary))),
        ("KV use", _kv_use(ink, summary)),
        ("prefix hits", ink.text(_hits(summary))),
        ("prompts", ink.text(_asked(summary.metrics.prompt_tokens))),
        ("answers", ink.text(_asked(summary.metrics.completion_tokens))),
        ("memory", ink.text(_memory(summary))),
    ]


def arrival_text(summary: Summary) -> str | None:
    """How requests came: users that wait, or a schedule; what the schedule wanted against what was sent."""
    arrival, rates = summary.arrival, summary.metrics.rates
    if arrival.loop == "closed":
        users = plural(arrival.users, "user") if arrival.users is not None else "users"
        course = f"; {arrival.course}" if arrival.course is not None else ""
        return f"closed loop, {users} (each waits for its answer){course}"
    if rates.offered_per_s is None or rates.achieved_per_s is None:
        return "open loop" if arrival.loop == "open" else None
    kind = f"open loop{f', {arrival.process} arrivals' if arrival.process else ''}: " if arrival.loop else ""
    asked = f" (asked for {figures(arrival.rate_per_s)}/s)" if arrival.rate_per_s is not None else ""
    asked = f" (asked for: {arrival.course})" if arrival.course is not None else asked
    wanted, sent = figures(rates.offered_per_s), figures(rates.achieved_per_s)
    return f"{kind}requests {wanted}/s wanted{asked}, {sent}/s sent"


def _throughput(summary: Summary) -> str:
    m = summary.metrics
    value = m.output_tokens_per_s
    tokens = (
        f"{figures(value)} tokens/s" if value is not None else _null(m.reasons.get("output_tokens_per_s"))
    )
    done = m.rates.completed_per_s
    return f"{tokens}; {figures(done)} requests/s done" if done is not None else tokens


def _null(reason: str | None) -> str:
    return reason or "not known"


def _active(summary: Summary) -> str:
    active = summary.metrics.active
    client = whole(active.client) if active.client is not None else "none"
    if active.server is None:
        return f"{client} in flight at the client; server: {_null(active.server_reason)}"
    how = "its own high-water mark" if active.server_source == "high_water" else "sampled, a lower bound"
    return f"{client} in flight at the client; {whole(active.server)} running at the server ({how})"


def _kv_use(ink: Ink, summary: Summary) -> Text:
    usage = summary.metrics.kv_usage
    if usage.max is None:
        return ink.text(usage.reason or "not known")
    # On a scale to 100 % a pool that is nearly empty is a flat line: the scale is said.
    top = next((t for t in SPARK_SCALES if usage.max <= t), 1.0)
    told = f"  max {percent(usage.max)} (scale 0-{100 * top:.0f} %), {whole(usage.samples)} readings"
    room = max(8, min(SPARK_MAX, ink.console.width - LABEL_WIDTH - 4 - len(told)))
    preempted = summary.metrics.preemptions
    extra = f", {whole(preempted)} preemptions" if preempted else ""
    line = ink.sparkline(usage.points, room, top)
    line.append_text(ink.text(told + extra))
    return line


def _hits(summary: Summary) -> str:
    rate = summary.metrics.prefix_hit_rate
    got = f"got {percent(rate.got)} (from {rate.got_source})" if rate.got is not None else _null(rate.reason)
    aimed = percent(rate.aimed) if rate.aimed is not None else "not known"
    ceiling = percent(rate.ceiling) if rate.ceiling is not None else "not known"
    return f"{got}; aimed {aimed}; ceiling of these prompts {ceiling}"


def _asked(asked: Asked) -> str:
    if asked.got_median is None or asked.asked_median is None:
        return _null(asked.reason)
    spread = (
        f" ({whole(asked.got_min or 0)}-{whole(asked.got_max or 0)})"
        if asked.got_min != asked.got_max
        else ""
    )
    return f"asked {whole(asked.asked_median)}, got {whole(asked.got_median)}{spread} tokens (median)"


def _memory(summary: Summary) -> str:
    m = summary.metrics.memory
    parts = [
        f"server process {size(m.server_rss_max_bytes)} at most"
        if m.server_rss_max_bytes is not None
        else "server process: not measured"
    ]
    if m.kv_blocks is not None and m.kv_block_size_tokens is not None:
        held = f" ({size(m.kv_pool_bytes)})" if m.kv_pool_bytes is not None else ""
        parts.append(f"KV pool {whole(m.kv_blocks)} blocks x {m.kv_block_size_tokens} tokens{held}")
    else:
        parts.append(f"KV pool: {_null(m.kv_pool_reason)}")
    parts += [f"GPU {gpu} {size(used)} at most" for gpu, used in sorted(m.gpu_used_max_bytes.items())]
    if not m.gpu_used_max_bytes and m.gpu_note:
        parts.append(m.gpu_note)
    return "; ".join(parts)
