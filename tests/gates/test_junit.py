"""The JUnit file parses whatever stands in it, holds no secret, and fails where the run failed (F60)."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from kvprobe.diagnose.judge import diagnose_run
from kvprobe.evidence import secrets
from kvprobe.gates.expressions import parse
from kvprobe.gates.judge import judge
from kvprobe.gates.junit import render_junit
from kvprobe.summary.build import summarise
from tests.summary.synthetic import Made, failed, healthy

HOSTILE = "\x00\x08\x1b[2J\x85\u202e</testsuite><script>&\ufffe\ud800]]>\r\n"


def xml_of(made: Made, *thresholds: str) -> ElementTree.Element:
    run = made.build()
    summary = summarise(run)
    results = judge([parse(t) for t in thresholds], summary, run)
    return ElementTree.fromstring(render_junit(summary, diagnose_run(run, summary), results).encode())


def test_one_case_a_threshold_and_one_for_the_measurement() -> None:
    root = xml_of(healthy(), "ttft.p95 < 800ms", "e2e.p50 < 1ms", "e2e.p99.9 < 1h", "waiting.p99.9 < 5")
    suite = root[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "3", "0")
    found = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert found == {
        "the measurement is valid": [],
        "ttft.p95 < 800ms": [],
        "e2e.p50 < 1ms": ["failure"],
        "e2e.p99.9 < 1h": ["failure"],
        "waiting.p99.9 < 5": ["failure"],
    }
    types = [f.get("type") for f in suite.iter("failure")]
    assert types == ["fail", "n_too_small", "n_too_small"]


def test_an_invalid_run_is_an_error_beside_its_thresholds() -> None:
    made = healthy()
    for sample in made.samples:
        if sample.metric == "client.loop_lag_s":
            sample.value = 30.0
    suite = xml_of(made, "ttft.p95 < 800ms")[0]
    assert (suite.get("errors"), suite.get("failures")) == ("1", "0")
    (error,) = suite.iter("error")
    assert "stood still" in (error.get("message") or "")


def test_hostile_text_neither_breaks_the_file_nor_leaves_it() -> None:
    made = healthy()
    made.workload = {"name": HOSTILE}
    made.status = "partial"
    made.fact("load_finished", {"reason": "error", "detail": HOSTILE})
    made.records.append(failed(999, "status", failure_detail=HOSTILE))
    suite = xml_of(made, "error_rate < 0.1%")[0]
    assert next(suite.iter("testcase")).get("name") == "the measurement is valid"
    (error,) = suite.iter("error")
    assert "\x1b" not in (error.get("message") or "")
    assert "</testsuite><script>" in (error.get("message") or ""), "shown as text"


def test_a_key_never_stands_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_hidden", {"sk-canary-0123456789"})
    made = healthy()
    made.status = "partial"
    made.fact("load_finished", {"reason": "auth", "detail": "the key sk-canary-0123456789 was refused"})
    run = made.build()
    summary = summarise(run)
    text = render_junit(summary, diagnose_run(run, summary), [])
    assert "sk-canary" not in text
    assert "[key]" in text
