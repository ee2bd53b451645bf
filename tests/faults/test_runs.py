"""Faults of the target and of the machine, against whole runs over real sockets."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kvprobe.evidence.rundata import load_run
from tests.e2e.conftest import RUN_TIMEOUT_S, Result, Server, command, kvprobe, start_server
from tests.faults.kit import Exchange, Fault, answer, serve
from tests.load.truth import truth_server

__all__ = ["start_server"]  # a fixture

SMALL = ("--set", "prompt.tokens=32", "--set", "output.tokens=4", "--set", "warmup.requests=0")
PATIENT = ("--set", "breaker.consecutive_failures=100000", "--set", "breaker.window=100000")
MODELS = answer(json.dumps({"object": "list", "data": [{"id": "fault", "object": "model"}]}).encode())
NOT_FOUND = answer(b"{}", status="404 Not Found")


def run(url: str, out: Path, *more: str) -> Result:
    return kvprobe("run", "distinct", "--target", url, "--out", str(out), "--json", *SMALL, *more)


def target(complete: Callable[[Exchange, int], Any], seen: list[bytes] | None = None) -> Fault:
    """A server that lists one model; `complete` answers the n-th completion request."""
    count = 0

    async def fault(exchange: Exchange) -> None:
        nonlocal count
        while True:
            request = await exchange.request()
            if b"/v1/models" in request:
                await exchange.send(MODELS)
            elif b"/completions" in request:
                if seen is not None:
                    seen.append(request)
                count += 1
                await complete(exchange, count)
            else:
                await exchange.send(NOT_FOUND)

    return fault


def test_f9_failures_are_grouped_by_status_with_a_few_samples_cut_short(tmp_path: Path) -> None:
    async def complete(exchange: Exchange, n: int) -> None:
        status = ("500 Internal Server Error", "503 Service Unavailable")[n % 2]
        await exchange.send(answer(f"what went wrong, number {n}: {'x' * 9000}".encode(), status=status))

    with serve(target(complete)) as server:
        result = run(server.url, tmp_path, "--set", "requests=8", "--users", "1", *PATIENT)
    document = result.document
    assert document["requests"]["by_failure"] == {"status": 8}
    (group,) = document["failures"]
    assert group["statuses"] == {"500": 4, "503": 4}
    assert len(group["details"]) == 3
    assert all(len(detail) <= 2_048 for detail in group["details"])
    assert result.code == 4, "no request ended well"


def test_f10_throttled_requests_are_counted_and_never_sent_again(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def complete(exchange: Exchange, n: int) -> None:
        await exchange.send(answer(b"slow down", status="429 Too Many Requests", extra="Retry-After: 1\r\n"))

    with serve(target(complete, seen)) as server:
        document = run(server.url, tmp_path, "--set", "requests=6", "--users", "2", *PATIENT).document
    assert document["requests"]["by_failure"] == {"throttled": 6}
    assert len(seen) == 6, "one request on the wire for each that was counted"
    assert document["metrics"]["ttft_s"]["n"] == 0


def test_f10_a_workload_may_obey_retry_after_and_says_so(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def complete(exchange: Exchange, n: int) -> None:
        await exchange.send(answer(b"slow down", status="429 Too Many Requests", extra="Retry-After: 1\r\n"))

    obey = ("--set", "requests=3", "--users", "1", "--set", "request.obey_retry_after=true", *PATIENT)
    with serve(target(complete, seen)) as server:
        document = run(server.url, tmp_path, *obey).document
    assert document["requests"]["by_failure"] == {"throttled": 3}
    assert len(seen) == 3, "a refused request is not sent again"
    warnings = " | ".join(document["diagnosis"]["validity"]["warnings"])
    assert "Retry-After was obeyed" in warnings
    sent = sorted(r.sent_ns or 0 for r in load_run(Path(document["run_dir"])).records)
    assert all(b - a >= 1_000_000_000 for a, b in pairwise(sent)), "no user asks before its time"


def test_f11_a_refused_key_ends_the_run_at_once(tmp_path: Path) -> None:
    """401 here; that 403 is the same failure stands with the streams."""
    seen: list[bytes] = []

    async def complete(exchange: Exchange, n: int) -> None:
        await exchange.send(answer(b'{"error": "no"}', status="401 Unauthorized"))

    with serve(target(complete, seen)) as server:
        result = run(server.url, tmp_path, "--set", "requests=500", "--users", "1")
    assert result.code == 3
    assert len(seen) == 1, "not hammered"
    assert "--api-key-env" in result.err


def test_f21_a_server_that_restarts_and_returns(start_server: Callable[..., Server], tmp_path: Path) -> None:
    """The gap is shown, its requests are failures, and counters that begin again make nothing negative."""
    first = start_server()
    port = first.url.rpartition(":")[2]
    argv = ["run", "distinct", "--target", first.url, "--out", str(tmp_path), "--json", *SMALL, *PATIENT]
    argv += ["--rate", "8", "--duration", "60s"]
    process = subprocess.Popen(command(*argv), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        # More than the next server can have counted when it is first read: its counters then stand lower.
        rows = await_rows(process, tmp_path, 30)
        first.process.kill()
        first.process.wait()
        time.sleep(1.5)  # some twelve requests find nobody there, however fast the next one starts
        start_server("--port", port)
        done = rows.read_bytes().count(b'"failure":null')
        deadline = time.monotonic() + 40
        while rows.read_bytes().count(b'"failure":null') < done + 9 and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(1)  # two more readings of the new server's page
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=RUN_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    document = json.loads(out)
    requests = document["requests"]
    assert requests["ok"] >= 15, err
    assert requests["by_failure"].get("connect", 0) >= 1
    assert requests["sent"] == requests["ok"] + requests["failed"]
    warnings = " | ".join(document["diagnosis"]["validity"]["warnings"])
    assert "counters started again" in warnings
    assert "metrics reading" in warnings, "the gap in what was seen of the server is told"
    metrics = document["metrics"]
    assert metrics["preemptions"] == 0
    hit = metrics["prefix_hit_rate"]["got"]
    assert hit is None or 0 <= hit <= 1


def await_rows(process: subprocess.Popen[str], out: Path, rows: int) -> Path:
    """The worker's spool, once so many requests have ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        for spool in out.glob("*/spool/worker-*.jsonl"):
            if spool.read_bytes().count(b'{"type":"row"') >= rows:
                return spool
        time.sleep(0.05)
    raise AssertionError(f"no {rows} rows")


def test_f22_a_redirect_into_a_private_range_is_refused_before_the_load(tmp_path: Path) -> None:
    async def fault(exchange: Exchange) -> None:
        await exchange.request()
        to = "Location: http://169.254.169.254/latest/meta-data/\r\n"
        await exchange.send(answer(b"", status="302 Found", extra=to))

    with serve(fault) as server:
        result = run(server.url, tmp_path / "runs")
    assert result.code == 3
    (error,) = result.document["errors"]
    assert error["code"] == "redirect_refused"
    assert "169.254.169.254" in error["message"], "named, and not followed"
    assert not (tmp_path / "runs").exists()


def test_f29_ipv6(tmp_path: Path) -> None:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    with truth_server("--host", "::1", "--ttft", "5", "--itl", "1") as server:
        url = f"http://[::1]:{server.url.rpartition(':')[2]}"
        document = run(url, tmp_path, "--set", "requests=4").document
    assert document["requests"]["ok"] == 4
    assert document["target"] == url


def digest(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def test_f34_a_file_that_may_not_grow_ends_the_run_with_6_and_touches_no_other(tmp_path: Path) -> None:
    def bounded() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 10, 32 << 10))

    out = tmp_path / "runs"
    earlier = out / "20260101T000000Z-distinct-00000000"
    earlier.mkdir(parents=True)
    for name in ("summary.json", "requests.parquet", "STATUS"):
        (earlier / name).write_bytes(os.urandom(100))
    kept = digest(earlier)
    with truth_server("--ttft", "2", "--itl", "1") as server:
        argv = ["run", "distinct", "--target", server.url, "--out", str(out), "--json", *SMALL]
        done = subprocess.run(
            command(*argv, "--duration", "60s"),
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            preexec_fn=bounded,
        )
    assert done.returncode == 6, done.stderr
    assert "Traceback" not in done.stderr
    assert "ulimit -f" in done.stderr
    assert digest(earlier) == kept
    document = json.loads(done.stdout)
    assert document["requests"]["ok"] > 3, "what was recorded is judged all the same"


def test_f37_two_runs_of_one_name_at_once_have_each_their_own_directory(tmp_path: Path) -> None:
    with truth_server("--ttft", "5", "--itl", "1") as server:
        argv = ["run", "distinct", "--target", server.url, "--out", str(tmp_path), "--json", *SMALL]
        argv += ["--set", "requests=5"]
        both = [
            subprocess.Popen(command(*argv), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for _ in range(2)
        ]
        documents = [json.loads(p.communicate(timeout=RUN_TIMEOUT_S)[0]) for p in both]
    folders = {d["run_dir"] for d in documents}
    assert len(folders) == 2
    assert len(os.listdir(tmp_path)) == 2
    for document in documents:
        assert document["requests"]["ok"] == 5
        assert (Path(document["run_dir"]) / "STATUS").read_text().strip() == "complete"
