"""The page of a run that goes on, scraped for real; the file of one that is over, read by others."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_page

from kvprobe.cli.main import main
from kvprobe.errors import UsageError
from kvprobe.evidence.facts import Fact
from kvprobe.evidence.records import OpenedRequest
from kvprobe.evidence.rundir import RunDir
from kvprobe.evidence.samples import Sample
from kvprobe.evidence.spool import SpoolWriter
from kvprobe.export.live import PageServer, parse_port
from kvprobe.export.openmetrics import openmetrics
from tests.e2e.conftest import Server, command, start_server
from tests.summary.synthetic import T0, Made, S, failed, record

__all__ = ["start_server"]


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in read_page(text)
        for s in family.samples
    }


def test_a_page_follows_the_spool_as_it_grows(tmp_path: Path) -> None:
    with PageServer(0) as server:
        assert httpx.get(server.url).text.strip() == ""
        server.page.follow(tmp_path, {"workload": 'w"\\\n', "model": "m"})
        with SpoolWriter(tmp_path / "worker-0.jsonl", "0") as spool:
            spool.write(OpenedRequest(request_id="r0", plan_index=0, intended_ns=T0, sent_ns=T0))
            spool.write(OpenedRequest(request_id="f1", plan_index=1, intended_ns=T0, sent_ns=T0))
            found = values(httpx.get(server.url).text)
            assert found["kvprobe_run_requests_active", ()] == 2
            assert found["kvprobe_run_requests_ok_total", ()] == 0
            assert found["kvprobe_run_info", (("model", "m"), ("workload", 'w"\\\n'))] == 1
            spool.write(record(0, ttft_ms=100))
            spool.write(failed(1, "status"))
            spool.write(Sample(t_ns=T0, metric="engine.kv_usage_ratio", value=0.5))
            spool.write(Sample(t_ns=T0, metric="client.loop_lag_p99_s", labels={"worker": "0"}, value=0.02))
            spool.write(Sample(t_ns=T0, metric="client.loop_lag_p99_s", labels={"worker": "1"}, value=0.03))
            found = values(httpx.get(server.url).text)
    assert found["kvprobe_run_requests_active", ()] == 0
    assert found["kvprobe_run_requests_ok_total", ()] == 1
    assert found["kvprobe_run_requests_failed_total", (("kind", "status"),)] == 1
    assert found["kvprobe_run_ttft_seconds_bucket", (("le", "0.1"),)] == 1
    assert found["kvprobe_run_ttft_seconds_bucket", (("le", "0.05"),)] == 0
    assert found["kvprobe_engine_kv_usage_ratio", ()] == 0.5
    assert found["kvprobe_run_loop_lag_seconds", ()] == 0.03


def test_what_is_no_longer_read_is_not_repeated(tmp_path: Path) -> None:
    with PageServer(0) as server, SpoolWriter(tmp_path / "samples.jsonl", "s") as spool:
        server.page.follow(tmp_path, {})
        spool.write(Sample(t_ns=T0, metric="engine.kv_usage_ratio", value=0.5))
        spool.write(Sample(t_ns=T0 + 60 * S, metric="host.cpu_ratio", value=0.1))
        assert "kv_usage" not in httpx.get(server.url).text
        spool.write(Sample(t_ns=T0 + 60 * S, metric="engine.kv_usage_ratio", value=0.0))
        assert values(httpx.get(server.url).text)["kvprobe_engine_kv_usage_ratio", ()] == 0.0
        spool.write(Sample(t_ns=T0 + 61 * S, metric="engine.kv_usage_ratio", value=None))
        assert "kv_usage" not in httpx.get(server.url).text


def test_a_port_that_is_taken_is_said_before_anything_is_sent(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["run", "distinct", "--target", "127.0.0.1:9", "--serve-metrics", port]) == 2
    assert "--serve-metrics" in capsys.readouterr().err
    for text in ("-1", "65536", "x", "٣"):
        with pytest.raises(UsageError):
            parse_port(text)


def test_a_run_serves_its_own_numbers_while_it_runs(start_server: Callable[..., Server], out: Path) -> None:
    target = start_server()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = ["run", "distinct", "--target", target.url, "--set", "prompt.tokens=64", "--out", str(out)]
    argv += ["--set", "requests=200", "--duration", "4s", "--serve-metrics", str(port)]
    process = subprocess.Popen(command(*argv), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    best, engine = 0.0, False
    try:
        while process.poll() is None:
            try:
                found = values(httpx.get(f"http://127.0.0.1:{port}/metrics").text)
            except httpx.HTTPError:
                found = {}
            best = max(best, found.get(("kvprobe_run_requests_ok_total", ()), 0.0))
            engine = engine or ("kvprobe_engine_kv_usage_ratio", ()) in found
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait()
    assert best > 0
    assert engine


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def made_run(tmp_path: Path) -> RunDir:
    """40 requests in 4 s with a failure, beside a gauge and a counter that starts anew."""
    rows = [record(i, sent_ms=100.0 * i, ttft_ms=80) for i in range(39)] + [
        failed(39, "status", sent_ms=3_900)
    ]
    run_dir = RunDir.create(tmp_path, "made-up", "ab" * 32)
    with SpoolWriter(run_dir.spool_dir / "worker-0.jsonl", "0") as spool:
        for row in rows:
            spool.write(row)
        for step in range(5):
            at = T0 + step * S
            spool.write(Sample(t_ns=at, metric="engine.kv_usage_ratio", value=step / 10))
            spool.write(Sample(t_ns=at, metric="engine.preemptions_total", value=float(step % 3)))
            spool.write(Sample(t_ns=at, metric="gpu.memory_used_bytes", labels={"gpu": "0"}, value=1e9))
            spool.write(Sample(t_ns=at, metric="gpu.memory_used_bytes", labels={"gpu": "1"}, value=2e9))
    run_dir.write_json("environment.json", {"clock": {"utc_ns": T0 + 10**18, "monotonic_ns": T0}})
    run_dir.finalise()
    run_dir.write_status("complete")
    return run_dir


def test_the_file_is_openmetrics_with_instants_of_utc(tmp_path: Path) -> None:
    text = openmetrics(made_run(tmp_path).load())
    # prometheus-client's reader cannot take a histogram at more than one instant; promtool (below) can.
    rows = [
        line
        for line in text.splitlines(keepends=True)
        if "_seconds" not in line or "kvprobe_run_" not in line
    ]
    families = {f.name: f for f in read_openmetrics("".join(rows))}
    usage = families["kvprobe_engine_kv_usage_ratio"].samples
    assert [s.value for s in usage] == [0.0, 0.1, 0.2, 0.3, 0.4]
    assert float(usage[0].timestamp) == pytest.approx((T0 + 10**18) / 1e9)
    gpus = [(s.labels["gpu"], s.value) for s in families["kvprobe_gpu_memory_used_bytes"].samples]
    assert gpus == [("0", 1e9)] * 5 + [("1", 2e9)] * 5
    last = families["kvprobe_run_requests_ok"].samples[-1]
    assert last.value == 39
    counts = [
        float(x.split()[1]) for x in text.splitlines() if x.startswith("kvprobe_run_ttft_seconds_count")
    ]
    assert counts[-1] == 39
    assert counts == sorted(counts)
    active = [s.value for s in families["kvprobe_run_requests_active"].samples]
    assert max(active) >= 1
    assert active[-1] == 0


def test_rows_of_another_machine_stand_at_the_master_s_instants(tmp_path: Path) -> None:
    """Its monotonic clock is 5,000 s ahead of ours: what relates the two is the start."""
    ahead = 5_000 * S
    run_dir = RunDir.create(tmp_path, "made-up", "ab" * 32)
    far = record(1, sent_ms=1_000, worker="far-0")
    moved = {
        name: getattr(far, name) + ahead
        for name in (*("intended_ns", "sent_ns", "first_byte_ns", "first_chunk_ns", "first_token_ns"),
                     *("first_visible_ns", "last_token_ns", "end_ns"))
    }  # fmt: skip
    lag = {"metric": "client.loop_lag_p99_s", "value": 0.02, "labels": {"worker": "far-0"}}
    clock = {"worker": "far-0", "same_clock": False, "t0_ns": T0, "worker_t0_ns": T0 + ahead}
    with SpoolWriter(run_dir.spool_dir / "worker-far.jsonl", "far") as spool:
        spool.write(msgspec.structs.replace(far, **moved))
        spool.write(Sample(t_ns=T0 + ahead + 2 * S, **lag))
    with SpoolWriter(run_dir.spool_dir / "parent.jsonl", "parent") as spool:
        spool.write(Fact(name="worker_clock", value=clock, source="master"))
        spool.write(record(0))
        spool.write(Sample(t_ns=T0 + 2 * S, metric="engine.kv_usage_ratio", value=0.5))
    run_dir.write_json("environment.json", {"clock": {"utc_ns": T0 + 10**18, "monotonic_ns": T0}})
    with PageServer(0) as server:  # while it runs: nothing is taken for stale
        server.page.follow(run_dir.spool_dir, {})
        live = values(httpx.get(server.url).text)
    assert live["kvprobe_engine_kv_usage_ratio", ()] == 0.5
    assert live["kvprobe_client_loop_lag_p99_seconds", (("worker", "far-0"),)] == 0.02
    run_dir.finalise()
    run_dir.write_status("complete")
    file = tmp_path / "run.om"
    assert main(["report", str(run_dir.path), "--openmetrics", str(file)]) == 0
    start_s = (T0 + 10**18) / 1e9
    stamped = [line.split() for line in file.read_text().splitlines() if not line.startswith("#")]
    assert all(-1 < float(words[-1]) - start_s < 5 for words in stamped)
    lags = [w for w in stamped if w[0].startswith("kvprobe_client_loop_lag_p99_seconds")]
    assert [round(float(w[-1]) - start_s) for w in lags] == [2]


def test_a_server_without_usage_has_no_token_series(tmp_path: Path) -> None:
    bare = record(0, prompt_tokens=None, completion_tokens=None, cached_tokens=None)
    with PageServer(0) as server, SpoolWriter(tmp_path / "worker-0.jsonl", "0") as spool:
        server.page.follow(tmp_path, {})
        spool.write(bare)
        found = values(httpx.get(server.url).text)
    assert found["kvprobe_run_requests_ok_total", ()] == 1
    assert not any(name.endswith("_tokens_total") for name, _ in found)


def test_a_run_without_its_clocks_is_refused(tmp_path: Path) -> None:
    run = Made(records=[record(0)], environment={}).build()
    with pytest.raises(UsageError, match="clock"):
        openmetrics(run)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="install prometheus")
def test_prometheus_takes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "run.om"
    path.write_text(openmetrics(made_run(tmp_path).load()))
    argv = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(path), str(tmp_path / "data")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert any((tmp_path / "data").iterdir())
