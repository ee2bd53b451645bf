"""What is refused before the first request: addresses, caps, budgets (F22, F61, F62)."""

from __future__ import annotations

import io
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from kvprobe.checked_addresses import forget
from kvprobe.errors import TargetError, UsageError
from kvprobe.load.job import PlannedRequest
from kvprobe.load.workload import Workload
from kvprobe.observe.metrics import MetricsClient
from kvprobe.run import guards, target_guard
from kvprobe.run import target as targets
from tests.e2e.conftest import kvprobe
from tests.faults.client import client_of
from tests.faults.kit import DONE, chunk, playing, serve
from tests.load.truth import truth_server


def workload(**fields: object) -> Workload:
    base = {
        "name": "w",
        "kind": "distinct",
        "prompt": {"tokens": 100},
        "output": {"tokens": 20},
        "arrival": {"closed": {"users": 2}},
        "requests": 10,
    }
    return Workload.model_validate(base | fields)


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254",
        "http://169.254.170.2:80/v1",
        "http://[fd00:ec2::254]",
        "http://[::ffff:169.254.169.254]",
        "http://[64:ff9b::a9fe:a9fe]",
        "http://[2002:a9fe:a9fe::]",
        "http://100.100.100.200",
        "http://metadata.google.internal",
        "http://METADATA.google.internal.",
        "http://2852039166",
        "http://0xa9fea9fe",
        "http://169.254.43518",
        "http://[::a9fe:a9fe]",
        "http://[::ffff:0:169.254.169.254]",
        "http://[64:ff9b:1::a9fe:a9fe]",
        "http://[2001:0:0:0:0:0:5601:5601]",
    ],
)
def test_f62_credential_addresses_are_refused_whatever_the_user_says(url: str) -> None:
    allowed = {target_guard.ALLOW_LIST: "169.254.0.0/16,metadata.google.internal,::/0,0.0.0.0/0"}
    with pytest.raises(TargetError) as caught:
        target_guard.guard(url, own_target=True, environ=allowed)
    assert "credentials" in caught.value.problems[0].message


@pytest.mark.parametrize(
    "url",
    [
        "http://10.1.2.3:8000",
        "http://[2001:db8::1]",
        "http://0.0.0.0:8000",
        "http://[64:ff9b::7f00:1]",  # a gateway's loopback, not ours
        "http://[2002:7f00:1::]",
        "http://[::127.0.0.1]",
    ],
)
def test_f62_another_machine_needs_the_user_s_word(url: str) -> None:
    with pytest.raises(TargetError) as caught:
        target_guard.guard(url, own_target=False, environ={})
    assert "--i-own-this-target" in (caught.value.problems[0].fix or "")
    target_guard.guard(url, own_target=True, environ={})


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1", "http://127.9.9.9", "http://[::1]:5", "http://localhost"]
)
def test_this_machine_needs_none(url: str) -> None:
    target_guard.guard(url, own_target=False, environ={})


@pytest.mark.parametrize(
    ("allow", "allowed"),
    [
        ("10.1.0.0/16", True),
        ("other, 10.1.2.3", True),
        ("10.1.2.4,10.2.0.0/16", False),
        ("", False),
        ("nonsense/99,,", False),
        (".2.3", False),
        (".3,*,10.1.2.3:8000,http://10.1.2.3", False),
        ("::/0", False),
        ("10.0.0.0/255.0.0.0", True),
    ],
)
def test_f62_an_allow_list_in_the_environment(allow: str, allowed: bool) -> None:
    environ = {target_guard.ALLOW_LIST: allow}
    if allowed:
        target_guard.guard("http://10.1.2.3", own_target=False, environ=environ)
    else:
        with pytest.raises(TargetError):
            target_guard.guard("http://10.1.2.3", own_target=False, environ=environ)


def test_f62_words_of_the_allow_list_that_allow_nothing_are_named() -> None:
    environ = {target_guard.ALLOW_LIST: "lab-1, .example.org,10.0.0.0/8;,http://10.1.2.3,*,::1,10.0.0.0/8"}
    environ[target_guard.ALLOW_LIST] += ",http://me:canary@10.1.2.3/?key=canary"
    with pytest.raises(TargetError) as caught:
        target_guard.guard("http://192.0.2.1", own_target=False, environ=environ)
    message = caught.value.problems[0].message
    assert "network: 10.0.0.0/8;, http://10.1.2.3, *, ...@10.1.2.3/" in message
    assert "canary" not in message


def test_f62_an_allow_list_by_domain(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = [(2, 1, 6, "", ("10.9.9.9", 80))]
    monkeypatch.setattr(target_guard.socket, "getaddrinfo", lambda *a, **k: answer)
    environ = {target_guard.ALLOW_LIST: ".lab.example.org"}
    target_guard.guard("http://a.lab.example.org", own_target=False, environ=environ)
    for near in ("http://alab.example.org", "http://lab.example.org.evil.com"):
        with pytest.raises(TargetError):
            target_guard.guard(near, own_target=False, environ=environ)


def test_f62_every_address_of_a_name_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [(2, 1, 6, "", ("127.0.0.1", 80)), (2, 1, 6, "", ("169.254.169.254", 80))]
    monkeypatch.setattr(target_guard.socket, "getaddrinfo", lambda *a, **k: both)
    with pytest.raises(TargetError):
        target_guard.guard("http://two-faced", own_target=True, environ={})


@pytest.mark.parametrize(
    ("host", "asks"),
    [
        ("prod-llm.example.org", True),
        ("llm.production.example.org", True),
        ("llm-prd", True),
        ("api-live.example.org", True),
        ("olive.example.org", False),
        ("127.0.0.1", False),
        ("staging.example.org", False),
    ],
)
def test_f62_a_name_that_says_production(host: str, asks: bool) -> None:
    assert target_guard.names_production(f"http://{host}:8000") is asks


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_f62_production_is_asked_about_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://prod-1:8000"
    target_guard.confirm_production(url, yes=True)
    monkeypatch.setattr(sys, "stdin", io.StringIO("prod-1\n"))
    with pytest.raises(TargetError) as caught:
        target_guard.confirm_production(url, yes=False)
    assert "--yes" in (caught.value.problems[0].fix or "")
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(sys, "stdin", Terminal("prod-1\n"))
    target_guard.confirm_production(url, yes=False)
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    with pytest.raises(TargetError):
        target_guard.confirm_production(url, yes=False)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"arrival": {"open": {"rate": 250.0}}, "duration": "10s"}, "limits.rate=250"),
        ({"arrival": {"open": {"rate": 200.0000001}}, "duration": "10s"}, "limits.rate=200.0000001"),
        ({"arrival": {"closed": {"users": 1025}}}, "limits.concurrency=1025"),
        ({"duration": "14401s"}, "limits.duration=14401s"),
        (
            {"arrival": {"open": {"ramp": {"from": 1.0, "to": 900.0, "over": "10s"}}}, "duration": "10s"},
            "limits.rate=900",
        ),
        ({"arrival": {"closed": {"users": 2000}}}, "limits.concurrency=2000"),
        ({"arrival": {"open": {"rate": 1.0, "max_in_flight": 5000}}}, "limits.concurrency=5000"),
        ({"duration": "10h"}, "limits.duration=36000s"),
    ],
)
def test_f62_a_cap_is_told_with_the_key_that_raises_it(fields: dict[str, object], key: str) -> None:
    with pytest.raises(UsageError) as caught:
        guards.check_caps(workload(**fields))
    (problem,) = caught.value.problems
    assert problem.code == "over_limit"
    assert f"--set {key}" in (problem.fix or "")
    name, _, value = key.removeprefix("limits.").partition("=")
    raised = value if name == "duration" else float(value) if name == "rate" else int(value)
    guards.check_caps(workload(**fields, limits={name: raised}))


def planned(n: int) -> list[PlannedRequest]:
    return [
        PlannedRequest(index=i, kind="distinct", asked_prompt_tokens=100, asked_completion_tokens=20)
        for i in range(n)
    ]


def test_f62_tokens_are_counted_before_the_load_where_the_plan_says_how_many() -> None:
    load = workload(requests=500_000)
    sizes = guards.planned_sizes(load, 500_000, planned(200))
    assert sizes.tokens == 60_000_000
    with pytest.raises(UsageError) as caught:
        guards.check_tokens(load, sizes)
    assert "limits.tokens" in (caught.value.problems[0].fix or "")
    guards.check_tokens(workload(requests=500_000, limits={"tokens": 60_000_000}), sizes)


def test_f62_a_budget_that_the_plan_exceeds_is_refused_before_the_load() -> None:
    sizes = guards.planned_sizes(workload(), 1000, planned(200))
    prices = {"price_per_million_input": 1.0, "price_per_million_output": 10.0}
    # 1000 x (100 x 1 + 20 x 10) / 1e6 = 0.30
    guards.check_tokens(workload(budget={"tokens": 120_000, "money": 0.31, **prices}), sizes)
    for budget in ({"tokens": 119_999}, {"money": 0.29, **prices}):
        with pytest.raises(UsageError) as caught:
            guards.check_tokens(workload(budget=budget), sizes)
        assert caught.value.problems[0].code == "over_budget"


def test_f62_an_open_ended_plan_is_bounded_while_it_goes() -> None:
    load = workload(requests=None, duration="60s", budget={"tokens": 5_000})
    sizes = guards.planned_sizes(load, None, planned(200))
    assert sizes.tokens is None
    assert [b.name for b in guards.budgets_of(load, sizes)] == ["limits.tokens", "budget.tokens"]
    opened = workload(requests=None, duration="60s", arrival={"open": {"rate": 2.0}})
    assert guards.planned_sizes(opened, None, planned(200)).requests == 120


def test_a_budget_in_money_needs_prices() -> None:
    with pytest.raises(ValueError, match="both prices"):
        workload(budget={"money": 3.0})
    with pytest.raises(ValueError, match="bounds nothing"):
        workload(budget={})
    free = {"price_per_million_input": 0.0, "price_per_million_output": 0.0}
    with pytest.raises(ValueError, match="both prices are 0"):
        workload(budget={"money": 3.0, **free})


def test_f62_caps_hold_what_they_say() -> None:
    guards.check_caps(workload(arrival={"open": {"rate": 200.0}}, duration="10s"))
    guards.check_caps(workload(arrival={"closed": {"users": 1024}}))
    guards.check_caps(workload(duration="3h", warmup={"duration": "1h"}))


def test_f22_the_metrics_page_is_guarded_too(tmp_path: Path) -> None:
    with truth_server("--ttft", "5") as server:
        for page, word in (
            ("http://169.254.169.254/metrics", "credentials"),
            ("http://10.1.2.3/metrics", "not this machine"),
        ):
            result = kvprobe(
                "run",
                "distinct",
                "--target",
                server.url,
                "--metrics",
                page,
                "--json",
                "--out",
                str(tmp_path / "r"),
            )
            assert result.code == 3
            assert word in result.document["errors"][0]["message"]
    assert not (tmp_path / "r").exists()


def test_f29_proxies_that_are_set_are_stated_without_their_values(tmp_path: Path) -> None:
    proxy = "http://user:canary-password-123@127.0.0.1:9"
    env = {"HTTP_PROXY": proxy, "http_proxy": proxy, "ALL_PROXY": proxy}
    small = ("--set", "requests=3", "--set", "prompt.tokens=32", "--set", "output.tokens=2")
    with truth_server("--ttft", "5", "--itl", "1") as server:
        result = kvprobe(
            "run", "distinct", "--target", server.url, *small, "--json", "--out", str(tmp_path / "r"), env=env
        )
    assert result.document["requests"]["ok"] == 3, "the load goes straight to the target"
    assert "ALL_PROXY, HTTP_PROXY, http_proxy set: the load does not use the proxy" in result.err
    everything = result.out + result.err
    for path in Path(result.document["run_dir"]).rglob("*"):
        everything += path.read_bytes().decode("latin-1") if path.is_file() else ""
    assert "canary-password" not in everything
    assert os.environ.get("HTTP_PROXY") != proxy


def test_an_abort_rule_that_can_never_stop_the_load_is_told() -> None:
    rules = [{"when": "error_rate > 50%", "grace": "10s"}, {"when": "waiting > 5", "grace": "2s"}]
    short = workload(requests=None, duration="8s", warmup={"duration": "2s"}, abort=rules)
    told = guards.idle_rules(short)
    assert told is not None
    assert "`error_rate > 50%` (10 s)" in told
    assert "waiting" not in told
    assert guards.idle_rules(workload(requests=None, duration="11s", abort=rules)) is None
    assert guards.idle_rules(workload(abort=rules)) is None, "nobody knows how long 10 requests take"


def test_f62_what_was_checked_is_what_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that gives a harmless address to the guard and another one afterwards."""
    real = socket.getaddrinfo
    asked: list[str] = []

    def rebinding(host: str, port: int, *rest: int, **more: int) -> list[Any]:
        if host != "rebind.test":
            return real(host, port, *rest, **more)
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "127.0.0.99"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with serve(playing(chunk("a"), chunk(finish="stop"), DONE)) as server:
        url = server.url.replace("127.0.0.1", "rebind.test")
        target_guard.guard(url, own_target=False, environ={})
        with client_of(url) as client:
            assert client.send().failure is None
        with targets.control_client(None, insecure=False) as control:
            assert control.get(url).status_code == 200
        scrape = MetricsClient(url)
        assert scrape.scrape().failure.kind == "not_prometheus", "it answered"
        scrape.close()
        assert asked == ["rebind.test"], "nobody looks it up again"
        forget()
        with client_of(url) as client:
            assert client.send().failure == "connect", "the second answer, to which nobody listens"


def test_f62_a_suite_asks_a_target_nothing_before_the_guard_has_looked(tmp_path: Path) -> None:
    with serve(playing(chunk("a"), chunk(finish="stop"), DONE)) as server:
        url = server.url.replace("127.0.0.1", "0.0.0.0")
        result = kvprobe("run", "three_controls", "--target", url, "--out", str(tmp_path / "r"), "--json")
        assert server.connections == 0
    assert result.code == 3
    assert result.document["errors"][0]["code"] == "guard"
