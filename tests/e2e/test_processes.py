"""Runs with several load processes, and over a master: they end in every way like one (F20, F30-F34, F41)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import psutil
import pytest

from kvprobe.run.crews import free_port
from tests.e2e.conftest import command, kvprobe
from tests.e2e.test_endings import await_rows, children_of, gone, small_disk  # noqa: F401
from tests.load.truth import TruthServer, truth_server

TWO = ("--processes", "2", "--set", "arrival.closed.users=3")
NO_WARMUP = ("--set", "warmup.requests=0")


@pytest.fixture
def target() -> Iterator[TruthServer]:
    with truth_server("--ttft", "20", "--itl", "5") as server:
        yield server


def start(out: Path, target: TruthServer, *more: str) -> subprocess.Popen[str]:
    argv = command("run", "distinct", "--target", target.url, "--out", str(out), "--json", *NO_WARMUP, *more)
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def workers_of(pid: int) -> list[psutil.Process]:
    return [p for p in children_of(pid) if "kvprobe.load.worker" in " ".join(p.cmdline())]


def result_of(stdout: str) -> dict:
    """The run's document; an error's document in its place is shown whole."""
    document = json.loads(stdout)
    assert document["schema"] == "kvprobe.run/1", document
    return document


def rows_of(document: dict) -> pd.DataFrame:
    return pd.read_parquet(Path(document["run_dir"]) / "requests.parquet")


def test_two_processes_make_one_run(out: Path, target: TruthServer) -> None:
    process = start(out, target, *TWO, "--set", "requests=60")
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode in (0, 4), stderr  # a busy machine may make the numbers invalid
    document = result_of(stdout)
    rows = rows_of(document)
    assert document["requests"]["ok"] == len(rows) == 60
    assert sorted(rows.plan_index) == list(range(60))
    # Two users of three, and so two requests of three, are the first worker's.
    assert rows.groupby("worker").size().to_dict() == {"0": 40, "1": 20}
    assert len(target.rows()) == 60


def test_f30_one_signal_drains_all_processes(out: Path, target: TruthServer) -> None:
    process = start(out, target, *TWO, "--set", "duration=60s")
    await_rows(out, 5)
    children = children_of(process.pid)
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 143, stderr
    document = result_of(stdout)
    assert (document["status"], document["requests"]["failed"]) == ("partial", 0)
    assert document["requests"]["ok"] == len(rows_of(document)) == len(target.rows())
    assert gone(children)


def test_f31_two_signals_stop_all_processes_at_once(out: Path) -> None:
    with truth_server("--ttft", "60000") as target:
        process = start(out, target, *TWO, "--set", "duration=60s", "--set", "drain=60s")
        while sum(p.read_bytes().count(b'"open"') for p in out.glob("*/spool/worker-*.jsonl")) < 3:
            time.sleep(0.05)
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        while b"draining" not in b"".join(p.read_bytes() for p in out.glob("*/log.txt")):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    document = result_of(stdout)
    assert document["status"] == "killed"
    assert document["requests"]["by_failure"] == {"cancelled_at_end": 3}
    assert gone(children)


def test_f41_a_process_that_is_killed_is_named_and_all_rows_are_kept(out: Path, target: TruthServer) -> None:
    process = start(out, target, *TWO, "--set", "duration=60s")
    await_rows(out, 5)
    children = children_of(process.pid)
    workers_of(process.pid)[0].kill()
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 1, stderr
    assert "load worker 0 ended with code -9" in stderr or "load worker 1 ended with code -9" in stderr
    document = result_of(stdout)
    assert document["status"] == "partial"
    assert rows_of(document).worker.nunique() == 2
    assert gone(children)


def test_f20_a_server_that_dies_ends_all_processes(out: Path, target: TruthServer) -> None:
    process = start(out, target, *TWO, "--set", "duration=60s", "--set", "breaker.consecutive_failures=5")
    await_rows(out, 5)
    target.process.kill()
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 5, stderr
    document = result_of(stdout)
    requests, rows = document["requests"], rows_of(document)
    assert requests["ok"] == int(rows.failure.isna().sum())
    assert requests["failed"] == int(rows.failure.notna().sum()) >= 5


def test_f34_a_full_disk_ends_all_processes(small_disk: Path, target: TruthServer) -> None:  # noqa: F811
    process = start(small_disk / "runs", target, *TWO, "--set", "duration=60s")
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 6, stderr
    assert result_of(stdout)["requests"]["ok"] > 0
    assert "No space left" in stderr


def test_a_master_and_a_worker_with_its_own_key(out: Path, tmp_path: Path) -> None:
    """The key of each machine stays on it: the master says the variable's name, never its value."""
    canary = {"KVPROBE_KEY_A": "canary-of-the-master", "KVPROBE_KEY_B": "canary-of-the-worker"}
    port = str(free_port())
    with truth_server("--ttft", "20", "--itl", "5") as target:
        lead = subprocess.Popen(
            command(
                "run", "distinct", "--target", target.url, "--out", str(out), "--json", *NO_WARMUP,
                "--set", "requests=30", "--master", "--bind", f"127.0.0.1:{port}",
                "--api-key-env", "KVPROBE_KEY_A",
            ),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **canary},
        )  # fmt: skip
        hand = kvprobe(
            "run", "distinct", "--worker", f"127.0.0.1:{port}", "--out", str(tmp_path / "hand"), "--json",
            "--api-key-env", "KVPROBE_KEY_B", env=canary,
        )  # fmt: skip
        stdout, stderr = lead.communicate(timeout=60)
    assert lead.returncode in (0, 4), stderr
    assert hand.code == 0, hand.err
    assert hand.document["requests"] == {"sent": 30, "ok": 30, "failed": 0}
    assert not list((tmp_path / "hand").glob("*")), "the master has the rows: nothing is left here"
    document = result_of(stdout)
    assert document["requests"]["ok"] == len(rows_of(document)) == 30
    written = b"".join(p.read_bytes() for p in out.rglob("*") if p.is_file())
    for text in (written, stdout.encode(), stderr.encode(), hand.out.encode(), hand.err.encode()):
        assert b"canary-of" not in text


@pytest.mark.parametrize(
    ("workload", "host", "code", "why"),
    [
        # Only the master's user has said that the machine is his own.
        ("distinct", "0.0.0.0", 3, "is not this machine"),
        ("shared_prefix", "127.0.0.1", 2, "the master runs the workload `distinct`, not `shared_prefix`"),
    ],
)
def test_a_worker_that_refuses_its_job_is_named_with_its_reason(
    out: Path, tmp_path: Path, workload: str, host: str, code: int, why: str
) -> None:
    address = f"127.0.0.1:{free_port()}"
    with truth_server("--ttft", "20", "--itl", "5") as target:
        url = target.url.replace("127.0.0.1", host)
        lead = subprocess.Popen(
            command(
                "run", "distinct", "--target", url, "--i-own-this-target", "--out", str(out), "--json",
                "--set", "requests=30", "--master", "--bind", address,
            ),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        hand = kvprobe("run", workload, "--worker", address, "--out", str(tmp_path / "hand"), "--json")
        stdout, stderr = lead.communicate(timeout=60)
        assert target.rows() == []
    assert hand.code == lead.returncode == code, (hand.err, stderr)
    (own,), (told,) = hand.document["errors"], json.loads(stdout)["errors"]
    assert why in own["message"]
    assert told["code"] == "worker_refused"
    assert told["message"].startswith("the job was refused: worker ")
    assert own["message"] in told["message"]
    assert own["fix"] in told["message"]
    assert not list(out.glob("*")), "a run that never began leaves nothing"
    assert not list((tmp_path / "hand").glob("*"))


def test_a_signal_while_the_master_waits_for_its_workers_leaves_nothing(
    out: Path, target: TruthServer
) -> None:
    process = start(out, target, "--master", "--bind", "127.0.0.1:0", "--set", "requests=3")
    assert process.stderr is not None
    while "0 of 1 workers are here" not in (line := process.stderr.readline()):
        assert line, "it ended"
    process.send_signal(signal.SIGTERM)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert json.loads(stdout)["errors"][0]["code"] == "interrupted"
    assert not list(out.glob("*"))
