"""`compare_runs`: the same-workload check, the settings that differ, the numbers that differ."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from kvprobe.compare import rows as make
from kvprobe.compare.alike import require_alike
from kvprobe.compare.model import Comparison, Row, Side
from kvprobe.compare.settings import differences
from kvprobe.compare.words import summary_sentence
from kvprobe.diagnose.model import Diagnosis
from kvprobe.evidence.rundata import RunData
from kvprobe.summary.build import Summary, measured_rows

SEED = 1
"""Of the draws: the same two runs always give the same intervals."""
ROWS_WITH_INTERVALS = 13
"""8 percentiles of latencies, 2 of gaps, output, hits, failures: they share the error of 5 %."""

FEW_INDEPENDENT = 30.0
"""Independent requests of a run below which its own drift is too slow for its length: intervals are rough."""
MANY_FAILED = 0.02
"""Share of failed requests above which percentiles of the others are no percentiles of the work."""
SAME_LENGTH = 0.01
"""Median prompt lengths may differ by this share."""

WITHIN_RUNS = (
    "the intervals hold what varies within the two runs, not what varies from run to run (another hour, a "
    "restart, a neighbour): repeat each run before money depends on it"
)

Judged = tuple[RunData, Summary, Diagnosis]


def compare_runs(a: Judged, b: Judged) -> Comparison:
    """Raises UsageError (`unlike_runs`) when the two did not send the same work."""
    doubt = require_alike(a[0], b[0], (a[1].workload_hash, b[1].workload_hash))
    settings = differences(a[0], b[0])
    sampled = _sampled(*a[:2]), _sampled(*b[:2])
    rows = _rows(sampled, a, b)
    sides = _side(*a), _side(*b)
    return Comparison(
        a=sides[0],
        b=sides[1],
        same_workload=doubt is None,
        summary=summary_sentence(rows, settings, _empty(sides)),
        settings=settings,
        rows=rows,
        warnings=[
            *([doubt] if doubt is not None else []),
            *_warnings(sides, a, b),
            *_survivors(sampled),
            *_drifts(sampled),
        ],
    )


def _rows(sampled: tuple[make.Sampled, make.Sampled], a: Judged, b: Judged) -> list[Row]:
    rng = np.random.default_rng(SEED)
    level_all = 1.0 - (1.0 - make.LEVEL) / ROWS_WITH_INTERVALS
    ma, mb = a[1].metrics, b[1].metrics
    hits = (ma.prefix_hit_rate.got, mb.prefix_hit_rate.got)
    found: list[Row | None] = [
        make.failure_row(sampled, level_all),
        *make.latency_rows(*sampled, rng, level_all),
        make.throughput_row((ma.output_tokens_per_s, mb.output_tokens_per_s), sampled, rng, level_all),
        make.hit_row(sampled, rng, level_all) or make.single_row("prefix hit rate", "ratio", "higher", *hits),
        make.single_row("KV use, most", "ratio", "neither", ma.kv_usage_max, mb.kv_usage_max),
        make.single_row("preemptions", "count", "lower", ma.preemptions, mb.preemptions),
        make.single_row("most active", "count", "neither", ma.max_active, mb.max_active),
        make.single_row(
            "server memory, most",
            "B",
            "lower",
            ma.memory.server_rss_max_bytes,
            mb.memory.server_rss_max_bytes,
        ),
    ]
    return [row for row in found if row is not None]


def _sampled(run: RunData, summary: Summary) -> make.Sampled:
    measured = measured_rows(run)
    ok = [r for r in measured if r.failure is None and r.sent_ns is not None]
    return make.Sampled(
        ok=sorted(ok, key=lambda r: r.sent_ns or 0),
        sent=summary.requests.sent,
        failed=summary.requests.failed,
        start_ns=summary.window.start_ns,
        end_ns=summary.window.end_ns,
    )


def _side(run: RunData, summary: Summary, diagnosis: Diagnosis) -> Side:
    validity = diagnosis.validity
    return Side(
        run_dir=str(run.path),
        workload=summary.workload,
        workload_hash=summary.workload_hash,
        engine=summary.engine,
        engine_version=summary.engine_version,
        model=summary.model,
        status=run.status,
        valid=validity.valid if validity is not None else None,
        reasons=list(validity.reasons) if validity is not None else [],
        requests_ok=summary.requests.ok,
        requests_failed=summary.requests.failed,
        started_utc=_started(run),
        primary=diagnosis.primary,
    )


def _started(run: RunData) -> str | None:
    clock = run.environment.get("clock")
    utc_ns = clock.get("utc_ns") if isinstance(clock, dict) else None
    if not isinstance(utc_ns, int) or not 0 < utc_ns < 2**62:
        return None
    return datetime.fromtimestamp(utc_ns / 1e9, UTC).isoformat(timespec="seconds")


def _warnings(sides: tuple[Side, Side], a: Judged, b: Judged) -> list[str]:
    out = [WITHIN_RUNS]
    for letter, side in zip("AB", sides, strict=True):
        if side.valid is False:
            out.append(f"{letter} is INVALID: {'; '.join(side.reasons)}")
        if side.status != "complete":
            out.append(f"{letter} is {side.status}: it did not run to its planned end")
    for letter, (run, _, _) in zip("AB", (a, b), strict=True):
        if not run.environment:
            out.append(
                f"{letter} does not say how it was made (its environment.json is missing or cannot be read): "
                "settings may differ that are not shown"
            )
    tokens_a, tokens_b = (s[1].metrics.prompt_tokens.got_median for s in (a, b))
    if tokens_a and tokens_b and abs(tokens_a - tokens_b) > SAME_LENGTH * max(tokens_a, tokens_b):
        out.append(
            f"the prompts differ in the servers' own count, {tokens_a:,.0f} tokens in A and "
            f"{tokens_b:,.0f} in B: another tokenizer, so that latencies are not of equal work"
        )
    if sides[0].run_dir == sides[1].run_dir:
        out.append("A and B are the same directory")
    elif _same_rows(a[0], b[0]):
        out.append("A and B hold the same requests, at the same instants: one is a copy of the other")
    return out


def _same_rows(a: RunData, b: RunData) -> bool:
    """Instants of two runs are never all the same, to the nanosecond."""
    stamps = [
        sorted((r.sent_ns, r.first_byte_ns or 0, r.end_ns or 0) for r in run.records if r.sent_ns is not None)
        for run in (a, b)
    ]
    return bool(stamps[0]) and stamps[0] == stamps[1]


def _drifts(sampled: tuple[make.Sampled, make.Sampled]) -> list[str]:
    """A run whose speed wanders on the scale of its own length: its intervals hold less than they say."""
    out = []
    for letter, side in zip("AB", sampled, strict=True):
        worth = len(side.ok) / side.time
        if len(side.ok) >= FEW_INDEPENDENT > worth:
            out.append(
                f"the latencies of {letter} drift slowly: its {len(side.ok):,} requests are worth about "
                f"{worth:.0f} independent ones, so that its intervals are rough and may miss a difference of "
                "chance more often than 5 times in 100; run longer"
            )
    return out


def _empty(sides: tuple[Side, Side]) -> str | None:
    """Which of the runs has nothing to compare."""
    empty = [letter for letter, side in zip("AB", sides, strict=True) if not side.requests_ok]
    return f"no request of {' and '.join(empty)} ended well" if empty else None


def _survivors(sampled: tuple[make.Sampled, make.Sampled]) -> list[str]:
    """Latencies are those of requests that ended well: where many failed, of those that were left."""
    out = []
    for letter, side in zip("AB", sampled, strict=True):
        if side.ok and side.failed > MANY_FAILED * side.sent:
            out.append(
                f"{side.failed:,} of {side.sent:,} requests of {letter} failed: its latencies are those of "
                "the others, which had the server more to themselves"
            )
    return out
