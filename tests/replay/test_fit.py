"""Step times from a run: the server's own scheduler on a known clock gives its cost back."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvprobe.errors import UsageError
from kvprobe.evidence.records import OpenedRequest, RequestRecord
from kvprobe.evidence.rundata import RunData
from kvprobe.plan.simulate.cost import StepCost
from kvprobe.plan.simulate.fit import fit_data, not_negative
from kvprobe.plan.simulate.outcome import Rows, spread
from kvprobe.plan.simulate.replay import TraceChunks, document, simulate
from kvprobe.plan.simulate.rows import chunks
from kvprobe.plan.simulate.seen import seen
from kvprobe.plan.simulate.seen_steps import _compute, _Work, steps_of
from kvprobe.plan.simulate.settings import SimSettings
from kvprobe.traces.read import open_trace
from kvprobe.traces.rows import TraceRow
from tests.replay import oracle
from tests.replay.test_answers import write
from tests.replay.traces import row

TRUE = StepCost(fixed_s=0.01, token_s=1e-4, kv_token_s=2e-7, pair_s=3e-8)
BUDGET = 512
SETTINGS = SimSettings(usable_blocks=5000, engine="reference", max_num_seqs=32, max_num_batched_tokens=BUDGET)
SMALL = replace(SETTINGS, usable_blocks=420, max_num_seqs=12)


def trace(seed: int, rate: float, count: int = 60) -> list[TraceRow]:
    rng, at, rows = random.Random(seed), 0.0, []
    for number in range(count):
        at += rng.expovariate(rate)
        rows.append(row(at, rng.randint(100, 1500), rng.randint(20, 120), line=number + 1))
    return rows


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


def run_of(
    rows: list[TraceRow],
    settings: SimSettings = SETTINGS,
    *,
    told: bool = True,
    front_s: float = 0.0,
    jitter_s: float = 0.0,
) -> RunData:
    """What a client sees of the server's own scheduler: its tokens come `front_s` late, give or take."""
    served, rng = oracle.serve(rows, settings, TRUE, check=False), random.Random(1)
    records = []
    for number, one in enumerate(rows):
        stamps = sorted(at + front_s + rng.uniform(0, jitter_s) for at in served.stamps[number])
        ends = [round(at * 1e9) for at in stamps]
        records.append(
            RequestRecord(
                request_id=str(number),
                kind="chat",
                plan_index=number,
                intended_ns=round(one.t_s * 1e9),
                sent_ns=round(one.t_s * 1e9),
                first_token_ns=ends[0],
                last_token_ns=ends[-1],
                gaps_ns=[int(gap) for gap in np.diff(ends)],
                prompt_tokens=one.in_tokens,
                cached_tokens=served.hits[number] if told else None,
                completion_tokens=one.out_tokens,
            )
        )
    return RunData(path=Path("first"), status="complete", records=records)


def check_prediction(cost: StepCost, rel: float = 0.1) -> None:
    rows = sharing(3, 3.0)
    true, fitted = (Rows(simulate(chunks(rows), SETTINGS, c)) for c in (TRUE, cost))
    for measured, said in ((true.ttft_s, fitted.ttft_s), (true.e2e_s, fitted.e2e_s)):
        one, other = spread(measured), spread(said)
        assert one is not None
        assert other is not None
        assert other.p50 == pytest.approx(one.p50, rel=rel)
        assert other.p95 == pytest.approx(one.p95, rel=rel)


@pytest.mark.parametrize(
    ("kind", "rate", "settings"),
    [(trace, 0.3, SETTINGS), (trace, 2.5, SETTINGS), (sharing, 100.0, SETTINGS), (trace, 2.5, SMALL)],
    ids=["nearly idle", "busy", "all at once", "seats and blocks run out"],
)
def test_a_server_on_a_known_clock_gives_its_cost_back(
    kind: Callable[[int, float], list[TraceRow]], rate: float, settings: SimSettings
) -> None:
    cost = fit_data(run_of(kind(1, rate), settings), name="first", budget_tokens=BUDGET)
    assert cost.fixed_s == pytest.approx(TRUE.fixed_s, rel=0.02)
    assert cost.front_s < 0.001
    if (
        rate < 100
    ):  # in a burst all steps are alike: terms can stand for one another, and only the sum is told
        assert cost.token_s == pytest.approx(TRUE.token_s, rel=0.05)
        assert cost.kv_token_s == pytest.approx(TRUE.kv_token_s, rel=0.2)
    check_prediction(cost)


def test_preempted_requests_do_not_bend_the_fit() -> None:
    """A burst into a pool that holds five requests: what is computed again does not show in any count."""
    run = run_of(trace(1, 100.0), SMALL)
    assert len(seen(run.records).sent) > 60
    cost = fit_data(run, name="first", budget_tokens=BUDGET)
    assert cost.fixed_s == pytest.approx(TRUE.fixed_s, rel=0.05)
    check_prediction(cost, rel=0.15)


def test_a_network_between_is_told_apart_from_the_steps() -> None:
    """Tokens that come 30 ms late, up to 2 ms apart: the requests' front, and no longer steps."""
    cost = fit_data(run_of(trace(1, 0.5), front_s=0.03, jitter_s=0.002), name="first", budget_tokens=BUDGET)
    assert cost.front_s == pytest.approx(0.031, rel=0.1)
    assert cost.fixed_s == pytest.approx(TRUE.fixed_s, rel=0.02)
    rows = trace(2, 1.0)
    plain, late = (Rows(simulate(chunks(rows), SETTINGS, c)) for c in (replace(cost, front_s=0.0), cost))
    assert late.ttft_s - plain.ttft_s == pytest.approx(cost.front_s, rel=1e-3)
    assert late.e2e_s - plain.e2e_s == pytest.approx(cost.front_s, rel=1e-3)


def test_steps_of_unknown_work_are_left_out() -> None:
    """A request that failed was computed too: nothing is concluded from the time in which it ran."""
    run = run_of(trace(1, 2.5))
    all_steps = len(steps_of(seen(run.records), BUDGET))
    failed = run.records[20]
    failed.failure, failed.end_ns, failed.prompt_tokens = "reset_mid_stream", failed.last_token_ns, None
    some_steps = steps_of(seen(run.records), BUDGET)
    assert all_steps - 200 < len(some_steps) < all_steps - 20
    cost = fit_data(run, name="first", budget_tokens=BUDGET)
    assert cost.token_s == pytest.approx(TRUE.token_s, rel=0.05)


def test_a_stalled_machine_does_not_bend_the_fit() -> None:
    run = run_of(trace(1, 2.5))
    for record in run.records[10::10]:
        record.gaps_ns[len(record.gaps_ns) // 2] += 700_000_000
        record.last_token_ns = (record.last_token_ns or 0) + 700_000_000
    cost = fit_data(run, name="first", budget_tokens=BUDGET)
    assert cost.fixed_s == pytest.approx(TRUE.fixed_s, rel=0.05)
    assert any("left out" in note for note in cost.notes)


def test_prompts_that_hit_the_cache_do_not_make_a_token_look_cheap() -> None:
    rows = sharing(1, 1.5)
    cost = fit_data(run_of(rows), name="first", budget_tokens=BUDGET)
    assert cost.token_s == pytest.approx(TRUE.token_s, rel=0.05)
    assert not any("does not say" in note for note in cost.notes)
    blind = fit_data(run_of(rows, told=False), name="first", budget_tokens=BUDGET)
    assert blind.token_s < 0.7 * TRUE.token_s
    assert any("does not say" in note for note in blind.notes)


def test_a_replay_says_when_its_load_is_beyond_that_of_its_fit(tmp_path: Path) -> None:
    cost = fit_data(run_of(trace(1, 0.5)), name="first", budget_tokens=BUDGET)
    assert cost.seen_running is not None
    assert cost.seen_running < 8
    for rate, said in ((0.4, False), (100.0, True)):
        path = write(tmp_path / f"{said}.jsonl", [_plain(one) for one in trace(2, rate)])
        source = TraceChunks(partial(open_trace, path))
        server = simulate(source, SETTINGS, cost)
        found = document(server, source, path, cost, None)
        assert any("extrapolated" in note for note in found.assumptions) == said
        assert found.step_time.seen_running == cost.seen_running


def _plain(row: TraceRow) -> dict[str, object]:
    return {"t": row.t_s, "in": row.in_tokens, "out": row.out_tokens}


def test_too_little_to_fit_is_said() -> None:
    with pytest.raises(UsageError, match="0 requests"):
        fit_data(RunData(path=Path("empty"), status="complete"), name="empty")


def spoiled(change: Callable[[RequestRecord], object]) -> RunData:
    run = run_of(trace(1, 2.5))
    for record in run.records:
        change(record)
    return run


def setting(**values: object) -> Callable[[RequestRecord], object]:
    def change(record: RequestRecord) -> None:
        for name, value in values.items():
            setattr(record, name, value)

    return change


IMPOSSIBLE: dict[str, Callable[[RequestRecord], object]] = {
    "held back": lambda r: setting(gaps_ns=[0] * len(r.gaps_ns))(r),
    "held back, nearly": lambda r: setting(gaps_ns=[1] * len(r.gaps_ns))(r),
    "backwards": lambda r: setting(gaps_ns=[-gap for gap in r.gaps_ns])(r),
    "beyond 64 bits": lambda r: setting(gaps_ns=[2**63 - 1] * len(r.gaps_ns))(r),
    "beyond a float": lambda r: setting(gaps_ns=[10**400] * len(r.gaps_ns))(r),
    "first token before the request": lambda r: setting(first_token_ns=(r.sent_ns or 0) - 1)(r),
    "first token at once": lambda r: setting(first_token_ns=r.sent_ns)(r),
    "more cached than sent": lambda r: setting(cached_tokens=3 * (r.prompt_tokens or 0))(r),
    "less than nothing cached": setting(cached_tokens=-5),
    "endless prompt": setting(prompt_tokens=2**62),
    "negative prompt": setting(prompt_tokens=-5),
    "endless answer": setting(completion_tokens=10**12),
    "large pieces": lambda r: setting(completion_tokens=50 * len(r.gaps_ns))(r),
    "one token": setting(gaps_ns=[]),
    "warm-up alone": setting(warmup=True),
    "failed": setting(failure="timeout"),
    "not sent": setting(sent_ns=None),
    "sent beyond a float": setting(sent_ns=10**400),
}


@pytest.mark.parametrize("kind", IMPOSSIBLE)
def test_figures_that_cannot_be_are_not_fitted(kind: str) -> None:
    with pytest.raises(UsageError, match="0 requests that ended well after the warm-up"):
        fit_data(spoiled(IMPOSSIBLE[kind]), name="spoiled", budget_tokens=BUDGET)


@pytest.mark.parametrize("number", [0, 7, 59])
@pytest.mark.parametrize("kind", [kind for kind in IMPOSSIBLE if kind != "failed"])
def test_one_of_them_alone_does_not_bend_the_fit(kind: str, number: int) -> None:
    run = run_of(trace(1, 2.5))
    record = run.records[number]
    record.end_ns = record.last_token_ns
    IMPOSSIBLE[kind](record)
    cost = fit_data(run, name="spoiled", budget_tokens=BUDGET)
    assert cost.fixed_s == pytest.approx(TRUE.fixed_s, rel=0.05)
    assert cost.token_s == pytest.approx(TRUE.token_s, rel=0.15)


def test_a_request_in_flight_when_the_run_was_cut_clouds_what_follows() -> None:
    run = run_of(trace(1, 2.5))
    cut = run.records[30].sent_ns or 0
    run.opened = [OpenedRequest(request_id="open", plan_index=60, intended_ns=cut, sent_ns=cut)]
    steps = steps_of(seen(run.records, run.opened), BUDGET)
    assert 0 < steps.seconds.sum() <= cut / 1e9
    assert fit_data(run, name="cut", budget_tokens=BUDGET).fixed_s == pytest.approx(TRUE.fixed_s, rel=0.05)


@pytest.mark.parametrize("at_once", [2, 4, 8])
@pytest.mark.parametrize("coalesced", [False, True])
def test_tokens_that_come_together_took_a_step_each(at_once: int, coalesced: bool) -> None:
    """In one chunk (the server sends every n-th step), or in several that a proxy sent at once."""
    run = run_of(trace(1, 2.5))
    for record in run.records:
        gaps = [record.gaps_ns[at : at + at_once] for at in range(0, len(record.gaps_ns), at_once)]
        record.gaps_ns = [
            gap for some in gaps for gap in [sum(some), *([0] * (len(some) - 1) if coalesced else [])]
        ]
    cost = fit_data(run, name="together", budget_tokens=BUDGET)
    assert cost.fixed_s == pytest.approx(TRUE.fixed_s, rel=0.15)


def test_a_fit_that_describes_nothing_is_refused() -> None:
    """One token a step is what is asked, and the server computed whole prompts in one."""
    alike = run_of([row(0.5 * at, 300, 4, line=at + 1) for at in range(60)])
    assert fit_data(alike, name="alike", budget_tokens=BUDGET).fixed_s > 0
    with pytest.raises(UsageError, match="no step time describes alike") as caught:
        fit_data(alike, name="alike", budget_tokens=1)
    assert "--max-num-batched-tokens" in (caught.value.problems[0].fix or "")


def test_prompts_of_many_steps_are_not_gone_through_one_by_one() -> None:
    """The same sums as adding up each step of the budget, for as many as there are."""
    for first, tokens, budget in ((0, 1000, 512), (77, 1024, 512), (5, 3, 1), (0, 1, 1), (9, 40, 7)):
        work = _Work(*(np.zeros(1) for _ in range(4)))
        _compute(work, slice(0, 1), float(first), np.array([float(tokens)]), budget)
        counts = [min(budget, tokens - at) for at in range(0, tokens, budget)]
        ends = np.cumsum(counts) + first
        assert work.tokens[0] == tokens
        assert work.contexts[0] == ends.sum()
        assert work.pairs[0] == sum(range(first + 1, first + tokens + 1))


@given(st.integers(0, 2**32))
def test_the_regression_is_the_constrained_optimum(seed: int) -> None:
    """By the conditions of Karush, Kuhn and Tucker: no term can grow, none above zero can shrink."""
    rng = np.random.default_rng(seed)
    columns = rng.random((40, 5)) * 10.0 ** rng.integers(0, 6, 5)
    target, weight = columns @ rng.normal(size=5) + rng.normal(size=40), rng.random(40) + 0.1
    found = not_negative(columns, target, weight)
    assert (found >= 0).all()
    slope = columns.T @ ((columns @ found - target) * weight**2)
    scale = np.abs(columns).max(axis=0) * (np.abs(target).max() + 1) * 40
    assert (slope / scale > -1e-6).all()
    assert (np.abs(slope / scale)[found > 0] < 1e-6).all()
