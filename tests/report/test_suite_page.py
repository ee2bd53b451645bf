"""The page of a sweep: one percentile for a whole curve, invalid steps apart."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.report.charts_capacity import common_percentile, curve_chart, read_steps
from kvprobe.report.suite_page import render_suite_page
from kvprobe.report.words import words


def step(
    load: float, p50: float, p95: float | None, verdict: str = "sustained", **more: Any
) -> dict[str, Any]:
    high = (
        {"value": p95, "lo": None, "hi": p95}
        if p95 is not None
        else {"value": None, "reason": "n too small: 20"}
    )
    waits = {
        "p50": {"value": p50, "lo": p50, "hi": p50},
        "p95": high,
        "p99": {"value": None, "reason": "n too small"},
    }
    return {"load": load, "served_per_s": load, "ttft_s": waits, "verdict": verdict, **more}


def sweep(*steps: dict[str, Any]) -> dict[str, Any]:
    interval = {"lo": 2.0, "hi": 4.0}
    return {"axis": "rate", "steps": list(steps), "interval": interval, "knee": {"below": 2.0, "above": 4.0}}


def test_a_curve_is_of_the_highest_percentile_that_every_valid_load_carries() -> None:
    mixed = read_steps(sweep(step(1, 0.1, 0.2), step(2, 0.1, None), step(4, 2.0, 3.0, "overloaded")))
    assert common_percentile(mixed) == "p50"
    same = read_steps(sweep(step(1, 0.1, 0.2), step(2, 0.1, 0.3), step(4, 2.0, None, "invalid", valid=False)))
    assert common_percentile(same) == "p95", "an invalid step decides nothing"
    chart = curve_chart(words("en"), same, (2.0, 4.0))
    assert chart is not None
    assert "p95" in chart.title
    assert "Invalid measurements are not drawn" in chart.note
    assert chart.draw(900)[0].count("<circle") == 3, (
        "two loads and one ring: the knee's other end is not drawn"
    )
    assert len(chart.table.rows) == 3, "the table has every load"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_page_of_a_sweep_says_the_interval_and_nothing_of_it_is_active(lang: Any) -> None:
    document = {
        "workload": "<script>alert(1)</script>",
        "status": "complete",
        "sweep": sweep(step(2, 0.1, 0.2), step(4, 2.0, 3.0, "overloaded"))
        | {"sentences": ["<img src=x>", "two"]},
        "runs": [{"part": {"name": "<b>", "round": 2}, "diagnosis": {"validity": {"valid": False}}}],
        "diagnosis": None,
    }
    page = render_suite_page(document, lang)
    assert page.count("<script") == 1
    assert "<img" not in page
    assert "&lt;b&gt; (2)" in page
    assert "2.00" in page
    assert "4.00" in page


@pytest.mark.parametrize(
    "damaged", [{}, {"sweep": {"steps": 3}}, {"answer": {"rows": [1], "columns": [1]}, "runs": ["x"]}]
)
def test_a_damaged_document_is_still_a_page(damaged: dict[str, Any]) -> None:
    assert render_suite_page(damaged).endswith("</html>\n")


def test_runs_that_cannot_be_read_are_named_and_none_is_no_good_sign() -> None:
    document = {
        "workload": "w",
        "status": "complete",
        "runs": [],
        "unreadable": ["'<b>' is no run directory"],
    }
    page = render_suite_page(document)
    assert "1 run cannot be read" in page
    assert "&#x27;&lt;b&gt;&#x27; is no run directory" in page
    assert 'class="good"' not in page
    assert "No cause of trouble" not in page
