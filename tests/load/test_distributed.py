"""A master and its workers as real processes: rows are complete, the lost are named, clocks stay apart."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvprobe.evidence.clocks import align
from kvprobe.run.crews import free_port
from tests.load.crew_kit import Peer, agent, master, spooled
from tests.load.truth import SCRIPT, truth_server
from tests.load.worker_kit import workload

FAST = ("--ttft", "20", "--itl", "5")
USERS = {"closed": {"users": 4}}


@pytest.fixture
def peers() -> Iterator[list[Peer]]:
    made: list[Peer] = []
    yield made
    for peer in made:
        peer.end()


def led(
    tmp_path: Path, peers: list[Peer], url: str, plan: dict, workers: int = 2, **fields: float
) -> tuple[Peer, list[Peer]]:
    """A master on a free port and its workers."""
    port = free_port()
    lead = master(url, plan, tmp_path / "spool", workers=workers, port=port, **fields)
    peers.append(lead)
    hands = [agent(tmp_path / f"agent{i}", port, **fields) for i in range(workers)]
    peers.extend(hands)
    return lead, hands


def test_rows_of_all_workers_reach_the_master_complete(tmp_path: Path, peers: list[Peer]) -> None:
    plan = workload(USERS, requests=60, warmup={"requests": 2})
    with truth_server(*FAST) as server:
        lead, hands = led(tmp_path, peers, server.url, plan)
        lead.go()
        last = lead.hear("finished")
        assert [hand.hear("finished").reason for hand in hands] == ["planned", "planned"]
    assert (last.reason, last.sent, last.ok, last.intended) == ("planned", 62, 62, 62)
    content = spooled(tmp_path / "spool")
    assert content.bad_lines == 0
    assert sorted(r.plan_index for r in content.records) == list(range(62))
    assert len(Counter(r.worker for r in content.records)) == 2
    assert {o.worker for o in content.opened} == {r.worker for r in content.records}
    for index, hand in enumerate(hands):
        (own,) = (tmp_path / f"agent{index}").glob("*.jsonl")
        assert own.read_bytes() == (tmp_path / "spool" / own.name).read_bytes(), hand
    clocks = [f.value for f in content.facts if f.name == "worker_clock"]
    assert [c["same_clock"] for c in clocks] == [True, True]


def test_f41_a_worker_that_is_killed_is_named_and_the_rest_is_kept(tmp_path: Path, peers: list[Peer]) -> None:
    plan = workload(USERS, duration="60s", drain="5s")
    with truth_server(*FAST) as server:
        lead, hands = led(tmp_path, peers, server.url, plan, lost_after_s=4.0)
        lead.go()
        lead.hear_sent(80)
        (own,) = (tmp_path / "agent0").glob("*.jsonl")
        hands[0].process.kill()
        lost = lead.hear("lost")
        last = lead.hear("finished")
    name = own.stem.removeprefix("worker-")
    assert name in (lost.detail or "")
    assert (last.reason, name in (last.detail or "")) == ("lost", True)
    there, here = own.read_bytes(), (tmp_path / "spool" / own.name).read_bytes()
    assert there.startswith(here)
    missing = spooled_rows(there[len(here) :])
    rows = spooled_rows(there)
    if missing:
        assert rows[-1]["end_ns"] - missing[0]["end_ns"] < 1e9, "the last second at most"
    assert len({r.worker for r in spooled(tmp_path / "spool").records}) == 2


def spooled_rows(data: bytes) -> list[dict]:
    return [row for line in data.splitlines() if b'"type":"row"' in line and (row := json.loads(line))]


def test_f41_a_worker_that_loses_its_master_keeps_its_rows(tmp_path: Path, peers: list[Peer]) -> None:
    plan = workload({"closed": {"users": 2}}, duration="60s", drain="5s")
    with truth_server(*FAST) as server:
        lead, (hand,) = led(tmp_path, peers, server.url, plan, workers=1, lost_after_s=4.0)
        lead.go()
        lead.hear_sent(20)
        lead.process.kill()
        last = hand.hear("finished")
        assert len(server.rows()) == last.sent
    assert last.reason == "lost"
    assert "has not answered" in (last.detail or "")
    assert len(spooled(tmp_path / "agent0").records) == last.sent


def test_a_breaker_of_one_worker_ends_all(tmp_path: Path, peers: list[Peer]) -> None:
    plan = workload(USERS, duration="60s")
    with truth_server("--status", "500") as server:
        lead, _ = led(tmp_path, peers, server.url, plan)
        lead.go()
        last = lead.hear("finished")
    assert last.reason == "breaker"
    assert len(spooled(tmp_path / "spool").records) == last.sent


@pytest.mark.parametrize(
    ("said", "reason", "why"),
    [
        ({"command": "refuse", "reason": "refused", "detail": "not from here"}, "refused", "not from here"),
        (None, "error", "was ended on its machine before it had a job"),
    ],
)
def test_a_job_that_is_refused_where_it_would_be_done_ends_the_run(
    tmp_path: Path, peers: list[Peer], said: dict[str, str] | None, reason: str, why: str
) -> None:
    with truth_server(*FAST) as server:
        port = free_port()
        lead = master(server.url, workload(USERS, requests=9), tmp_path / "spool", workers=1, port=port)
        hand = agent(tmp_path / "agent", port, trusted=False)
        peers.extend([lead, hand])
        offer = json.loads(hand.hear("offered").detail or "")
        assert (offer["base_url"], offer["workload"]) == (server.url, "test")
        if said is not None:
            hand.say(**said)
        assert hand.process.stdin is not None
        hand.process.stdin.close()
        last = lead.hear("finished")
        assert server.rows() == []
    assert last.reason == reason
    assert re.fullmatch(rf"worker [A-Za-z0-9_.-]+-0: {why}", last.detail or "")


def test_a_worker_connects_to_what_its_own_guard_has_seen(tmp_path: Path, peers: list[Peer]) -> None:
    """Names may mean another machine there than at the master."""
    with truth_server(*FAST) as server:
        port = free_port()
        url = server.url.replace("127.0.0.1", "no-such-host.invalid")
        lead = master(url, workload(USERS, requests=6), tmp_path / "spool", workers=1, port=port)
        hand = agent(tmp_path / "agent", port, trusted=False)
        peers.extend([lead, hand])
        hand.hear("offered")
        hand.say("accept", addresses=["127.0.0.1"])
        lead.go()
        assert lead.hear("finished").ok == 6


def test_a_worker_that_is_not_wanted_hears_why(tmp_path: Path, peers: list[Peer]) -> None:
    with truth_server(*FAST) as server:
        lead, (hand,) = led(tmp_path, peers, server.url, workload(USERS, requests=6), workers=1)
        lead.hear("ready")
        told = hand.hear("waiting").detail or ""
        late = agent(tmp_path / "late", int(told.rpartition(":")[2].split()[0]))
        peers.append(late)
        last = late.hear("finished")
        lead.say("go", t0_ns=time.monotonic_ns() + 300_000_000)
        assert lead.hear("finished").ok == 6
    assert last.reason == "usage"
    assert "does not take this worker: this run has all its workers already" in (last.detail or "")


def test_a_worker_that_cannot_do_its_job_tells_the_master(tmp_path: Path, peers: list[Peer]) -> None:
    """It would else be waited for, and then called lost."""
    port = free_port()
    plan = workload(USERS, requests=9)
    lead = master("http://127.0.0.1:9", plan, tmp_path / "spool", workers=2, port=port)
    hands = [agent(tmp_path / "a", port), agent(tmp_path / "b", port, api_key_env="KVPROBE_TEST_NO_SUCH_KEY")]
    peers.extend([lead, *hands])
    last = lead.hear("finished")
    assert (last.reason, last.sent) == ("usage", 0)
    assert "KVPROBE_TEST_NO_SUCH_KEY is not set" in (last.detail or "")
    assert hands[1].hear("finished").reason == "usage"


def test_a_target_on_the_masters_loopback_is_not_given_to_another_machine() -> None:
    from kvprobe.load.wire import Hello, is_loopback

    here = Hello(host="a", pid=1, version="1", kernel="k", time_space="t1", net_space="n1")
    container = Hello(host="b", pid=1, version="1", kernel="k", time_space="t1", net_space="n2")
    elsewhere = Hello(host="c", pid=1, version="1", kernel="other", time_space="t1", net_space="n1")
    assert here.shares_clock(container)
    assert not here.shares_loopback(container)
    assert not here.shares_clock(elsewhere)
    unknown = Hello(host="d", pid=1, version="1")
    assert not unknown.shares_clock(unknown)
    assert [is_loopback(f"http://{h}:1") for h in ("127.0.0.9", "localhost", "[::1]", "10.0.0.1")] == [
        True,
        True,
        True,
        False,
    ]


def test_the_live_page_changes_nothing_and_the_masters_commands_reach_all(
    tmp_path: Path, peers: list[Peer]
) -> None:
    plan = workload(USERS, duration="60s", drain="10s")
    with truth_server(*FAST) as server:
        port = free_port()
        lead = master(server.url, plan, tmp_path / "spool", workers=2, port=port, web_port=0)
        peers.append(lead)
        url = (lead.hear("waiting").detail or "").removeprefix("live view: ")
        hands = [agent(tmp_path / f"agent{i}", port) for i in range(2)]
        peers.extend(hands)
        lead.go()
        lead.hear_sent(10)
        stats = {"user_count": 0}
        while not (stats["user_count"] and stats["stats"]):  # Locust's workers report every three seconds
            with urllib.request.urlopen(url + "stats/requests", timeout=10) as response:
                assert "Access-Control-Allow-Origin" not in response.headers
                stats = json.load(response)
        assert stats["user_count"] == 4
        for path, data in (("stop", None), ("swarm", b"user_count=1"), ("stats/reset", None)):
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(url + path, data, timeout=10)
        request = urllib.request.Request(url, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=10)
        lead.say("drain", reason="signal")
        last = lead.hear("finished")
        assert {hand.hear("finished").reason for hand in hands} == {"drained"}
    assert (last.reason, last.failed) == ("drained", 0)
    assert len(spooled(tmp_path / "spool").records) == last.sent


def run_ip(*argv: str) -> bool:
    return subprocess.run(["ip", *argv], capture_output=True).returncode == 0


@pytest.fixture
def two_networks() -> Iterator[tuple[str, str, str]]:
    """Two network namespaces joined by a cable; their names, and the address of the first."""
    if shutil.which("ip") is None:
        pytest.skip("install iproute2")
    one, two = (f"kvp{os.getpid()}{side}" for side in "ab")
    address = "10.231.77.1"
    made = (
        run_ip("netns", "add", one)
        and run_ip("netns", "add", two)
        and run_ip("-n", one, "link", "add", "eth-a", "type", "veth", "peer", "name", "eth-b", "netns", two)
    )
    try:
        if not made:
            pytest.skip("this user may not make network namespaces")
        for name, link, own in ((one, "eth-a", address), (two, "eth-b", "10.231.77.2")):
            assert run_ip("-n", name, "addr", "add", f"{own}/24", "dev", link)
            assert run_ip("-n", name, "link", "set", link, "up")
            assert run_ip("-n", name, "link", "set", "lo", "up")
        yield one, two, address
    finally:
        run_ip("netns", "del", one)
        run_ip("netns", "del", two)


def other_clock() -> list[str]:
    """A prefix that gives a process a CLOCK_MONOTONIC of its own, where that may be done."""
    prefix = ["unshare", "--time", "--monotonic", "5000000", "--fork", "--kill-child"]
    if shutil.which("unshare") and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0:
        return prefix
    return []


def test_over_two_networks_with_clocks_of_their_own(
    two_networks: tuple[str, str, str], tmp_path: Path, peers: list[Peer]
) -> None:
    one, two, address = two_networks
    inside = ["ip", "netns", "exec", one]
    prefix, plan = other_clock(), workload(USERS, requests=40)
    command = [*inside, sys.executable, str(SCRIPT), "--max-seconds", "100", "--host", address, *FAST]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            url = json.loads(server.stdout.readline())["url"]
            lead = master(url, plan, tmp_path / "spool", workers=1, port=5557, host=address, prefix=inside)
            peers.append(lead)
            hand = agent(tmp_path / "a", 5557, address, ["ip", "netns", "exec", two, *prefix])
            peers.append(hand)
            t0_ns = lead.go()
            last = lead.hear("finished")
            hand.hear("finished")
        finally:
            server.kill()
    assert (last.reason, last.ok) == ("planned", 40)
    content = spooled(tmp_path / "spool")
    raw = [(r.sent_ns, r.first_token_ns, r.end_ns) for r in content.records]
    if prefix:
        assert min(sent for sent, _, _ in raw) > t0_ns + 4_900_000 * 10**9, "its own clock, as it stamped"
    align(content)
    assert len(content.records) == 40
    for record in content.records:
        assert t0_ns <= record.sent_ns < t0_ns + 100 * 10**9
    spans = sorted(end - sent for sent, _, end in raw)
    assert spans == sorted(r.end_ns - r.sent_ns for r in content.records)
