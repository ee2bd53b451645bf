"""The numbers that are compared, each with what chance within the two runs could make of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from kvprobe.compare import resample
from kvprobe.compare.model import Interval, Row, Verdict
from kvprobe.compare.proportions import newcombe
from kvprobe.compare.resample import Floats
from kvprobe.compare.spread import FEWEST_INDEPENDENT, Drawn, interval
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
    time: float = field(init=False)
    """Correlation time in requests, the longest of any latency: noise hides a drift in some of them."""

    def __post_init__(self) -> None:
        series = [_values(self.ok, value_of) for _, value_of, _ in LATENCY_ROWS]
        series.append(np.array([np.mean(r.gaps_ns) for r in self.ok if r.gaps_ns]))
        self.time = max(resample.plan(values).time for values in series)


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
        drawn = _drawn_quantiles(sides, (a.time, b.time), qs, rng)
        out += [_quantile_row(name, q, sides, drawn.get(q), level_all) for q in qs]
    return [*out, *_gap_rows((0.5, 0.99), (a, b), rng, level_all)]


def _drawn_quantiles(
    sides: list[Floats], times: tuple[float, float], qs: tuple[float, ...], rng: np.random.Generator
) -> dict[float, list[Drawn]]:
    """By percentile that both runs can carry: the draws of A and of B."""
    asked = tuple(q for q in qs if min(v.size for v in sides) >= needed(q))
    out: dict[float, list[Drawn]] = {q: [] for q in asked}
    for values, time in zip(sides, times, strict=True) if asked else ():
        made, order = resample.plan(values, time), np.argsort(values, kind="stable")
        found = resample.resampled(
            lambda w, v=values[order], o=order: resample.weighted_quantiles(v, w[o], asked),  # type: ignore[misc]
            made,
            rng,
        )
        for number, q in enumerate(asked):
            out[q].append(Drawn(float(np.quantile(values, q)), found[:, number], made))
    return out


def _values(ok: Sequence[RequestRecord], value_of: Callable[[RequestRecord], float | None]) -> Floats:
    return np.array([v for r in ok if (v := value_of(r)) is not None], dtype=np.float64)


def _quantile_row(
    name: str, q: float, sides: list[Floats], drawn: list[Drawn] | None, level_all: float
) -> Row:
    label = f"{_LABELS[name]} p{100 * q:g}"
    sizes = [int(v.size) for v in sides]
    if drawn is None:
        short = min(sizes)
        why = f"n too small: {short}, p{100 * q:g} needs {needed(q)}" if short else "no values"
        a, b = (float(np.median(v)) if q == 0.5 and v.size else None for v in sides)
        return _row(label, "s", "lower", a, b, sizes, verdict="n_too_small", why=why)
    return _judged(label, "s", "lower", drawn, sizes, level_all)


def _gap_rows(
    qs: tuple[float, ...], sides: tuple[Sampled, Sampled], rng: np.random.Generator, level_all: float
) -> list[Row]:
    """Gaps of one stream are alike: whole requests are drawn, with all their gaps."""
    streams = [[r for r in side.ok if r.gaps_ns] for side in sides]
    sizes = [len(s) for s in streams]
    asked = tuple(q for q in qs if min(sizes) >= needed(q))
    drawn: dict[float, list[Drawn]] = {q: [] for q in asked}
    for rows, side in zip(streams, sides, strict=True) if asked else ():
        gaps = np.concatenate([np.asarray(r.gaps_ns, dtype=np.float64) for r in rows]) * latency.NS
        owner = np.repeat(np.arange(len(rows)), [len(r.gaps_ns) for r in rows])
        order = np.argsort(gaps, kind="stable")
        gaps, owner = gaps[order], owner[order]
        made = resample.plan(np.array([np.mean(r.gaps_ns) for r in rows]), side.time)
        found = resample.resampled(
            lambda w, g=gaps, o=owner: resample.weighted_quantiles(g, w[o], asked),  # type: ignore[misc]
            made,
            rng,
            resample.rounds(gaps.size),
        )
        for number, q in enumerate(asked):
            drawn[q].append(Drawn(float(np.quantile(gaps, q)), found[:, number], made))
    out = []
    for q in qs:
        label = f"gap p{100 * q:g}"
        if q in drawn:
            out.append(_judged(label, "s", "lower", drawn[q], sizes, level_all))
        else:
            why = f"n too small: {min(sizes)} streams, p{100 * q:g} needs {needed(q)}"
            out.append(_row(label, "s", "lower", None, None, sizes, verdict="n_too_small", why=why))
    return out


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
    for value, series, side in zip(values, slices, sides, strict=True):
        assert series is not None
        made = resample.plan(series, side.time * series.size / max(len(side.ok), 1))
        made = replace(made, block=max(2, made.block))
        found = resample.resampled(lambda w, s=series: float(w @ s / w.sum()), made, rng)  # type: ignore[misc]
        # The draws are of the slices' mean; the run's own figure may count a last token more or less.
        drawn.append(Drawn(value or 0.0, found * ((value or 0.0) / float(series.mean())), made))
    return _judged(name, unit, "higher", drawn, sizes, level_all)


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
    for p, value, side in zip(pairs, (a, b), sides, strict=True):
        made = resample.plan(p[:, 0] / p[:, 1], side.time)
        found = resample.resampled(lambda w, p=p: float(w @ p[:, 0] / (w @ p[:, 1])), made, rng)  # type: ignore[misc]
        drawn.append(Drawn(value, found, made))
    return _judged("prefix hit rate", "ratio", "higher", drawn, sizes, level_all, "difference")


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
    if a is None or b is None:
        why = "not measured in one of the runs"
        return _row(name, unit, better, a, b, [None, None], verdict="not_measured", why=why)
    row = _row(name, unit, better, a, b, [None, None], verdict="no_interval", why="one number a run")
    row.change, row.change_is = b - a, "difference"
    return row


def _judged(
    name: str,
    unit: str,
    better: str,
    drawn: Sequence[Drawn],
    sizes: Sequence[int],
    level_all: float,
    change_is: Literal["relative", "difference"] = "relative",
) -> Row:
    a, b = drawn[0].value, drawn[1].value
    row = _row(name, unit, better, a, b, sizes, verdict="not_measured")
    row.change_is = change_is
    row.change = b - a if change_is == "difference" else (b / a - 1.0 if a else None)
    if row.change is None or not math.isfinite(row.change):
        row.why = "the value of A is 0"
        return row
    worth = min(side.plan.independent for side in drawn)
    if worth < FEWEST_INDEPENDENT:
        row.verdict = "n_too_small"
        row.why = f"n too small: neighbours are so alike that {min(sizes)} are worth about {worth:.0f}"
        return row
    relative = change_is == "relative"
    alone = interval(drawn[0], drawn[1], LEVEL, relative=relative)
    together = interval(drawn[0], drawn[1], level_all, relative=relative)
    if alone is None or together is None:
        row.why = "the values of A are 0 too often"
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
