"""Step times from a run: a run made by the simulator itself gives its own cost back."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvprobe.errors import UsageError
from kvprobe.evidence.records import RequestRecord
from kvprobe.evidence.rundata import RunData
from kvprobe.plan.simulate.cost import StepCost
from kvprobe.plan.simulate.fit import fit_data, not_negative
from kvprobe.plan.simulate.outcome import Rows, spread
from kvprobe.plan.simulate.replay import simulate
from kvprobe.plan.simulate.rows import chunks
from kvprobe.plan.simulate.settings import SimSettings
from kvprobe.traces.rows import TraceRow
from tests.replay.traces import row

TRUE = StepCost(fixed_s=0.01, token_s=1e-4, kv_token_s=2e-7)
SETTINGS = SimSettings(usable_blocks=5000, engine="reference", max_num_seqs=32, max_num_batched_tokens=512)


def trace(seed: int, rate: float) -> list[TraceRow]:
    rng, at, rows = random.Random(seed), 0.0, []
    for number in range(150):
        at += rng.expovariate(rate)
        rows.append(row(at, rng.randint(100, 1500), rng.randint(20, 120), line=number + 1))
    return rows


def run_of(rows: list[TraceRow], *, told: bool = True) -> RunData:
    """A run with the instants that the simulator gives: gaps are even within a request."""
    found = Rows(simulate(chunks(rows), SETTINGS, TRUE))
    records = []
    for number, one in enumerate(rows):
        first = one.t_s + float(found.ttft_s[number])
        last = one.t_s + float(found.e2e_s[number])
        ends = np.linspace(first, last, one.out_tokens)
        records.append(
            RequestRecord(
                request_id=str(number),
                kind="chat",
                plan_index=number,
                intended_ns=round(one.t_s * 1e9),
                sent_ns=round(one.t_s * 1e9),
                first_token_ns=round(first * 1e9),
                last_token_ns=round(last * 1e9),
                gaps_ns=[round(gap * 1e9) for gap in np.diff(ends)],
                prompt_tokens=one.in_tokens,
                cached_tokens=int(found.hit[number]) if told else None,
                completion_tokens=one.out_tokens,
            )
        )
    return RunData(path=None, status="complete", records=records)  # type: ignore[arg-type]


def test_a_fit_on_one_trace_predicts_another_within_fifteen_percent() -> None:
    cost = fit_data(run_of(trace(1, 1.0)), name="first")
    assert cost.fixed_s == pytest.approx(TRUE.fixed_s, rel=0.25)
    assert cost.token_s == pytest.approx(TRUE.token_s, rel=0.35)
    rows = trace(2, 1.5)
    true, fitted = (Rows(simulate(chunks(rows), SETTINGS, c)) for c in (TRUE, cost))
    for name in ("p50", "p95"):
        measured, said = spread(true.ttft_s), spread(fitted.ttft_s)
        assert measured is not None
        assert said is not None
        assert getattr(said, name) == pytest.approx(getattr(measured, name), rel=0.15)


def sharing(seed: int, rate: float) -> list[TraceRow]:
    """Prompts of which more than a half was sent before: its beginning, or all but the end."""
    rng = random.Random(seed)
    return [
        row(
            *(one.t_s, 1024 + rng.randint(1, 400), one.out_tokens, tuple(range(8))),
            block_tokens=128,
            line=one.line,
        )
        for one in trace(seed, rate)
    ]


def test_prompts_that_hit_the_cache_do_not_make_a_token_look_cheap() -> None:
    rows = sharing(1, 1.5)
    cost = fit_data(run_of(rows), name="first")
    assert cost.token_s == pytest.approx(TRUE.token_s, rel=0.35)
    assert not any("does not say" in note for note in cost.notes)
    blind = fit_data(run_of(rows, told=False), name="first")
    assert blind.token_s < 0.6 * TRUE.token_s
    assert any("does not say" in note for note in blind.notes)


def test_too_little_to_fit_is_said() -> None:
    with pytest.raises(UsageError, match="0 requests"):
        fit_data(RunData(path=None, status="complete"), name="empty")  # type: ignore[arg-type]


def test_coefficients_are_never_negative() -> None:
    x = np.linspace(1, 10, 20)
    a, b = not_negative(np.column_stack((np.ones(20), x)), 5 - 0.3 * x, np.ones(20))
    assert a > 0
    assert b == 0
