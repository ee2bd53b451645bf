"""What a worker says of requests that wait for longer than an abort rule allows."""

from __future__ import annotations

import time

import pytest

from kvprobe.evidence.records import Waiting
from kvprobe.load.waits import Waits
from kvprobe.load.workload_gates import AbortWhen


def made(*rules: str) -> tuple[Waits, list[Waiting]]:
    told: list[Waiting] = []
    found = Waits([AbortWhen.model_validate(rule) for rule in rules], "0", told.append)
    return found, told


def sent(waits: Waits, name: str, ago_s: float) -> None:
    then_ns = time.monotonic_ns() - int(ago_s * 1e9)
    waits.sent(name, then_ns, then_ns, False)


def names(told: Waiting) -> list[str]:
    return [request.request_id for request in told.requests]


def test_the_late_are_told_of_until_there_is_none() -> None:
    waits, told = made("ttft.p95 > 10s for 0s", "response_ttft.p50 > 5s for 0s", "e2e.p95 > 60s for 0s")
    for name, ago_s in (("new", 1.0), ("old", 6.0), ("answering", 50.0), ("long", 70.0)):
        sent(waits, name, ago_s)
    for name in ("answering", "long"):
        waits.first_token(name)
    waits.report()
    assert names(told[0]) == ["old", "long"]
    assert [request.first_token for request in told[0].requests] == [False, True]
    waits.ended("old")
    waits.ended("long")
    waits.report()
    waits.report()
    assert [names(each) for each in told[1:]] == [[]], "that there is none any more, once"


@pytest.mark.parametrize("rules", [(), ("error_rate > 50%", "kv_usage > 90%", "tpot.p50 > 1s")])
def test_without_a_rule_that_looks_at_them_nothing_is_kept(rules: tuple[str, ...]) -> None:
    waits, told = made(*rules)
    sent(waits, "old", 1e5)
    waits.first_token("old")
    waits.report()
    waits.ended("old")
    assert not told
    assert not waits._under_way
