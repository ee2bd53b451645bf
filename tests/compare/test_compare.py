"""Two runs with a known difference, with none, and such as must not be compared."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from kvprobe.cli.main import main
from kvprobe.compare.alike import unlike_keys
from kvprobe.compare.build import Judged, compare_runs
from kvprobe.compare.model import Comparison, Row, compare_schema
from kvprobe.diagnose.judge import diagnose_run
from kvprobe.errors import UsageError
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.rundata import RunData
from kvprobe.evidence.rundir import RunDir
from kvprobe.summary.build import summarise
from tests.summary.synthetic import Made, failed, record

WORKLOAD = {"name": "made_up", "kind": "distinct", "prompt": {"tokens": 640}, "requests": 400}


def judged(run: RunData) -> Judged:
    summary = summarise(run)
    return run, summary, diagnose_run(run, summary)


def made(
    seed: int, *, slower: float = 1.0, n: int = 400, gap: float = 10.0, cached: int | None = None
) -> RunData:
    """A request every 50 ms, first token after a lognormal time of median 100 ms x `slower`."""
    rng = np.random.default_rng(seed)
    firsts = 100.0 * slower * np.exp(0.3 * rng.normal(size=n))
    rows = [
        record(
            i, sent_ms=50.0 * i, ttft_ms=float(t), gap_ms=gap * float(rng.uniform(0.9, 1.1)), cached=cached
        )
        for i, t in enumerate(firsts)
    ]
    run = Made(records=rows, workload=dict(WORKLOAD)).build()
    run.path = Path(f"/runs/{seed}")
    return run


def row(found: Comparison, name: str) -> Row:
    return next(r for r in found.rows if r.name == name)


def test_a_real_difference_is_shown_with_an_interval_that_holds_it() -> None:
    found = compare_runs(judged(made(1)), judged(made(2, slower=1.5)))
    ttft = row(found, "ttft p50")
    assert ttft.verdict == "higher"
    assert ttft.ci is not None
    assert ttft.ci.lo <= 0.5 <= ttft.ci.hi
    assert row(found, "tpot p50").verdict in ("no_difference_shown", "hint")
    assert "ttft p50 +" in found.summary


def test_where_there_is_none_none_is_shown() -> None:
    """Twelve pairs without a difference: with 95 % for all rows together a false alarm is rare."""
    alarms = 0
    for seed in range(12):
        found = compare_runs(judged(made(100 + seed, n=120)), judged(made(200 + seed, n=120)))
        alarms += any(r.verdict in ("higher", "lower") for r in found.rows)
    assert alarms <= 3
    found = compare_runs(judged(made(1)), judged(made(2)))
    assert found.summary.startswith("no difference shown")


def test_throughput_is_per_second_whatever_the_length_of_the_window() -> None:
    fast, slow = made(1, n=200), made(2, n=200)
    for i, r in enumerate(slow.records):
        moved = 50_000_000 * i  # the same requests, half as often
        for name in ("intended_ns", "sent_ns", "first_byte_ns", "first_chunk_ns", "first_token_ns"):
            setattr(r, name, getattr(r, name) + moved)
        for name in ("first_visible_ns", "last_token_ns", "end_ns"):
            setattr(r, name, getattr(r, name) + moved)
    out = row(compare_runs(judged(fast), judged(slow)), "output tokens/s")
    assert out.verdict == "lower"
    assert out.ci is not None
    assert out.ci.lo <= -0.5 + 0.02
    assert out.ci.hi >= -0.5 - 0.02


def test_hits_are_compared_by_tokens() -> None:
    found = compare_runs(judged(made(1, cached=480)), judged(made(2, cached=0)))
    hits = row(found, "prefix hit rate")
    assert (hits.a, hits.b, hits.verdict) == (pytest.approx(0.75), 0.0, "lower")
    assert hits.change == pytest.approx(-0.75)


def test_a_few_requests_carry_no_percentile() -> None:
    found = compare_runs(judged(made(1, n=12)), judged(made(2, n=12, slower=3)))
    assert row(found, "ttft p95").verdict == "n_too_small"
    assert row(found, "ttft p95").a is None
    assert "needs 59" in (row(found, "ttft p95").why or "")


def test_a_run_in_which_all_failed_is_said_to_hold_nothing_else() -> None:
    broken = Made(records=[failed(i, "status", sent_ms=50.0 * i) for i in range(80)], workload=dict(WORKLOAD))
    found = compare_runs(judged(made(1, n=80)), judged(broken.build()))
    assert found.summary.startswith("no request of B ended well")
    assert row(found, "failed requests").verdict == "higher"
    assert row(found, "ttft p50").why == "no values"


def test_latencies_of_survivors_are_named_so() -> None:
    half = made(2, n=80)
    half.records[::2] = [failed(i, "status", sent_ms=50.0 * i) for i in range(0, 80, 2)]
    warnings = compare_runs(judged(made(1, n=80)), judged(half)).warnings
    assert any("40 of 80 requests of B failed" in w for w in warnings)


def drifting(seed: int) -> RunData:
    """120 requests of a server whose speed wanders over stretches of some 20 of them."""
    rng = np.random.default_rng(seed)
    level, rows = rng.normal(), []
    for i in range(120):
        level = 0.95 * level + rng.normal() * np.sqrt(1 - 0.95**2)
        own = np.exp(0.05 * rng.normal())
        rows.append(record(i, sent_ms=50.0 * i, ttft_ms=100 * np.exp(0.3 * level) * own, gap_ms=10.0))
    run = Made(records=rows, workload=dict(WORKLOAD)).build()
    run.path = Path(f"/runs/{seed}")
    return run


def test_a_server_that_drifts_gives_no_false_alarm_and_says_so() -> None:
    alarms, told = 0, 0
    for seed in range(10):
        found = compare_runs(judged(drifting(seed)), judged(drifting(100 + seed)))
        alarms += any(r.verdict in ("higher", "lower") for r in found.rows)
        told += any("drift slowly" in w for w in found.warnings)
    assert alarms <= 2
    assert told >= 6


def test_settings_come_with_both_values() -> None:
    a, b = made(1, n=30), made(2, n=30)
    a.environment["server_args"] = ["--block-size", "16", "--ailment", "x", "--ailment", "y"]
    b.environment["server_args"] = ["--block-size=32", "--no-prefix-caching"]
    a.facts.append(Fact(name="engine", value={"name": "vllm", "version": "0.11"}, source="/metrics"))
    b.facts.append(Fact(name="engine", value={"name": "vllm", "version": "0.12"}, source="/metrics"))
    found = {(s.group, s.name): (s.a, s.b) for s in compare_runs(judged(a), judged(b)).settings}
    assert found["server", "--block-size"] == ("16", "32")
    assert found["server", "--no-prefix-caching"] == (None, True)
    assert found["server", "--ailment"] == ("x y", None)
    assert found["engine", "engine.version"] == ("0.11", "0.12")


def test_other_work_is_refused_by_the_keys_that_differ() -> None:
    a, b = made(1, n=30), made(2, n=30)
    b.workload = {**WORKLOAD, "prompt": {"tokens": 900}}
    with pytest.raises(UsageError) as caught:
        compare_runs(judged(a), judged(b))
    assert "prompt.tokens: 640 in A, 900 in B" in str(caught.value)


def test_how_a_workload_is_named_judged_or_served_is_not_what_was_sent() -> None:
    other = {**WORKLOAD, "name": "x", "description": "y", "thresholds": ["a < 1"], "server_args": ["--q"]}
    assert unlike_keys(WORKLOAD, other) == []
    assert unlike_keys(WORKLOAD, {**WORKLOAD, "seed": 2}) == [("seed", None, 2)]


def stored(tmp_path: Path, run: RunData, name: str) -> Path:
    """The run as a directory, written the way a run writes it."""
    run_dir = RunDir.create(tmp_path, name, "ab" * 32)
    lines = "".join(f"{key}: {json.dumps(value)}\n" for key, value in run.workload.items())
    run_dir.write_text("workload.yaml", lines)
    run_dir.write_json("environment.json", run.environment)
    from kvprobe.evidence.spool import SpoolWriter

    with SpoolWriter(run_dir.spool_dir / "worker-0.jsonl", "0") as spool:
        for r in run.records:
            spool.write(r)
    run_dir.finalise()
    run_dir.write_status("complete")
    return run_dir.path


def test_the_command_prints_one_document_of_its_schema(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = stored(tmp_path, made(1), "one"), stored(tmp_path, made(2, slower=2.0), "two")
    assert main(["compare", str(a), str(b), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, compare_schema())
    assert document["same_workload"] is True
    assert main(["compare", str(a), str(b)]) == 0
    page = capsys.readouterr().out
    assert "B is worse" in page
    assert "from run to run" in page


def test_the_command_refuses_what_is_no_pair_of_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = stored(tmp_path, made(1, n=30), "one")
    other = made(2, n=30)
    other.workload = {**WORKLOAD, "kind": "mixed_lengths"}
    assert main(["compare", str(run), str(stored(tmp_path, other, "two"))]) == 2
    assert "unlike_runs" in capsys.readouterr().err
    assert main(["compare", str(run), str(tmp_path)]) == 2
    assert "holds 2 runs" in capsys.readouterr().err
    assert main(["compare", str(run), str(tmp_path / "none")]) == 2


def test_the_same_runs_give_the_same_intervals() -> None:
    pair = judged(made(1, n=80)), judged(made(2, n=80))
    assert compare_runs(*pair) == compare_runs(*pair)
