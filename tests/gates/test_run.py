"""Thresholds and abort rules of real runs against a server that plays known faults."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from kvprobe.load.workload import load_workload
from tests.e2e.conftest import Result, kvprobe
from tests.load.truth import truth_server

SMALL = (
    "--set", "prompt.tokens=32",
    "--set", "output.tokens=4",
    "--set", "warmup.requests=0",
    "--set", "breaker.consecutive_failures=100000",
    "--set", "breaker.window=100000",
)  # fmt: skip
QUICK = ("--ttft", "20", "--itl", "2")


def run(url: str, out: Path, *more: str) -> Result:
    return kvprobe("run", "distinct", "--target", url, "--out", str(out), "--json", *SMALL, *more)


def test_thresholds_decide_the_exit_code_and_stand_everywhere(tmp_path: Path) -> None:
    junit = tmp_path / "junit.xml"
    with truth_server(*QUICK) as server:
        result = run(
            server.url,
            tmp_path / "runs",
            "--set", "requests=70",
            "--threshold", "ttft.p95 < 1ms",
            "--threshold", "ttft.p99 < 10s",
            "--threshold", "error_rate < 1%",
            "--threshold", "preemptions == 0",
            "--junit", str(junit),
        )  # fmt: skip
    document = result.document
    verdicts = {t["threshold"]: t["verdict"] for t in document["thresholds"]}
    assert verdicts == {
        "ttft.p95 < 1ms": "fail",
        "ttft.p99 < 10s": "n_too_small",
        "error_rate < 1%": "pass",
        "preemptions == 0": "not_measured",
    }
    assert result.code == (99 if document["diagnosis"]["validity"]["valid"] else 4), result.err
    assert set(document["thresholds"][0]) == {
        "threshold", "metric", "op", "limit", "unit", "value", "ci", "n", "verdict", "why",
    }  # fmt: skip
    suite = ElementTree.parse(junit).getroot()[0]
    assert suite.get("failures") == "3"
    run_dir = Path(document["run_dir"])
    assert json.loads((run_dir / "summary.json").read_text())["thresholds"] == document["thresholds"]
    # They belong to the resolved workload, so that `report` judges the same ones again.
    again = kvprobe("report", str(run_dir), "--json")
    assert again.document["thresholds"] == document["thresholds"]
    text = kvprobe("report", str(run_dir)).out
    assert "FAIL (n too small)" in text
    assert "FAIL (not measured)" in text


def test_what_is_judged_does_not_change_what_is_sent() -> None:
    """Runs that differ only in it may be compared."""
    base = load_workload("distinct")
    for key, value in (
        ("slo.ttft", "2s"),
        ("thresholds", "['ttft.p50 < 1s']"),
        ("abort", "['error_rate > 50% for 3s']"),
        ("limits.rate", "7"),
        ("budget.tokens", "1000000"),
    ):
        changed = load_workload("distinct", [(key, value)])
        assert changed != base
        assert changed.content_hash() == base.content_hash(), key


def test_an_abort_rule_stops_the_load_and_is_named(tmp_path: Path) -> None:
    with truth_server(*QUICK, "--status", "500") as server:
        result = run(
            server.url, tmp_path / "runs", "--set", "duration=90s", "--abort", "error_rate > 50% for 1s"
        )
    assert result.code == 5, result.err
    assert "abort rule `error_rate > 50%` held for 1 s: error_rate is 100.0 %" in result.err
    document = result.document
    assert document["status"] == "partial"
    assert document["window"]["finish_reason"] == "abort"
    facts = [json.loads(x) for x in (Path(document["run_dir"]) / "facts.jsonl").read_text().splitlines()]
    (rule,) = [f["value"] for f in facts if f["name"] == "abort_rule"]
    assert rule["tripped"] is True
    assert rule["rule"] == "error_rate > 50% for 1s"


def test_a_server_that_hangs_trips_a_rule_on_the_first_token_long_before_a_time_out(
    tmp_path: Path,
) -> None:
    rule = ("--abort", "ttft.p95 > 1s for 1s", "--processes", "2")
    with truth_server("--ttft", "60000") as server:
        result = run(server.url, tmp_path / "runs", "--users", "6", "--duration", "90s", *rule)
    assert result.code == 5, result.err
    assert "`ttft.p95 > 1s` held for 1 s: ttft.p95 is at least" in result.err
    assert "6 still waiting" in result.err
    document = result.document
    assert document["requests"]["by_failure"] == {"cancelled_at_end": 6}
    assert document["window"]["finish_reason"] == "abort"


def test_an_abort_rule_on_the_server_s_own_gauge(tmp_path: Path) -> None:
    """The truth server counts its open requests against its slots: two or more of 4 fill the cache."""
    with truth_server("--ttft", "300", "--itl", "5", "--kv-slots", "2") as server:
        result = run(
            server.url,
            tmp_path / "runs",
            "--users",
            "4",
            "--duration",
            "90s",
            "--abort",
            "kv_usage >= 0.9 for 1s",
        )
    assert result.code == 5, result.err
    assert "kv_usage is 100.0 %" in result.err


def test_a_budget_ends_the_load_without_cutting_what_was_paid_for(tmp_path: Path) -> None:
    with truth_server(*QUICK) as server:
        result = run(
            server.url, tmp_path / "runs", "--users", "2", "--duration", "90s", "--set", "budget.tokens=4000"
        )
    assert result.code == 5, result.err
    assert "`budget.tokens` is used up" in result.err
    document = result.document
    assert document["requests"]["failed"] == 0, "what was in flight has ended well"
    assert document["requests"]["ok"] > 5


@pytest.mark.parametrize(
    ("option", "text", "column"),
    [("--threshold", "ttft.p95 < 800", 12), ("--abort", "errorrate > 50%", 1)],
)
def test_a_wrong_expression_is_an_error_before_anything_starts(
    option: str, text: str, column: int, tmp_path: Path
) -> None:
    result = run("http://127.0.0.1:9", tmp_path / "runs", option, text)
    assert result.code == 2
    (error,) = result.document["errors"]
    assert (error["path"], error["line"], error["column"]) == (option, 1, column)
    assert error["fix"]
    assert not (tmp_path / "runs").exists()


def test_the_keys_of_a_workload_file(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(
        "name: w\nkind: distinct\nprompt: {tokens: 32}\noutput: {tokens: 4}\n"
        "arrival: {closed: {users: 1}}\nrequests: 5\n"
        "thresholds:\n  - ttft.p95 < 1\n  - goodput > 1/s\nabort:\n  - {when: error_rate > 1, grace: 5}\n"
    )
    result = kvprobe(
        "run", str(path), "--target", "http://127.0.0.1:9", "--json", "--out", str(tmp_path / "r")
    )
    assert result.code == 2
    places = {(e["line"], e["column"]): e["message"] for e in result.document["errors"]}
    assert "needs a unit" in places[8, 5]
    assert "one per cent" in places[11, 12]
    assert "a duration needs a unit" in places[11, 35]
    # A threshold that asks for `slo` is told once the rest is right.
    path.write_text(path.read_text().replace("< 1\n", "< 1s\n").replace("> 1,", "> 1%,").replace("5}", "5s}"))
    again = kvprobe(
        "run", str(path), "--target", "http://127.0.0.1:9", "--json", "--out", str(tmp_path / "r")
    )
    (error,) = again.document["errors"]
    assert (error["line"], "slo" in error["fix"]) == (9, True)


def test_a_junit_file_that_cannot_be_written_stops_before_the_load(tmp_path: Path) -> None:
    result = run("http://127.0.0.1:9", tmp_path / "runs", "--junit", str(tmp_path / "no" / "j.xml"))
    assert result.code == 6
    assert not (tmp_path / "runs").exists()
