"""A suite on a terminal: the answer first, foreign text cleaned, nothing unknown shown as 0."""

from __future__ import annotations

from pathlib import Path

from kvprobe.diagnose.suite_answer import Answer, Column, Statement
from kvprobe.diagnose.suite_judge import SuiteResult
from kvprobe.evidence.suitedir import SuiteData
from kvprobe.report.suite_text import cell, suite_text
from kvprobe.summary.backlog import Backlog
from kvprobe.summary.sweep import Bound, Limits, Step
from kvprobe.summary.sweep_result import sweep_result


def suite(**rest: object) -> SuiteResult:
    data = SuiteData(Path("runs/a"), "complete", {"name": "made \x1b[31mup"})
    return SuiteResult(data, **rest)  # type: ignore[arg-type]


def test_a_sweep_as_text() -> None:
    growth = Backlog(growth_per_s=6.2, lo_per_s=6.0, hi_per_s=6.4, seconds=10.0, at_end=60.0)
    still = Backlog(growth_per_s=0.0, lo_per_s=-0.1, hi_per_s=0.1, seconds=10.0, at_end=1.0)
    wait = {
        "p50": Bound(value=0.03),
        "p95": Bound(reason="n too small: 20, p95 needs 59"),
        "mean": Bound(value=0.03),
    }
    steps = [
        Step(load=5.0, served_per_s=5.0, backlog=still, ttft_s=wait),
        Step(load=12.0, served_per_s=5.8, backlog=growth, ttft_s={"p50": Bound(value=18.8)}, queue_s=18.0),
    ]
    text = suite_text(suite(sweep=sweep_result("rate", Limits(), steps, constant=True)), width=100)
    assert "\x1b" not in text
    assert "Sustainable 5.00 req/s [5.00, 12)" in text
    assert "Offered 12.0 > served 5.80: backlog grows 6.2 req/s" in " ".join(text.split())
    assert "n small" in text
    assert max(map(len, text.splitlines())) <= 100
    narrow = suite_text(suite(sweep=sweep_result("rate", Limits(), steps, constant=True)), width=80)
    assert "overloaded" in narrow


def test_a_sweep_of_users_has_no_backlog() -> None:
    steps = [Step(load=1.0, served_per_s=3.0, ttft_s={"p50": Bound(value=0.1)})]
    assert "backlog" not in suite_text(
        suite(sweep=sweep_result("users", Limits(), steps, constant=False)), width=100
    )


def test_an_answer_as_text() -> None:
    columns = [
        Column("part", "part", "text"),
        Column("held", "held", "bytes"),
        Column("hits", "hits", "ratio"),
    ]
    rows = [{"part": "a", "held": 2**20, "hits": None}, {"part": "b", "held": None, "hits": None}]
    found = Answer(
        question="three_controls",
        statements=[Statement(id="meaning", verdict="shown", text="As expected.")],
        columns=columns,
        rows=rows,
        notes=["Order: a, b."],
    )
    lines = [" ".join(line.split()) for line in suite_text(suite(answer=found), width=100).splitlines()]
    assert "answer As expected." in lines
    assert "part a b" in lines
    assert "held 1.00 MiB -" in lines
    assert not any(line.startswith("hits") for line in lines), "a row that nobody knows is left out"


def test_cells() -> None:
    assert cell(Column("x", "x", "s"), {"x": 0.0123}) == "12.3 ms"
    assert cell(Column("x", "x", "count"), {"x": 3.0}) == "3"
    assert cell(Column("x", "x", "ratio"), {}) == "-"
    assert cell(Column("x", "x", "tokens_per_s"), {"x": 45.6}) == "45.6 tok/s"
