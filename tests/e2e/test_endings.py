"""Runs that do not end as planned: signals, kills, a dying server, a full disk (F20, F30-F34)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest

from kvprobe.load.workload import load_workload
from kvprobe.run.steering import longest_load_s
from tests.e2e.conftest import Server, command, kvprobe

LONG = (
    "--set",
    "duration=60s",
    "--set",
    "output.tokens=32",
    "--set",
    "prompt.tokens=64",
    "--set",
    "warmup.requests=1",
)


def start_run(out: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("run", "distinct", "--out", str(out), "--json", *LONG, *more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def await_rows(out: Path, rows: int, timeout_s: float = 60) -> Path:
    """Wait until the worker has spooled that many finished requests; returns the run directory."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for spool in out.glob("*/spool/worker-0.jsonl"):
            if spool.read_bytes().count(b'{"type":"row"') >= rows:
                return spool.parent.parent
        time.sleep(0.05)
    raise AssertionError(f"no {rows} rows within {timeout_s} s")


def children_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def gone(processes: list[psutil.Process], timeout_s: float = 10) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return not alive


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_signal_drains_and_keeps(number: signal.Signals, code: int, out: Path) -> None:
    process = start_run(out)
    run_dir = await_rows(out, 3)
    children = children_of(process.pid)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == code, stderr
    document = json.loads(stdout)
    assert document["status"] == "partial"
    assert (run_dir / "STATUS").read_text().strip() == "partial"
    assert document["requests"]["ok"] >= 3
    assert document["requests"]["failed"] == 0, "what was in flight was waited for"
    assert gone(children)


def test_two_signals_stop_at_once(out: Path) -> None:
    process = start_run(out, "--set", "output.tokens=2000", "--set", "drain=60s")
    await_open(out, 1)
    children = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    document = json.loads(stdout)
    assert document["status"] == "killed"
    assert set(document["requests"]["by_failure"]) == {"cancelled_at_end"}
    assert gone(children)


def await_open(out: Path, count: int, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if any(
            p.read_bytes().count(b'{"type":"open"') >= count + 1 for p in out.glob("*/spool/worker-0.jsonl")
        ):
            return
        time.sleep(0.05)
    raise AssertionError("nothing was sent")


def test_a_signal_before_the_load_leaves_nothing(out: Path) -> None:
    process = start_run(out)
    time.sleep(0.8)  # the server is starting: there is no run directory yet
    assert not list(out.glob("*/"))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130
    assert not list(out.glob("*"))


def await_text(process: subprocess.Popen[str], text: str) -> None:
    """Read the run's stderr until it says `text`."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return
    raise AssertionError(f"it never said {text!r}")


@pytest.mark.parametrize("said", ["starting the bundled", "target http"])
def test_two_signals_before_the_load_leave_nothing_either(said: str, out: Path) -> None:
    process = start_run(out)
    await_text(process, said)
    children = children_of(process.pid)
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert json.loads(stdout)["errors"][0]["code"] == "interrupted"
    assert gone(children)
    assert not out.exists()


def test_a_signal_while_the_result_is_made_counts(out: Path) -> None:
    process = start_run(out, "--set", "duration=1s")
    await_text(process, "reading the records")
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 143, stderr
    assert json.loads(stdout)["status"] == "partial"
    (run_dir,) = out.glob("*/")
    assert (run_dir / "STATUS").read_text().strip() == "partial"
    assert json.loads((run_dir / "summary.json").read_text())["status"] == "partial"


def test_two_signals_while_the_result_is_made_stop_at_once_and_keep_the_records(out: Path) -> None:
    process = start_run(out, "--set", "duration=1s")
    await_text(process, "reading the records")
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    (error,) = json.loads(stdout)["errors"]
    assert (error["code"], "kvprobe report" in error["fix"]) == ("interrupted", True)
    (run_dir,) = out.glob("*/")
    assert (run_dir / "STATUS").read_text().strip() == "killed"
    assert kvprobe("report", str(run_dir), "--json").document["requests"]["ok"] > 0


def test_a_worker_that_no_longer_answers_is_ended_after_two_signals(out: Path) -> None:
    process = start_run(out)
    run_dir = await_rows(out, 2)
    children = children_of(process.pid)
    (worker,) = [p for p in children if "kvprobe.load.worker" in " ".join(p.cmdline())]
    worker.send_signal(signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert json.loads(stdout)["status"] == "killed"
    assert json.loads(stdout)["requests"]["ok"] >= 1
    assert (run_dir / "STATUS").read_text().strip() == "killed"
    assert gone(children)


def test_a_worker_that_is_killed_is_named_and_its_rows_are_kept(out: Path) -> None:
    process = start_run(out)
    await_rows(out, 3)
    children = children_of(process.pid)
    (worker,) = [p for p in children if "kvprobe.load.worker" in " ".join(p.cmdline())]
    worker.kill()
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the load worker ended with code -9" in stderr
    assert json.loads(stdout)["status"] == "partial"
    assert json.loads(stdout)["requests"]["ok"] >= 2
    assert gone(children)


def test_a_run_directory_that_is_removed_meanwhile(out: Path) -> None:
    process = start_run(out, "--set", "duration=3s")
    shutil.rmtree(await_rows(out, 1))
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 6, stderr
    assert json.loads(stdout)["errors"][0]["code"] == "run_damaged"


def test_a_stderr_without_a_reader_does_not_cost_the_run(out: Path) -> None:
    process = start_run(out, "--set", "duration=1s")
    assert process.stderr is not None
    process.stderr.readline()
    process.stderr.close()
    process.stderr = None
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode in (0, 4), "what a busy machine makes of the numbers is not the point"
    assert json.loads(stdout)["status"] == "complete"


def test_a_stdout_that_closes_does_not_hide_a_signal(out: Path) -> None:
    process = start_run(out)
    await_rows(out, 2)
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    (run_dir,) = out.glob("*/")
    assert (run_dir / "STATUS").read_text().strip() == "partial"


def test_kill_9_keeps_what_was_written_and_report_reads_it(out: Path) -> None:
    process = start_run(out)
    run_dir = await_rows(out, 4)
    children = children_of(process.pid)
    process.kill()
    process.communicate(timeout=30)
    assert gone(children), "worker and server notice that their parent is gone"
    lines = [json.loads(line) for line in (run_dir / "spool" / "worker-0.jsonl").read_bytes().splitlines()]
    rows = [line for line in lines if line["type"] == "row" and not line["warmup"]]
    assert not (run_dir / "STATUS").exists()
    text = kvprobe("report", str(run_dir))
    assert text.code == 0, text.err
    assert "PARTIAL" in text.out.splitlines()[0] + text.out.splitlines()[1]
    document = kvprobe("report", str(run_dir), "--json").document
    assert document["status"] == "killed"
    assert document["requests"]["ok"] == sum(row["failure"] is None for row in rows) >= 3


def test_a_server_that_is_killed_trips_the_breaker(out: Path, start_server: Callable[..., Server]) -> None:
    server = start_server()
    process = start_run(out, "--target", server.url, "--set", "breaker.consecutive_failures=5")
    run_dir = await_rows(out, 3)
    server.process.kill()
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 5, stderr
    document = json.loads(stdout)
    requests = document["requests"]
    rows = pd.read_parquet(run_dir / "requests.parquet")
    measured = rows[~rows.warmup]
    assert requests["ok"] == int(measured.failure.isna().sum())
    assert requests["failed"] == int(measured.failure.notna().sum()) == sum(requests["by_failure"].values())
    assert requests["failed"] >= 5
    assert "connect" in requests["by_failure"]
    assert document["diagnosis"]["primary"] != "healthy_baseline"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real filesystem of 128 KiB; mounting needs root."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(mount)], capture_output=True
    )
    if done.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {done.stderr.decode().strip()}")
    yield mount
    subprocess.run(["umount", str(mount)], check=True)


def test_a_full_disk_ends_the_run_with_6_and_loses_nothing(small_disk: Path) -> None:
    out = small_disk / "runs"
    result = kvprobe("run", "distinct", "--out", str(out), "--json", *LONG)
    assert result.code == 6, result.err
    assert "Traceback" not in result.err
    document = json.loads(result.out)
    assert document["requests"]["ok"] > 0
    assert "No space left" in result.err
    (run_dir,) = out.glob("*/")
    again = kvprobe("report", str(run_dir), "--json")
    assert again.document["requests"]["ok"] == document["requests"]["ok"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    result = kvprobe("run", "distinct", "--out", str(blocker / "runs"), "--json", *LONG)
    assert result.code == 6
    assert result.document["errors"][0]["code"] == "storage_failed"


def test_a_warmup_may_last_longer_than_the_load(tmp_path: Path) -> None:
    """The bound of a run counts the warm-up: it comes before the duration."""
    path = tmp_path / "w.yaml"
    text = (
        "name: w\nkind: distinct\nprompt: {tokens: 64}\noutput: {tokens: 4}\narrival: {closed: {users: 1}}\n"
    )
    path.write_text(text + "duration: 1s\ndrain: 1s\nwarmup: {duration: 300s}\n")
    assert 302 < longest_load_s(load_workload(str(path))) < 400
    assert longest_load_s(load_workload(str(path), [("warmup.requests", "3")])) > 3600
