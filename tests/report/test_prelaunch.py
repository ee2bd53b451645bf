"""The pre-launch report: when it says ready, what its numbers are, what it refuses to mix."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest

from kvprobe.diagnose.judge import diagnose_run
from kvprobe.diagnose.model import Diagnosis
from kvprobe.evidence.rundata import RunData
from kvprobe.report.document import run_document
from kvprobe.report.markdown_page import render_markdown
from kvprobe.report.prelaunch.page import plan_reports, prelaunch_document, prelaunch_report
from kvprobe.report.prelaunch.view import Measure, growth_months, headroom
from kvprobe.report.run_view import RunView
from kvprobe.report.words import words
from kvprobe.summary.build import Summary, summarise
from tests.diagnose.test_judge import late_client
from tests.report.plans import a_plan
from tests.summary.synthetic import Made, healthy

KEPT = {"threshold": "ttft.p99 < 2s", "verdict": "pass", "value": 1.0, "unit": "s", "n": 400}
SWEEP = {
    "axis": "rate",
    "interval": {"lo": 1.1, "hi": 1.15},
    "knee": None,
    "steps": [
        {
            "load": load,
            "served_per_s": load,
            "ttft_s": {"p99": {"value": wait, "lo": None, "hi": wait}},
            "verdict": v,
        }
        for load, wait, v in ((1.0, 0.5, "sustained"), (1.1, 0.7, "sustained"), (1.15, 14.0, "overloaded"))
    ],
}


def a_run(made: Made | None = None, **document: Any) -> RunView:
    """A run of the planned engine."""
    run, summary, diagnosis = _judged(made) if made is not None else _plain_run()
    told = run_document(run, summary, diagnosis) | document
    return RunView(words("en"), copy.copy(summary), diagnosis, run, told)


@cache
def _plain_run() -> tuple[RunData, Summary, Diagnosis]:
    """Judged once for all tests of this file."""
    return _judged(healthy())


def _judged(made: Made) -> tuple[RunData, Summary, Diagnosis]:
    made.fact("engine", {"name": "vllm", "version": "0.20"})
    run = made.build()
    summary = summarise(run)
    return run, summary, diagnose_run(run, summary)


def test_headroom_and_growth_are_the_formulas_on_the_page() -> None:
    have, need = Measure(1.2, "requests/s", ""), Measure(1.0, "requests/s", "")
    assert headroom(have, need) == pytest.approx(0.2)
    assert growth_months(0.2, 0.1) == pytest.approx(1.913, abs=0.001)
    assert growth_months(0.2, 0.0) is None
    assert growth_months(-0.1, 0.1) == 0.0


def test_a_plan_alone_is_never_ready() -> None:
    told = prelaunch_document(a_plan(), demand_at_once=50)
    assert told["answer"] == "not_shown"
    assert told["confidence"] == "low"
    assert told["capacity"]["value"] == 113
    assert told["headroom"] == pytest.approx(113 / 50 - 1)
    assert len(told["risks"]) == 3
    assert any("no measurement" in text for text in told["missing"])


def test_ready_needs_a_measurement_a_target_a_demand_and_room() -> None:
    run = a_run(thresholds=[KEPT], sweep=SWEEP)
    told = prelaunch_document(a_plan(), run, demand_per_s=1.0)
    assert told["answer"] == "ready"
    assert told["sentence"] == (
        "Ready for 1.00 requests/s within ttft.p99 < 2s on 1 x H100 SXM 80GB: 1.10 requests/s was shown."
    )
    assert told["confidence"] == "moderate", "no load ran for ten minutes"
    assert told["missing"] == []
    for lacking, document, demand in (
        ("demand", {"thresholds": [KEPT], "sweep": SWEEP}, None),
        ("target", {"thresholds": [], "sweep": SWEEP}, 1.0),
        ("decided", {"thresholds": [KEPT | {"verdict": "n_too_small"}], "sweep": SWEEP}, 1.0),
    ):
        less = prelaunch_document(a_plan(), a_run(**document), demand_per_s=demand)
        assert less["answer"] == "not_shown", lacking
        assert less["missing"], lacking


def test_not_ready_where_something_was_shown_to_be_wrong() -> None:
    over = prelaunch_document(a_plan(), a_run(thresholds=[KEPT], sweep=SWEEP), demand_per_s=2.0)
    assert over["answer"] == "not_ready"
    assert "2.00 requests/s are demanded, 1.10 requests/s are carried" in over["sentence"]
    missed = prelaunch_document(
        a_plan(), a_run(thresholds=[KEPT | {"verdict": "fail"}], sweep=SWEEP), demand_per_s=1
    )
    assert missed["answer"] == "not_ready"
    no = prelaunch_document(a_plan(gpu="8GiB"), demand_at_once=1)
    assert no["answer"] == "not_ready"
    assert no["capacity"] is None or no["capacity"]["value"] == 0


def test_an_invalid_run_and_one_of_another_engine_carry_no_verdict() -> None:
    invalid = prelaunch_document(a_plan(), a_run(late_client(healthy()), thresholds=[KEPT]), demand_per_s=1.0)
    assert invalid["answer"] != "ready"
    assert invalid["capacity"] is None
    other = a_run(thresholds=[KEPT], sweep=SWEEP)
    other.summary.engine = "sglang"
    told = prelaunch_document(a_plan(), other, demand_per_s=1.0)
    assert told["answer"] == "not_shown"
    assert told["unlike"] == ["the plan is for vllm, the run was on sglang"]
    assert told["capacity"]["unit"] == "requests at once", "the plan's own number"


def test_one_load_is_at_least_so_much_and_refutes_no_larger_demand() -> None:
    run = a_run(thresholds=[KEPT])
    done = run.summary.metrics.rates.completed_per_s
    assert done is not None
    told = prelaunch_document(a_plan(), run, demand_per_s=done * 2)
    assert told["capacity"]["exact"] is False
    assert told["answer"] == "not_shown"
    assert "the demand was not reached in the test" in told["missing"]


def test_costs_are_price_over_tokens() -> None:
    run = a_run()
    speed = run.summary.metrics.output_tokens_per_s
    assert speed is not None
    cost = prelaunch_document(a_plan(), run, demand_per_s=2.0)["cost"]
    assert cost["per_month"] == pytest.approx(2.5 * 730)
    assert cost["million_full"] == pytest.approx(2.5 / (speed * 3600) * 1e6)
    assert cost["million_expected"] == pytest.approx(2.5 / (2.0 * 32 * 3600) * 1e6)
    assert prelaunch_document(a_plan(price_per_hour=None, output_tokens_per_s=None))["cost"] is None


def test_every_assumption_has_a_source_and_empty_sections_name_the_run_that_fills_them() -> None:
    report = prelaunch_report(a_plan(), None)
    table = next(s for s in report.sections if s.id == "s2").blocks[0]
    assert all(len(row) == 3 and row[2] for row in table.rows)  # type: ignore[union-attr]
    text = render_markdown(report)
    assert len(report.sections) == 15
    assert text.count("This would fill it") >= 6


def test_several_models_stand_side_by_side() -> None:
    plan = a_plan()
    plan["models"] = [a_plan(), a_plan(gpu="8GiB")]
    report = plan_reports(plan)
    assert report.sections[0].id == "models"
    assert len(report.sections) == 17


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_page_without_a_plan_or_with_a_damaged_one_is_still_a_page(lang: Any) -> None:
    for plan in (None, {}, {"budget": [], "what_if": "x", "flags": {"recommended": 3}, "warnings": [1]}):
        assert render_markdown(prelaunch_report(plan, None, lang=lang))  # type: ignore[arg-type]
