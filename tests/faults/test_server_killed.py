"""F20: the server is killed in mid-run; the breaker ends the load and every request is accounted for."""

from __future__ import annotations

import time
from collections import Counter

from kvprobe.load.job import BreakerSpec
from tests.load.truth import truth_server
from tests.load.worker_kit import worker, workload


def test_f20_a_killed_server_trips_the_breaker_with_exact_counts(tmp_path):
    plan = workload({"closed": {"users": 4}}, duration="60s")
    breaker = BreakerSpec(consecutive_failures=12, window=50, error_rate=0.9)
    slow = ("--ttft", "100", "--itl", "20")
    spool = tmp_path / "spool.jsonl"
    with truth_server(*slow) as server, worker(server.url, plan, spool, breaker) as driven:
        driven.go()
        while driven.hear("progress").ok < 4:
            continue
        server.process.kill()
        killed = time.monotonic()
        last = driven.finish()
        assert time.monotonic() - killed < 10
    assert last.reason == "breaker"
    assert "12 requests in a row failed" in last.detail
    assert "connect" in last.detail
    records = driven.spooled().records
    kinds = Counter(r.failure for r in records)
    assert len(records) == last.sent
    assert kinds[None] == last.ok >= 4
    assert sum(kinds.values()) - kinds[None] == last.failed
    assert set(kinds) <= {
        None,
        "connect",
        "reset_before_headers",
        "reset_mid_stream",
        "truncated",
        "cancelled_at_end",
    }
    # A killed server's last connections are reset by the kernel, so how each of the twelve failed is
    # its business; that there are twelve, and at most one torn answer a user, is ours.
    torn = kinds["reset_mid_stream"] + kinds["truncated"]
    assert torn <= 4
    assert kinds["connect"] >= 1
    assert kinds["connect"] + kinds["reset_before_headers"] >= 12 - torn, "a retry hid a request"
