"""Suites and sweeps by the public command: one folder, one document, sane endings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from kvprobe.report.document import run_schema
from tests.e2e.conftest import Result, Server, command, kvprobe
from tests.faults.kit import Exchange, answer, serve

SMALL = """\
name: small
answer: three_controls
workload:
  kind: shared_prefix
  prompt: {families: 1, requests_per_family: 12, prefix_tokens: 128, suffix_tokens: 16}
  output: {tokens: 8}
  arrival: {closed: {users: 2}}
  warmup: {requests: 1}
suite:
  - {name: one, role: repeated}
  - {name: all, role: distinct, set: {prompt.families: 12, prompt.requests_per_family: 1}}
"""


@pytest.fixture
def small(tmp_path: Path) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return str(path)


def folder_of(out: Path) -> Path:
    (folder,) = out.glob("*/")
    return folder


def run_folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir())


def check_suite(result: Result, out: Path, runs: int) -> dict[str, Any]:
    """Valid or not (a busy machine may say INVALID, exit 4): everything is there and adds up."""
    assert result.code in (0, 4), result.err
    document = result.document
    jsonschema.validate(document, run_schema())
    assert document["status"] == "complete"
    assert len(document["runs"]) == runs
    assert document["requests"]["ok"] == sum(run["requests"]["ok"] for run in document["runs"])
    folder = folder_of(out)
    assert document["run_dir"] == str(folder)
    names = {p.name for p in folder.iterdir() if p.is_file()}
    assert {"suite.json", "summary.json", "STATUS", "report.html"} <= names
    assert len(run_folders(folder)) == runs
    assert json.loads((folder / "summary.json").read_text()) == document
    assert (folder / "STATUS").read_text().strip() == "complete"
    invalid = [run for run in document["runs"] if not run["diagnosis"]["validity"]["valid"]]
    assert (result.code == 4) == bool(invalid) or document["sweep"] is not None
    if result.code == 4:
        assert "INVALID" in result.err, "the part is named"
    again = kvprobe("report", str(folder), "--json")
    assert again.code == 0, again.err
    assert again.document == document
    return document


def test_a_suite_on_one_bundled_server(small: str, out: Path) -> None:
    result = kvprobe("run", small, "--out", str(out), "--json")
    document = check_suite(result, out, 2)
    assert [run["part"]["name"] for run in document["runs"]] == ["one", "all"]
    pids = {
        json.loads((path / "environment.json").read_text())["server_pid"]
        for path in run_folders(folder_of(out))
    }
    assert len(pids) == 1, "one server for all parts"
    assert not psutil.pid_exists(pids.pop()), "it ends with the suite"
    assert (folder_of(out) / "server-1.log").is_file()
    statements = {s["id"]: s for s in document["answer"]["statements"]}
    assert {"meaning", "prefill_saved", "decode_unchanged", "memory_shared"} <= set(statements)
    hits = {row["part"]: row["hit_rate"] for row in document["answer"]["rows"]}
    assert hits["one"] > 0.7
    assert hits["all"] == 0.0
    prompts = {row["part"]: row["prompt_tokens_p50"] for row in document["answer"]["rows"]}
    assert prompts["one"] == prompts["all"]


def test_a_suite_against_a_target_with_thresholds_and_junit(
    small: str, out: Path, tmp_path: Path, start_server: Callable[..., Server]
) -> None:
    server = start_server()
    junit = tmp_path / "junit.xml"
    argv = ["--target", server.url, "--out", str(out), "--json", "--junit", str(junit)]
    result = kvprobe("run", small, *argv, "--threshold", "error_rate < 1%", "--threshold", "ttft.p50 < 1us")
    assert result.code in (99, 4), result.err
    named = {(t["part"], t["threshold"]): t["verdict"] for t in result.document["thresholds"]}
    assert named["one", "error_rate < 1%"] == "pass"
    assert named["all", "ttft.p50 < 1us"] == "fail"
    assert junit.read_text().count("<testsuite ") == 2
    again = tmp_path / "again.xml"
    assert kvprobe("report", result.document["run_dir"], "--junit", str(again)).code == 0
    assert again.read_text() == junit.read_text(), "the thresholds belong to the runs"
    assert server.process.poll() is None, "the target is not ours to stop"


def test_parts_with_options_of_their_own_get_a_server_each(out: Path, tmp_path: Path) -> None:
    path = tmp_path / "sizes.yaml"
    text = SMALL.replace("three_controls", "block_size").replace("families: 1,", "families: 3,")
    path.write_text(
        text[: text.index("suite:")]
        + "suite:\n  - {name: b8, serve_args: --block-size 8}\n  - {name: b16, serve_args: --block-size 16}\n"
    )
    refused = kvprobe("run", str(path), "--target", "http://127.0.0.1:9", "--out", str(out), "--json")
    assert refused.code == 2
    assert refused.document["errors"][0]["code"] == "conflict"
    assert not out.exists()
    result = kvprobe("run", str(path), "--out", str(out), "--json", "--set", "requests=12")
    document = check_suite(result, out, 2)
    assert [row["block_size_tokens"] for row in document["answer"]["rows"]] == [8, 16]
    assert all(row["scheduling_per_step_s"] > 0 for row in document["answer"]["rows"])
    assert len(list(folder_of(out).glob("server-*.log"))) == 2


def test_a_sweep_finds_out_or_says_why_not(out: Path) -> None:
    quick = (
        "--set",
        "output.tokens=48",
        "--set",
        "duration=2s",
        "--set",
        "drain=1s",
        "--set",
        "sweep.refine=0",
    )
    result = kvprobe(
        "run", "sweep_rate", "--out", str(out), "--json", "--set", "sweep.rate=[20, 200]", *quick
    )
    assert result.code in (0, 4), result.err
    document = result.document
    jsonschema.validate(document, run_schema())
    sweep = document["sweep"]
    assert [step["load"] for step in sweep["steps"]] == sorted(step["load"] for step in sweep["steps"])
    assert sweep["steps"][-1]["load"] == 200 or sweep["interval"]["hi"] == 20
    assert all(step["why"] for step in sweep["steps"])
    top = sweep["steps"][-1]
    assert top["verdict"] != "sustained", "no two cores do 200 of these a second"
    again = kvprobe("report", document["run_dir"])
    assert again.code == 0
    assert "req/s" in again.out
    assert sweep["sentences"][0].split(";")[0].split()[0] in again.out


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("--rate", "3"), "conflict"),
        (("--master",), "conflict"),
        (("--set", "sweep.rate=[2, 9000]"), "over_limit"),
    ],
)
def test_what_a_sweep_has_no_use_for(argv: tuple[str, ...], code: str, out: Path) -> None:
    """Told before anything is sent: the cap on rates is held against the last of them."""
    result = kvprobe("run", "sweep_rate", *argv, "--out", str(out), "--json")
    assert result.code == 2
    assert result.document["errors"][0]["code"] == code
    assert not out.exists()


SWEEP_OF_TWO = """\
name: small
kind: distinct
prompt: {tokens: 32}
output: {tokens: 2}
arrival: {open: {process: constant, rate: 1}}
duration: 1s
drain: 1s
sweep: {rate: [10, 40], refine: 0}
"""


def test_a_server_that_never_answers_well_is_not_swept_any_further(out: Path, tmp_path: Path) -> None:
    """Its failures say nothing of the load, and are no success of the sweep."""

    async def refusing(exchange: Exchange) -> None:
        while True:
            request = await exchange.request()
            known = request.startswith(b"GET /v1/models")
            body, status = (b'{"data": [{"id": "m"}]}', "200 OK") if known else (b"{}", "503 Busy")
            await exchange.send(answer(body, status=status))

    path = tmp_path / "small.yaml"
    path.write_text(SWEEP_OF_TWO)
    with serve(refusing) as server:
        result = kvprobe("run", str(path), "--target", server.url, "--out", str(out), "--json")
    assert result.code == 4, result.err
    assert "not one request has ended well" in result.err
    sweep = result.document["sweep"]
    assert [(step["load"], step["verdict"]) for step in sweep["steps"]] == [(10, "invalid")]
    assert (sweep["interval"]["lo"], sweep["interval"]["hi"]) == (None, None)


def start(small: str, out: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("run", small, "--out", str(out), "--json", *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def await_run(out: Path, part: str, rows: int = 2, timeout_s: float = 80) -> Path:
    """Wait until a part has recorded some requests; its run directory."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for spool in out.glob(f"*/*-{part}-*/spool/worker-0.jsonl"):
            if spool.read_bytes().count(b'{"type":"row"') >= rows:
                return spool.parent.parent
        time.sleep(0.05)
    raise AssertionError(f"the part {part} recorded no {rows} rows within {timeout_s} s")


def test_a_signal_ends_the_whole_suite_and_keeps_what_was_measured(small: str, out: Path) -> None:
    long = ("--set", "suite.all.requests=100000", "--set", "suite.all.prompt.families=1000")
    process = start(small, out, *long)
    await_run(out, "all")
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    document = json.loads(stdout)
    assert document["status"] == "partial"
    assert [run["status"] for run in document["runs"]] == ["complete", "partial"]
    assert (folder_of(out) / "STATUS").read_text().strip() == "partial"
    assert not psutil.wait_procs(children, timeout=10)[1]


def test_a_server_that_is_killed_ends_the_suite_with_the_part_named(small: str, out: Path) -> None:
    long = ("--set", "suite.one.requests=100000", "--set", "breaker.consecutive_failures=5")
    process = start(small, out, *long)
    run_dir = await_run(out, "one")
    os.kill(json.loads((run_dir / "environment.json").read_text())["server_pid"], signal.SIGKILL)
    stdout, stderr = process.communicate(timeout=90)
    assert process.returncode == 5, stderr
    document = json.loads(stdout)
    assert document["status"] == "partial"
    assert len(document["runs"]) == 1, "no further part is begun"
    assert "one" in stderr


def test_a_disk_that_fills_in_the_second_part_keeps_the_first(
    small: str, out: Path, start_server: Callable[..., Server]
) -> None:
    """A limit on the size of files stands for the full disk: the first part stays below it."""
    argv = ["--target", start_server().url, "--out", str(out), "--json"]
    for key in ("requests=100000", "prompt.families=100000", "sampling.metrics_interval=100ms"):
        argv += ["--set", f"suite.all.{key}"]
    limited = subprocess.run(
        ["sh", "-c", 'ulimit -f 512 && exec "$@"', "sh", *command("run", small, *argv)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert limited.returncode == 6, limited.stdout[:500] + limited.stderr
    document = json.loads(limited.stdout)
    assert document["status"] == "partial"
    assert [run["part"]["name"] for run in document["runs"]][:1] == ["one"]
    assert document["runs"][0]["status"] == "complete"
    problem = json.loads(limited.stderr.splitlines()[-1])["errors"][0]
    assert problem["code"] == "storage_failed"
    assert "all" in problem["message"], "the part is named"
    diagnosed = kvprobe("diagnose", str(folder_of(out)), "--json")
    assert diagnosed.code == 0, diagnosed.err
    assert diagnosed.document["facts"]["parts"][0] == "one"
    beside = kvprobe("diagnose", str(folder_of(out)), small, "--json")
    assert beside.code == 2
    assert beside.document["errors"][0]["code"] == "conflict"


def test_a_target_that_is_not_there_leaves_nothing(small: str, out: Path) -> None:
    result = kvprobe("run", small, "--target", "http://127.0.0.1:9", "--out", str(out), "--json")
    assert result.code == 3
    assert result.document["errors"]
    assert not list(out.glob("*"))


def test_a_killed_suite_can_be_read(small: str, out: Path) -> None:
    process = start(
        small, out, "--set", "suite.all.requests=100000", "--set", "suite.all.prompt.families=1000"
    )
    await_run(out, "all")
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate(timeout=30)
    psutil.wait_procs(children, timeout=20)
    result = kvprobe("report", str(folder_of(out)), "--json")
    assert result.code == 0, result.err
    assert result.document["status"] == "killed"
    assert [run["part"]["name"] for run in result.document["runs"]] == ["one", "all"]
