"""Sections of the pre-launch report that a full run fills: sensitivity, thresholds, start, machine, tree."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.report.content import Block, Facts, Figure, Section, Table
from kvprobe.report.prelaunch.page import prelaunch_report
from kvprobe.report.prelaunch.sensitivity import Inputs, inputs, swings
from kvprobe.report.prelaunch.view import Prelaunch
from kvprobe.report.run_view import RunView, plain
from kvprobe.report.words import words
from tests.report.launch import launch_run
from tests.report.plans import a_plan
from tests.report.test_prelaunch import a_run
from tests.summary.synthetic import T0, S, healthy


def section(name: str, run: RunView | None = None, **stated: Any) -> Section:
    report = prelaunch_report(a_plan(), run or launch_run(), **stated)
    return next(s for s in report.sections if s.id == name)


def rows(blocks: list[Block], name: str) -> list[list[str]]:
    """The cells of the table of that name, in a figure or alone."""
    tables = [b.table if isinstance(b, Figure) else b for b in blocks if isinstance(b, Figure | Table)]
    found = next(t for t in tables if t.name == name)
    return [[plain(cell) for cell in row] for row in found.rows]


def test_the_need_is_the_formula_on_the_page() -> None:
    base = Inputs(prompt=1_000, answer=200, hit=0.5, at_once=10, price=2.0, pool=70_750, block=16)
    assert base.share() == pytest.approx(10 * (500 + 200 + 7.5) / 70_750)
    assert base.outcome() == pytest.approx(base.share() * 2.0 * 730)
    assert base.moved("hit", 4.0).share() == pytest.approx(10 * 207.5 / 70_750), "no more than the prompt"


def test_each_input_swings_the_need_and_says_where_it_is_from() -> None:
    view = Prelaunch(words("en"), a_plan(), launch_run(), demand_at_once=40)
    found = {s.label: s for s in swings(view)}
    assert set(found) == {
        "prompt tokens (ISL)",
        "answer tokens (OSL)",
        "concurrent requests",
        "prefix hit rate",
        "price of an hour",
    }
    assert found["concurrent requests"].source == "stated with --demand-at-once"
    assert found["prefix hit rate"].low > found["prefix hit rate"].high, "more hits need less"
    base = inputs(view)
    assert base is not None
    middle = base[0].outcome()
    assert found["price of an hour"].high == pytest.approx(1.25 * middle)
    widths = [s.width for s in swings(view)]
    assert widths == sorted(widths, reverse=True)


def test_a_stated_rate_becomes_requests_at_once_by_littles_law() -> None:
    run = launch_run()
    found = inputs(Prelaunch(words("en"), a_plan(), run, demand_per_s=2.0))
    stay = run.summary.metrics.e2e_s.mean
    assert found is not None
    assert stay is not None
    assert found[0].at_once == pytest.approx(2.0 * stay)


def test_without_a_run_no_sensitivity_is_made_up() -> None:
    assert inputs(Prelaunch(words("en"), a_plan())) is None
    assert inputs(Prelaunch(words("en"), {"pool": {"tokens": 0}}, launch_run())) is None


def test_readings_for_another_replica_and_the_loss_of_one() -> None:
    found = section("s11", demand_per_s=1.0)
    facts = dict(next(b for b in found.blocks if isinstance(b, Facts)).rows)
    assert facts["with one to spare (N+1)"] == "3"
    assert facts["load of each replica"] == "30.3 % of its capacity; 45.5 % when one is lost"
    signs = rows(found.blocks, "autoscale")
    assert signs[0][:2] == ["load of a replica", ">= 0.88 requests/s"]
    assert [row[0] for row in signs[1:]] == ["requests waiting", "KV use", "preemptions"]


def test_a_cold_start_tells_the_first_requests_and_how_long_the_server_was_up() -> None:
    made = healthy()
    made.environment["clock"] = {"monotonic_ns": T0, "utc_ns": 1_800_000_000 * S}
    made.gauge("engine.process_start_time_s", [1_800_000_000.0 - 90.0])
    found = section("s10", a_run(made))
    facts = dict(next(b for b in found.blocks if isinstance(b, Facts)).rows)
    assert facts["server up before the first request"] == "90.0 s"
    first = rows(found.blocks, "first-requests")
    assert len(first) == 5
    assert first[0][4] == "measured"
    unknown = dict(next(b for b in section("s10").blocks if isinstance(b, Facts)).rows)
    assert "does not export" in str(unknown["server up before the first request"])


def test_the_machine_is_in_the_assumptions_with_its_source_or_as_not_known() -> None:
    told = {row[0]: row[1:] for row in rows(section("s2").blocks, "assumptions")}
    assert told["KV heads"] == ["8", "config"]
    assert told["head dimension"] == ["128", "config"]
    assert told["driver"] == ["570.1", "measured"]
    assert told["power cap"] == ["700 W", "measured"]
    assert told["interconnect"] == ["none: one GPU", "formula"]
    bare = {row[0]: row[1:] for row in rows(section("s2", a_run()).blocks, "assumptions")}
    assert bare["driver"] == ["not known", "nobody said"]


def test_the_tree_of_prefixes_stands_with_the_workload_once() -> None:
    names = [b.name for b in section("s4").blocks if isinstance(b, Figure)]
    assert names.count("prefix-tree") == 1
    assert not any(isinstance(b, Figure) and b.name == "prefix-tree" for b in section("s8").blocks)
    assert rows(section("s4").blocks, "prefix-tree")[1][:3] == ["– 544", "96", "50,160"]
