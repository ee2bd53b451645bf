"""The worker as a process: what it sends, when it stops, and that its counts are its rows."""

from __future__ import annotations

import signal
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from kvprobe.load.job import BreakerSpec, TargetSpec
from tests.faults.kit import DONE, chunk, playing, serve
from tests.load.truth import truth_server
from tests.load.worker_kit import WorkerUnderTest, worker, workload

FAST = ("--ttft", "20", "--itl", "5")
SLOW = ("--ttft", "60000")
USERS = {"closed": {"users": 3}}


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    return tmp_path / "worker-0.jsonl"


def check_rows(driven: WorkerUnderTest) -> Counter[str | None]:
    """Every request has one row, and the last event's counts are the rows'."""
    content, last = driven.spooled(), driven.events[-1]
    assert content.bad_lines == 0
    ids = [r.request_id for r in content.records]
    assert len(set(ids)) == len(ids) == last.sent
    assert {o.request_id for o in content.opened} == {r.request_id for r in content.records if r.sent_ns}
    kinds = Counter(r.failure for r in content.records)
    assert kinds[None] == last.ok
    assert len({r.plan_index for r in content.records}) == len(ids)
    return kinds


def test_closed_loop_sends_what_was_planned_warm_up_first(spool):
    plan = workload(USERS, requests=12, warmup={"requests": 4})
    with truth_server(*FAST) as server, worker(server.url, plan, spool) as driven:
        t0_ns = driven.go()
        last = driven.finish()
        assert len(server.rows()) == 16
    assert (last.reason, last.sent, last.ok, last.intended) == ("planned", 16, 16, 16)
    assert check_rows(driven) == {None: 16}
    records = driven.spooled().records
    assert {r.plan_index: r.warmup for r in records} == {i: i < 4 for i in range(16)}
    assert min(r.sent_ns for r in records) >= t0_ns
    assert [e.event for e in driven.events if e.event != "progress"] == ["ready", "draining", "finished"]
    assert sum(r.retained_text is not None for r in records) == 8


def test_all_users_of_a_closed_loop_begin_at_one_instant_and_are_connected_by_then(spool):
    """What it takes to make a request and a connection is no lateness of the first requests."""
    plan = workload({"closed": {"users": 5}}, requests=10)
    with serve(playing(chunk("a"), chunk(finish="stop"), DONE)) as server:
        with worker(server.url, plan, spool) as driven:
            driven.hear("ready")
            deadline = time.monotonic() + 10
            while server.connections < 5 and time.monotonic() < deadline:
                time.sleep(0.01)
            assert server.connections == 5, "before anybody said go"
            t0_ns = time.monotonic_ns() + 200_000_000
            driven.say("go", t0_ns=t0_ns)
            driven.finish()
        assert server.connections == 5
    records = sorted(driven.spooled().records, key=lambda r: r.sent_ns)
    assert [r.intended_ns for r in records[:5]] == [t0_ns] * 5
    assert all(r.intended_ns > t0_ns for r in records[5:])


def test_fewer_requests_than_users(spool):
    plan = workload({"closed": {"users": 8}}, requests=3)
    with truth_server(*FAST) as server, worker(server.url, plan, spool) as driven:
        driven.go()
        last = driven.finish()
    assert (last.reason, last.sent, last.ok) == ("planned", 3, 3)


def test_the_warm_up_hands_over_without_a_drain(spool):
    """When the first measured request starts, warm-up requests are still under way."""
    plan = workload(USERS, requests=9, warmup={"requests": 4})
    stall = ("--stall-ms", "300", "--stall-at", "2", "--stall-every", "3")
    with truth_server(*FAST, *stall) as server, worker(server.url, plan, spool) as driven:
        driven.go()
        driven.finish()
    records = driven.spooled().records
    first_measured = min(r.sent_ns for r in records if not r.warmup)
    assert first_measured < max(r.end_ns for r in records if r.warmup)


def test_warm_up_by_time_then_duration(spool):
    plan = workload(USERS, duration="400ms", warmup={"duration": "300ms"})
    with truth_server(*FAST) as server, worker(server.url, plan, spool) as driven:
        t0_ns = driven.go()
        last = driven.finish()
    check_rows(driven)
    assert last.reason == "planned"
    for record in driven.spooled().records:
        assert record.warmup == (record.intended_ns < t0_ns + 300_000_000)
        assert record.warmup == (record.plan_index < 0)
    measured = [r for r in driven.spooled().records if not r.warmup]
    assert measured
    first = min(r.intended_ns for r in measured)
    assert max(r.sent_ns for r in measured) - first < 2e9


def test_open_loop_keeps_the_schedules_instants(spool):
    plan = workload({"open": {"process": "constant", "rate": 40, "max_in_flight": 20}}, requests=16)
    with truth_server(*FAST) as server, worker(server.url, plan, spool) as driven:
        t0_ns = driven.go()
        last = driven.finish()
    assert (last.sent, last.ok, last.intended) == (16, 16, 16)
    for record in driven.spooled().records:
        assert record.intended_ns == t0_ns + int(record.plan_index / 40 * 1e9)
        assert record.sent_ns >= record.intended_ns


def test_open_loop_without_a_free_user_is_late_and_counts_what_it_never_sent(spool):
    """40 a second are wanted for half a second; two users of a second each can send two."""
    plan = workload({"open": {"process": "constant", "rate": 40, "max_in_flight": 2}}, duration="500ms")
    with truth_server("--ttft", "200", "--itl", "5") as server, worker(server.url, plan, spool) as driven:
        t0_ns = driven.go()
        last = driven.finish()
    assert last.intended == 20
    assert last.sent < 10
    records = sorted(driven.spooled().records, key=lambda r: r.plan_index)
    assert [r.plan_index for r in records] == list(range(last.sent)), "ticks are taken in order"
    late = records[2]
    assert late.intended_ns == t0_ns + int(2 / 40 * 1e9)
    assert late.sent_ns - late.intended_ns > 100e6


def test_think_time(spool):
    plan = workload({"closed": {"users": 1, "think_time": "150ms"}}, requests=3)
    with truth_server(*FAST) as server, worker(server.url, plan, spool) as driven:
        driven.go()
        driven.finish()
    records = sorted(driven.spooled().records, key=lambda r: r.plan_index)
    for before, after in pairwise(records):
        assert after.intended_ns - before.end_ns >= 149e6


def test_two_workers_share_the_plan(tmp_path):
    plan = workload({"closed": {"users": 3}}, requests=10, warmup={"requests": 1})
    with truth_server(*FAST) as server:
        numbers: list[int] = []
        for index in range(2):
            path = tmp_path / f"{index}.jsonl"
            with worker(server.url, plan, path, worker=str(index), worker_index=index, workers=2) as driven:
                driven.go()
                driven.finish()
            records = driven.spooled().records
            assert {r.worker for r in records} == {str(index)}
            numbers += [r.plan_index for r in records]
    assert sorted(numbers) == list(range(11))


def test_drain_waits_and_marks_the_rest(spool):
    plan = workload(USERS, duration="60s", drain="300ms")
    with truth_server(*SLOW) as server, worker(server.url, plan, spool) as driven:
        driven.go()
        driven.hear("progress")
        driven.say("drain")
        started = time.monotonic()
        last = driven.finish()
        assert time.monotonic() - started >= 0.3
    assert (last.reason, last.sent, last.failed) == ("drained", 3, 3)
    assert check_rows(driven) == {"cancelled_at_end": 3}
    assert all(r.sent_ns and r.end_ns and not r.first_token_ns for r in driven.spooled().records)


def test_drain_lets_finish_what_can(spool):
    plan = workload(USERS, duration="60s", drain="10s")
    with truth_server("--ttft", "400") as server, worker(server.url, plan, spool) as driven:
        driven.go()
        time.sleep(0.2)
        driven.say("drain")
        last = driven.finish()
    assert (last.reason, last.sent, last.ok) == ("drained", 3, 3)


@pytest.mark.parametrize("how", ["stop", "end of stdin"])
def test_stop_is_at_once_and_still_writes_rows(spool, how):
    plan = workload(USERS, duration="60s", drain="50s")
    with truth_server(*SLOW) as server, worker(server.url, plan, spool) as driven:
        driven.go()
        driven.hear("progress")
        if how == "stop":
            driven.say("stop")
        else:
            driven.process.stdin.close()
        started = time.monotonic()
        last = driven.finish()
        assert time.monotonic() - started < 5
    assert last.reason == "stopped"
    assert check_rows(driven) == {"cancelled_at_end": 3}


def test_stop_cuts_a_drain_short(spool):
    plan = workload(USERS, duration="60s", drain="50s")
    with truth_server(*SLOW) as server, worker(server.url, plan, spool) as driven:
        driven.go()
        driven.hear("progress")
        driven.say("drain")
        driven.hear("draining")
        driven.say("stop")
        assert driven.finish().reason == "stopped"


def test_signals_are_the_parents_business(spool):
    plan = workload(USERS, requests=12)
    with truth_server(*FAST) as server, worker(server.url, plan, spool) as driven:
        driven.go()
        for number in (signal.SIGINT, signal.SIGTERM):
            driven.process.send_signal(number)
        assert driven.finish().reason == "planned"


def test_a_refused_key_ends_the_load_at_once(spool):
    plan = workload({"closed": {"users": 2}}, duration="60s")
    with truth_server("--status", "401") as server, worker(server.url, plan, spool) as driven:
        driven.go()
        last = driven.finish()
    assert last.reason == "auth"
    assert "401" in last.detail
    assert last.sent <= 2, "one request of each user at most"


def test_a_full_disk_ends_the_load_and_tells_the_counts():
    plan = workload(USERS, duration="60s")
    with truth_server(*FAST) as server, worker(server.url, plan, Path("/dev/full")) as driven:
        driven.go()
        last = driven.finish()
    assert last.reason == "storage"
    assert "No space left" in last.detail
    assert last.sent >= 1


def test_a_spool_that_cannot_be_made_is_told(tmp_path):
    with worker("http://127.0.0.1:9", workload(USERS, requests=1), tmp_path / "no" / "x.jsonl") as driven:
        last = driven.hear("finished")
        assert driven.process.wait(10) == 0
    assert last.reason == "storage"


def test_a_missing_key_variable_is_told(tmp_path):
    target = TargetSpec(base_url="http://127.0.0.1:9", model="m", api_key_env="KVPROBE_TEST_NO_SUCH_KEY")
    with worker(target, workload(USERS, requests=1), tmp_path / "x.jsonl") as driven:
        last = driven.hear("finished")
    assert last.reason == "usage"
    assert "KVPROBE_TEST_NO_SUCH_KEY" in last.detail


def test_a_worker_connects_to_the_addresses_that_were_checked(spool):
    with truth_server(*FAST) as server:
        url = server.url.replace("127.0.0.1", "no-such-host.invalid")
        target = TargetSpec(base_url=url, model="truth", addresses=["127.0.0.1"])
        with worker(target, workload(USERS, requests=6), spool) as driven:
            driven.go()
            assert driven.finish().ok == 6


def test_the_error_rate_trips_the_breaker_too(spool):
    """Every second request fails: never many in a row, but half of them."""
    plan = workload({"closed": {"users": 1}}, duration="60s")
    breaker = BreakerSpec(consecutive_failures=1000, window=10, error_rate=0.5)
    broken = ("--status", "500", "--status-every", "2")
    with truth_server(*FAST, *broken) as server, worker(server.url, plan, spool, breaker) as driven:
        driven.go()
        last = driven.finish()
    assert last.reason == "breaker"
    assert "50% of the latest 10" in last.detail
    assert (last.ok, last.failed) == (5, 5)


def test_health_samples(spool):
    plan = workload(USERS, duration="1500ms")
    with truth_server(*FAST) as server, worker(server.url, plan, spool) as driven:
        driven.go()
        driven.finish()
    samples = driven.spooled().samples
    names = Counter(s.metric for s in samples)
    assert names["client.loop_lag_s"] >= 4
    assert set(names) == {
        "client.loop_lag_s",
        "client.loop_lag_p99_s",
        "client.cpu_s_total",
        "client.cpu_ratio",
        "client.rss_bytes",
        "client.open_fds",
        "client.fd_limit",
    }
    assert all(s.labels["worker"] == "0" and s.value is not None and s.value >= 0 for s in samples)
    assert {s.labels.get("window") for s in samples if s.metric == "client.loop_lag_s"} == {"max"}
    cpu = [s.value for s in samples if s.metric == "client.cpu_s_total"]
    assert cpu == sorted(cpu)


def test_a_frozen_client_shows_in_its_lag(spool):
    """The lag is real: a worker that was stopped for half a second says so."""
    plan = workload(USERS, duration="2s")
    with truth_server(*FAST) as server, worker(server.url, plan, spool) as driven:
        driven.go()
        driven.hear("progress")
        driven.process.send_signal(signal.SIGSTOP)
        time.sleep(0.5)
        driven.process.send_signal(signal.SIGCONT)
        driven.finish()
    lags = [s.value for s in driven.spooled().samples if s.metric == "client.loop_lag_s"]
    assert max(lags) > 0.4


@pytest.mark.parametrize(
    "defect",
    [
        "from kvprobe.load import users\ndef broken(*a, **k): raise LookupError('spoilt')\n"
        "users.run_request = broken",
        "from kvprobe.load.conductor import Conductor\ndef broken(*a, **k): raise LookupError('spoilt')\n"
        "Conductor._ticket = broken",
    ],
    ids=["sending", "claiming"],
)
def test_a_defect_of_ours_ends_the_load_and_is_told(defect: str, spool: Path) -> None:
    """Locust swallows what a task raises: without the guard, rows are missing and nobody says so."""
    plan = workload(USERS, requests=6)
    with truth_server(*FAST) as server, worker(server.url, plan, spool, defect=defect) as driven:
        driven.go()
        last = driven.hear("finished")
    assert last.reason == "error"
    assert last.detail is not None
    assert "LookupError: spoilt" in last.detail
