"""The numbers that are compared, each with what chance within the two runs could make of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvprobe.compare import resample
from kvprobe.compare.model import Interval, Row, Verdict
from kvprobe.compare.proportions import newcombe
from kvprobe.compare.resample import Floats, Weights
from kvprobe.evidence.records import RequestRecord
from kvprobe.summary import latency
from kvprobe.summary.quantiles import needed

LEVEL = 0.95
MIN_SLICES = 20
MIN_WINDOW_S = 2.0
MAX_SLICES = 120
"""Of a window: a second each in between."""


_LABELS = {"ttft_s": "ttft", "tpot_s": "tpot", "e2e_s": "e2e", "response_latency_s": "e2e scheduled"}


@dataclass(slots=True)
class Sampled:
    """One run made ready to be drawn from: requests that ended well, in the order sent."""

    ok: list[RequestRecord]
    sent: int
    failed: int
    start_ns: int | None
    end_ns: int | None


LATENCY_ROWS: tuple[tuple[str, Callable[[RequestRecord], float | None], tuple[float, ...]], ...] = (
    ("ttft_s", latency.ttft_s, (0.5, 0.95, 0.99)),
    ("tpot_s", latency.tpot_s, (0.5, 0.95)),
    ("e2e_s", latency.e2e_s, (0.5, 0.95)),
    ("response_latency_s", latency.response_latency_s, (0.95,)),
)


def latency_rows(a: Sampled, b: Sampled, rng: np.random.Generator, level_all: float) -> list[Row]:
    """Percentiles of each latency, then of the pooled gaps between chunks."""
    out: list[Row] = []
    for name, value_of, qs in LATENCY_ROWS:
        sides = [_values(side.ok, value_of) for side in (a, b)]
        counts = [resample.draws(v.size, resample.block_length(v), rng) if v.size else None for v in sides]
        for q in qs:
            out.append(_quantile_row(name, q, sides, counts, level_all))
    for q in (0.5, 0.99):
        out.append(_gap_row(q, (a, b), rng, level_all))
    return out


def _values(ok: Sequence[RequestRecord], value_of: Callable[[RequestRecord], float | None]) -> Floats:
    return np.array([v for r in ok if (v := value_of(r)) is not None], dtype=np.float64)


def _quantile_row(
    name: str, q: float, sides: list[Floats], counts: list[Weights | None], level_all: float
) -> Row:
    label = f"{_LABELS[name]} p{100 * q:g}"
    sizes = [int(v.size) for v in sides]
    if (short := min(sizes)) < needed(q):
        why = "no values" if short == 0 else f"n too small: {short}, p{100 * q:g} needs {needed(q)}"
        a, b = (float(np.median(v)) if q == 0.5 and v.size else None for v in sides)
        return _row(label, "s", "lower", a, b, sizes, verdict="n_too_small", why=why)
    a, b = (float(np.quantile(v, q)) for v in sides)
    ordered = [np.argsort(v, kind="stable") for v in sides]
    found = [
        resample.resampled(lambda w, v=v, o=o: resample.weighted_quantile(v[o], w[o], q), c)  # type: ignore[misc]
        for v, o, c in zip(sides, ordered, counts, strict=True)
        if c is not None
    ]
    return _judged(label, "s", "lower", (a, b), sizes, found[1] / found[0] - 1.0, level_all)


def _gap_row(q: float, sides: tuple[Sampled, Sampled], rng: np.random.Generator, level_all: float) -> Row:
    """Gaps of one stream are alike: whole requests are drawn, with all their gaps."""
    label = f"gap p{100 * q:g}"
    values, found, sizes = [], [], []
    for side in sides:
        streams = [r for r in side.ok if r.gaps_ns]
        sizes.append(len(streams))
        if len(streams) < needed(q):
            continue
        gaps = np.concatenate([np.asarray(r.gaps_ns, dtype=np.float64) for r in streams]) * latency.NS
        owner = np.repeat(np.arange(len(streams)), [len(r.gaps_ns) for r in streams])
        order = np.argsort(gaps, kind="stable")
        gaps, owner = gaps[order], owner[order]
        means = np.array([np.mean(r.gaps_ns) for r in streams])
        rounds = resample.RESAMPLES if gaps.size <= 100_000 else resample.RESAMPLES // 4
        counts = resample.draws(len(streams), resample.block_length(means), rng, rounds)
        values.append(float(np.quantile(gaps, q)))
        found.append(
            resample.resampled(lambda w, g=gaps, o=owner: resample.weighted_quantile(g, w[o], q), counts)  # type: ignore[misc]
        )
    if len(found) < 2:
        why = f"n too small: {min(sizes)} streams, p{100 * q:g} needs {needed(q)}"
        return _row(label, "s", "lower", None, None, sizes, verdict="n_too_small", why=why)
    short = min(len(f) for f in found)
    change = found[1][:short] / found[0][:short] - 1.0
    return _judged(label, "s", "lower", (values[0], values[1]), sizes, change, level_all)


def throughput_row(
    values: tuple[float | None, float | None],
    sides: tuple[Sampled, Sampled],
    rng: np.random.Generator,
    level_all: float,
) -> Row:
    """Output tokens a second over the window; slices of time are drawn."""
    slices = [_token_slices(side) for side in sides]
    sizes = [int(s.size) if s is not None else 0 for s in slices]
    name, unit = "output tokens/s", "tokens/s"
    if None in values or slices[0] is None or slices[1] is None:
        why = f"shorter than {MIN_WINDOW_S:g} s, or the server sent no usage"
        return _row(name, unit, "higher", *values, sizes, verdict="not_measured", why=why)
    drawn = []
    for series in slices:
        assert series is not None
        counts = resample.draws(series.size, max(2, resample.block_length(series)), rng)
        drawn.append(counts @ series / counts.sum(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        change = drawn[1] / drawn[0] - 1.0
    return _judged(name, unit, "higher", (values[0] or 0.0, values[1] or 0.0), sizes, change, level_all)


def _token_slices(side: Sampled) -> Floats | None:
    """Output tokens a second in each of the equal slices of the window."""
    if side.start_ns is None or side.end_ns is None or side.end_ns <= side.start_ns:
        return None
    seconds = (side.end_ns - side.start_ns) * latency.NS
    if seconds < MIN_WINDOW_S:
        return None
    count = max(MIN_SLICES, min(int(seconds), MAX_SLICES))
    total = np.zeros(count)
    for record in side.ok:
        chunks = latency.chunk_instants_ns(record)
        if record.completion_tokens is None or not chunks:
            continue
        places = (np.asarray(chunks, dtype=np.float64) - side.start_ns) / (side.end_ns - side.start_ns)
        inside = np.clip((places * count).astype(int), 0, count - 1)
        total += np.bincount(inside, minlength=count) * (record.completion_tokens / len(chunks))
    return total / (seconds / count) if total.any() else None


def hit_row(sides: tuple[Sampled, Sampled], rng: np.random.Generator, level_all: float) -> Row | None:
    """Share of the prompt tokens that came from the prefix cache, by the usage of each request."""
    pairs = [
        np.array(
            [
                (r.cached_tokens, r.prompt_tokens)
                for r in side.ok
                if r.cached_tokens is not None and r.prompt_tokens
            ],
            dtype=np.float64,
        ).reshape(-1, 2)
        for side in sides
    ]
    sizes = [len(p) for p in pairs]
    if not min(sizes):
        return None
    a, b = (float(p[:, 0].sum() / p[:, 1].sum()) for p in pairs)
    if min(sizes) < needed(0.5):
        why = f"n too small: {min(sizes)}"
        return _row("prefix hit rate", "ratio", "higher", a, b, sizes, verdict="n_too_small", why=why)
    drawn = []
    for p in pairs:
        counts = resample.draws(len(p), resample.block_length(p[:, 0] / p[:, 1]), rng)
        drawn.append(counts @ p[:, 0] / (counts @ p[:, 1]))
    return _judged(
        "prefix hit rate", "ratio", "higher", (a, b), sizes, drawn[1] - drawn[0], level_all, "difference"
    )


def failure_row(sides: tuple[Sampled, Sampled], level_all: float) -> Row:
    """Share of the requests sent that failed: Newcombe's interval, which a share of 0 still has."""
    (f1, n1), (f2, n2) = ((s.failed, s.sent) for s in sides)
    if not n1 or not n2:
        row = _row("failed requests", "ratio", "lower", None, None, [n1, n2], verdict="not_measured")
        row.why = "no request was sent"
        return row
    row = _row("failed requests", "ratio", "lower", f1 / n1, f2 / n2, [n1, n2], verdict="hint")
    row.change, row.change_is = f2 / n2 - f1 / n1, "difference"
    row.ci = Interval(**dict(zip(("lo", "hi"), newcombe(f1, n1, f2, n2, LEVEL), strict=True)))
    row.ci_all = Interval(**dict(zip(("lo", "hi"), newcombe(f1, n1, f2, n2, level_all), strict=True)))
    row.verdict = _verdict(row)
    return row


def single_row(
    name: str,
    unit: Literal["ratio", "count", "B"],
    better: Literal["lower", "higher", "neither"],
    a: float | None,
    b: float | None,
) -> Row | None:
    """One number a run, from the server: no interval can be had from one run each."""
    if a is None and b is None:
        return None
    why = "one number a run" if None not in (a, b) else "not measured in one of the runs"
    verdict: Verdict = "no_interval" if None not in (a, b) else "not_measured"
    row = _row(name, unit, better, a, b, [None, None], verdict=verdict, why=why)
    if a is not None and b is not None:
        row.change, row.change_is = b - a, "difference"
    return row


def _judged(
    name: str,
    unit: str,
    better: str,
    values: tuple[float, float],
    sizes: Sequence[int],
    drawn: Floats,
    level_all: float,
    change_is: Literal["relative", "difference"] = "relative",
) -> Row:
    a, b = values
    row = _row(name, unit, better, a, b, sizes, verdict="not_measured")
    row.change_is = change_is
    row.change = b - a if change_is == "difference" else (b / a - 1.0 if a else None)
    alone, together = resample.interval(drawn, LEVEL), resample.interval(drawn, level_all)
    if row.change is None or not math.isfinite(row.change) or alone is None or together is None:
        row.why = "the value of A is 0"
        return row
    row.ci, row.ci_all = Interval(lo=alone[0], hi=alone[1]), Interval(lo=together[0], hi=together[1])
    row.verdict = _verdict(row)
    return row


def _verdict(row: Row) -> Verdict:
    assert row.ci is not None
    assert row.ci_all is not None
    if row.ci_all.lo > 0:
        return "higher"
    if row.ci_all.hi < 0:
        return "lower"
    return "hint" if row.ci.lo > 0 or row.ci.hi < 0 else "no_difference_shown"


def _row(
    name: str,
    unit: str,
    better: str,
    a: float | None,
    b: float | None,
    sizes: Sequence[int | None],
    *,
    verdict: Verdict,
    why: str | None = None,
) -> Row:
    return Row(
        name=name,
        unit=unit,  # type: ignore[arg-type]
        better=better,  # type: ignore[arg-type]
        a=a,
        b=b,
        n_a=sizes[0],
        n_b=sizes[1],
        verdict=verdict,
        why=why,
    )
