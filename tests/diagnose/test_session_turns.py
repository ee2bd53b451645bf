"""Turns that wait for the answer before them, and lists whose order changes: told apart from other causes."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.diagnose import validity
from kvprobe.diagnose.rules.prefix import prefix_row
from kvprobe.diagnose.session_turns import own_delays_s
from kvprobe.diagnose.view import View
from kvprobe.evidence.facts import Fact
from kvprobe.summary.build import summarise
from tests.summary.synthetic import Made, healthy, record


def view(made: Made) -> View:
    run = made.build()
    return View(run, summarise(run))


def sessions(behind_ms: float) -> Made:
    """Two turns each; the second one was wanted while the first was under way, and left after it."""
    made = Made()
    for number in range(40):
        start = 2_000.0 * number
        first = record(2 * number, sent_ms=start, session=f"s{number}", turn=1)
        end_ms = ((first.end_ns or 0) - (first.sent_ns or 0)) / 1e6
        sent = start + end_ms + behind_ms
        second = record(2 * number + 1, sent_ms=sent, late_ms=200, session=f"s{number}", turn=2)
        made.records += [first, second]
    made.workload["arrival"] = {"open": {"trace": {"scale_time": 1.0}, "max_in_flight": 64}}
    return made


def test_a_turn_that_waits_for_its_answer_is_no_fault_of_the_client() -> None:
    issues = validity.check(view(sessions(1)))[1]
    assert "late_client" not in [i.code for i in issues]
    assert any("40 turns left up to 200 ms after their time" in i.text for i in issues)


def test_a_turn_that_is_late_after_its_answer_is() -> None:
    issues = validity.check(view(sessions(60)))[1]
    assert "late_client" in [i.code for i in issues if i.level == "invalid"]


def test_delays_count_from_when_a_request_could_leave() -> None:
    rows = sessions(30).records[:2]
    alone = record(9, sent_ms=5_000, late_ms=70)
    found = own_delays_s([alone, *reversed(rows)])
    assert found == pytest.approx({"r0": 0.0, "r1": 0.03, "r9": 0.07})


def layout(made: Made, **value: Any) -> Made:
    base = {"ceiling_as_sent": 0.12, "ceiling_if_moved": 0.12, "ceiling_if_ordered": 0.9}
    base |= {"reordered_prompts": 29, "reordered_lines": 8, "reordered_from_token": 99, "block_size": 16}
    made.facts.append(Fact(name="prompt_layout", value=base | value, source="prompt_layout"))
    made.facts.append(Fact(name="prefix_hit_rate_ceiling", value=base["ceiling_as_sent"], source="test"))
    return made


def test_lines_in_another_order_are_named_with_what_one_order_would_give() -> None:
    made = Made(records=[record(n, sent_ms=100 * n, cached=64) for n in range(40)])
    found = prefix_row(view(layout(made))).candidates[0].finding
    assert found.cause == "prefix_layout_unstable"
    assert "29 prompts hold lines of earlier prompts in another order" in found.why
    assert "90.0 %" in found.why
    assert "sort tools" in found.remedy[0]


def test_one_order_that_would_not_help_is_not_named() -> None:
    for value in ({"ceiling_if_ordered": 0.13}, {"reordered_prompts": None}, {"ceiling_if_ordered": None}):
        found = prefix_row(view(layout(healthy(), **value))).candidates
        assert "prefix_layout_unstable" not in [c.finding.cause for c in found]
