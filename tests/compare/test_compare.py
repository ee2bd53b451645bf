"""Two runs with a known difference, with none, and such as must not be compared."""

from __future__ import annotations

import json
import shutil
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


def with_hash(run: RunData, digest: str, version: str = "1") -> RunData:
    run.facts.append(Fact(name="workload_hash", value=digest, source="workload.yaml"))
    run.environment["kvprobe"] = version
    return run


def test_a_trace_that_was_exchanged_under_its_name_is_other_work() -> None:
    a, b = with_hash(made(1, n=30), "aa"), with_hash(made(2, n=30), "bb")
    with pytest.raises(UsageError, match="hashes differ"):
        compare_runs(judged(a), judged(b))
    b.environment["kvprobe"] = "2"  # another version may count keys into the hash that this one does not
    found = compare_runs(judged(a), judged(b))
    assert found.same_workload is False
    assert "not certain" in found.warnings[0]


def test_a_trace_that_was_moved_is_the_same_work() -> None:
    a, b = with_hash(made(1, n=30), "aa"), with_hash(made(2, n=30), "aa")
    a.workload["prompt"] = {"trace": "/a/t.csv"}
    b.workload["prompt"] = {"trace": "/b/t.csv"}
    assert compare_runs(judged(a), judged(b)).same_workload is True


def test_one_request_each_shows_nothing() -> None:
    for n in (1, 2):
        found = compare_runs(judged(made(1, n=n)), judged(made(2, n=n, slower=5.0)))
        assert found.summary.startswith("n too small")
        assert all(r.verdict not in ("higher", "lower", "hint") for r in found.rows)


def test_runs_without_a_request_are_no_comparison() -> None:
    empty = Made(records=[], workload=dict(WORKLOAD)).build()
    for pair in ((made(1, n=30), empty), (empty, made(1, n=30)), (empty, empty)):
        found = compare_runs(judged(pair[0]), judged(pair[1]))
        assert found.summary.startswith("no request of")
        json.dumps(found.to_json(), allow_nan=False)


def test_constant_and_zero_times_give_no_interval_of_nothing() -> None:
    constant, zero = (
        Made(
            records=[record(i, sent_ms=50.0 * i, ttft_ms=t, gap_ms=g) for i in range(100)],
            workload=dict(WORKLOAD),
        ).build()
        for t, g in ((100.0, 10.0), (0.0, 0.0))
    )
    found = compare_runs(judged(constant), judged(constant))
    assert row(found, "ttft p50").verdict == "no_difference_shown"
    for pair in ((zero, constant), (constant, zero)):
        json.dumps(compare_runs(judged(pair[0]), judged(pair[1])).to_json(), allow_nan=False)


def test_a_copy_of_a_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = stored(tmp_path, made(1, n=40), "one")
    shutil.copytree(a, tmp_path / "copy")
    link = tmp_path / "link"
    link.symlink_to(a)
    for other, told in ((a, "same directory"), (link, "same directory"), (tmp_path / "copy", "a copy of")):
        assert main(["compare", str(a), str(other), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["summary"].startswith("no difference shown")
        assert any(told in warning for warning in found["warnings"])


def damaged(run: Path, name: str, data: bytes | None) -> Path:
    """A copy of the run with one file exchanged; null takes it away."""
    copy = run.with_name(f"{run.name}-{name}-{hash(data)}")
    shutil.copytree(run, copy)
    (copy / name).unlink()
    if data is not None:
        (copy / name).write_bytes(data)
    return copy


def test_damaged_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = stored(tmp_path, made(1, n=40), "one"), stored(tmp_path, made(2, n=40), "two")
    rows = (b / "requests.parquet").read_bytes()
    for data in (None, b"", rows[: len(rows) // 2], b"PAR1" + b"\0" * 64):
        assert main(["compare", str(a), str(damaged(b, "requests.parquet", data))]) == 2
    for data in (None, b"\xff\xfe\x00", b"- a\n", b"a: [\n"):
        assert main(["compare", str(a), str(damaged(b, "workload.yaml", data))]) == 2
    capsys.readouterr()
    for data in (None, b"[1]", b"{"):
        assert main(["compare", str(a), str(damaged(b, "environment.json", data)), "--json"]) == 0
        assert "B does not say how it was made" in capsys.readouterr().out
    odd = b'{"server_args": "--x", "clock": 5, "libraries": [1], "platform": {"a": {"b": "\\u001b[2J"}}}'
    assert main(["compare", str(a), str(damaged(b, "environment.json", odd))]) == 0
    assert "\x1b" not in capsys.readouterr().out
    assert main(["compare", str(a), str(damaged(b, "STATUS", b"\x1b[2J"))]) == 0
    page = capsys.readouterr().out
    assert "\x1b" not in page
    assert "B is killed" in page


def test_an_invalid_run_is_compared_under_a_banner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = Made(records=[failed(i, "status", sent_ms=50.0 * i) for i in range(40)], workload=dict(WORKLOAD))
    pair = stored(tmp_path, made(1, n=40), "one"), stored(tmp_path, broken.build(), "two")
    assert main(["compare", *map(str, pair)]) == 4
    assert capsys.readouterr().out.startswith("INVALID (B)")
