"""Each way in which a measurement goes wrong, done to a real run: it must call itself INVALID (exit 4)
or carry the warning, and the target must not be blamed (F25, F27, F28, F24 at run time)."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvprobe.evidence.rundata import load_run
from tests.e2e.conftest import command
from tests.load.truth import TruthServer, truth_server

SOURCE = Path(__file__).with_name("wall_clock.c")
SMALL = (
    "--set",
    "prompt.tokens=32",
    "--set",
    "output.tokens=4",
    "--set",
    "warmup.requests=0",
    "--set",
    "drain=5s",
)


@dataclass
class Going:
    """A run under way."""

    process: subprocess.Popen[str]
    out: Path

    def await_rows(self, rows: int = 3) -> psutil.Process:
        """Wait until so many requests have ended; returns the load worker."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            for spool in self.out.glob("*/spool/worker-*.jsonl"):
                if spool.read_bytes().count(b'{"type":"row"') >= rows:
                    return self.worker()
            time.sleep(0.05)
        raise AssertionError(f"no {rows} rows: {self.process.stderr.read() if self.process.stderr else ''}")

    def worker(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children(recursive=True)
        (worker,) = [c for c in children if "kvprobe.load.worker" in " ".join(c.cmdline())]
        return worker

    def end(self) -> tuple[int, dict[str, Any], str]:
        out, err = self.process.communicate(timeout=90)
        return self.process.returncode, json.loads(out), err

    def invalid(self, *words: str) -> dict[str, Any]:
        """The run's document, once it has called itself INVALID for one of these reasons."""
        code, document, err = self.end()
        assert code == 4, err
        validity = document["diagnosis"]["validity"]
        assert validity["valid"] is False
        reasons = " | ".join(validity["reasons"])
        assert any(word in reasons for word in words), reasons
        return document


@pytest.fixture
def server() -> Iterator[TruthServer]:
    with truth_server("--ttft", "40", "--itl", "4") as running:
        yield running


def start(
    server: TruthServer, out: Path, *more: str, env: dict[str, str] | None = None, **popen: Any
) -> Going:
    argv = command("run", "distinct", "--target", server.url, "--out", str(out), "--json", *SMALL, *more)
    process = subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
        **popen,
    )
    return Going(process, out)


def test_f28_a_stopped_client_is_told_and_the_target_is_not_blamed(
    server: TruthServer, tmp_path: Path
) -> None:
    """The whole client stands still for three seconds, as on a host that was suspended."""
    going = start(server, tmp_path, "--users", "2", "--duration", "5s")
    worker = going.await_rows()
    for pid in (worker.pid, going.process.pid):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(3)
    for pid in (worker.pid, going.process.pid):
        os.kill(pid, signal.SIGCONT)
    document = going.invalid("stood still for")
    assert all(
        f["role"] != "primary" or "server" not in f["cause"] for f in document["diagnosis"]["findings"]
    )
    assert document["requests"]["failed"] == 0, "a standstill of the client is no failure of the target"


def test_f25_a_starved_client_is_late(server: TruthServer, tmp_path: Path) -> None:
    """The worker is let run for 15 ms and then taken off its core for 60, again and again: what a full
    machine or a CPU quota does to it, in the same way on every machine."""
    going = start(server, tmp_path, "--users", "4", "--duration", "4s")
    worker = going.await_rows()
    until = time.monotonic() + 3
    while time.monotonic() < until:
        os.kill(worker.pid, signal.SIGSTOP)
        time.sleep(0.060)
        os.kill(worker.pid, signal.SIGCONT)
        time.sleep(0.015)
    document = going.invalid("the client was late: its event loop woke", "stood still")
    assert document["requests"]["failed"] == 0, "the target did nothing wrong"


def test_f25_a_client_at_a_full_core_is_out_of_cpu_or_late(tmp_path: Path) -> None:
    """More users than one process can serve. Whether the client or the server of the test is full first
    depends on the machine: the verdict must follow what the client's own processor time says."""
    with truth_server("--ttft", "1", "--itl", "0.1", "--max-seconds", "60") as fast:
        going = start(fast, tmp_path, "--users", "256", "--duration", "3s", "--set", "output.tokens=64")
        code, document, err = going.end()
    samples = load_run(Path(document["run_dir"])).samples
    used = sorted(s.value for s in samples if s.metric == "client.cpu_ratio" and s.value is not None)
    assert used, err
    reasons = " | ".join(document["diagnosis"]["validity"]["reasons"])
    if used[len(used) // 2] >= 0.95:
        assert code == 4, err
    if code == 4:
        known = ("ran out of CPU", "the client was late", "read in batches")
        assert any(word in reasons for word in known), reasons


def test_f24_no_descriptors_left_is_the_client_s_fault(server: TruthServer, tmp_path: Path) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))

    going = start(
        server,
        tmp_path,
        *("--users", "100", "--duration", "2s", "--set", "breaker.consecutive_failures=100000"),
        *("--set", "breaker.window=100000"),
        preexec_fn=few,
    )
    document = going.invalid("ran out of file descriptors (its limit is 60)")
    assert set(document["requests"]["by_failure"]) == {"client_fd"}


@pytest.fixture(scope="module")
def clock_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("install gcc: the clock is moved by a preloaded library")
    library = tmp_path_factory.mktemp("clock") / "wall_clock.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"], check=True)
    return library


@pytest.mark.parametrize(
    ("wall_s", "boot_s", "words"),
    [
        (-3600, 0, ("the wall clock jumped by -3,600 s",)),
        (3645, 45, ("the wall clock jumped by 3,600 s", "the host slept for 45.0 s")),
    ],
)
def test_f27_a_clock_that_jumps_is_noted_and_no_duration_moves(
    wall_s: int, boot_s: int, words: tuple[str, ...], server: TruthServer, clock_library: Path, tmp_path: Path
) -> None:
    """Client and parent see the jump; CLOCK_MONOTONIC goes on as ever. A host that slept is known by the
    clock that went on meanwhile."""
    clock = tmp_path / "clock"
    clock.write_bytes(struct.pack("qq", 0, 0))
    env = {"LD_PRELOAD": str(clock_library), "KVPROBE_TEST_CLOCK": str(clock)}
    going = start(server, tmp_path / "runs", "--users", "2", "--duration", "3s", env=env)
    going.await_rows()
    with clock.open("r+b") as file:
        file.write(struct.pack("qq", wall_s, boot_s))
    document = going.invalid(words[0])
    reasons = " | ".join(document["diagnosis"]["validity"]["reasons"])
    assert all(word in reasons for word in words), reasons
    metrics = document["metrics"]
    for name in ("ttft_s", "e2e_s", "response_latency_s", "gap_s"):
        assert 0 <= metrics[name]["min"] <= metrics[name]["max"] < 60, name
    assert 0 < document["window"]["seconds"] < 60


def test_warnings_of_a_real_run(tmp_path: Path) -> None:
    """A warning stands beside the numbers whatever else is said of them."""
    with truth_server("--ttft", "20", "--itl", "200", "--cap", "--tokens", "3") as serving:
        code, document, err = start(serving, tmp_path / "a", "--set", "requests=8", "--users", "8").end()
        assert code in (0, 4), err
        told = " | ".join(document["diagnosis"]["validity"]["warnings"])
        assert "completion tokens differ from what was asked" in told
        assert "no steady state: the window of" in told
        assert "client and server share" in told
    with truth_server("--ttft", "20", "--itl", "2", "--no-usage") as serving:
        code, document, err = start(serving, tmp_path / "b", "--set", "requests=8", "--users", "2").end()
    assert code in (0, 4), err
    told = " | ".join(document["diagnosis"]["validity"]["warnings"])
    assert "the server sent no usage for 8 of 8" in told
