"""Who held the cache when it ran out."""

from __future__ import annotations

from kvprobe.summary.holders import who_held
from tests.summary.synthetic import Made, record


def pressed(usage: float, waiting: float, preemptions: tuple[float, ...]) -> Made:
    """One long conversation and three short ones, all in flight from 0 to about 2 s."""
    made = Made()
    made.records = [
        record(0, ttft_ms=400, gap_ms=50, prompt=6000),
        *(record(i, sent_ms=100 * i, ttft_ms=300, gap_ms=50, prompt=200) for i in (1, 2, 3)),
    ]
    made.marks()
    n = len(preemptions)
    made.gauge("engine.kv_usage_ratio", [usage] * n)
    made.gauge("engine.requests_waiting", [waiting] * n)
    made.gauge("engine.requests_running", [3.0] * n)
    made.gauge("engine.preemptions_total", preemptions)
    return made.fact("cache_config", {"block_size": "16", "kv_cache_size_tokens": "8192"})


def test_the_largest_holder_stands_first_with_its_age() -> None:
    held = who_held(pressed(0.96, 1.0, (0, 0, 1, 1)).build())
    worst = held.moments[0]
    assert worst.event == "preemption"
    assert worst.requests == 3, "as many as the server ran, those that stream first"
    first = worst.holders[0]
    assert (first.request_id, first.tokens, round(first.age_s, 1)) == ("r0", 6003, 0.5)
    assert first.pool_share == 6003 / 8192
    assert held.moments_seen == 4


def test_a_pool_that_never_ran_out_has_no_moment() -> None:
    held = who_held(pressed(0.5, 0.0, (0, 0, 0)).build())
    assert held.moments == []
    assert "never ran out" in (held.reason or "")


def test_full_without_a_queue_is_no_moment() -> None:
    assert who_held(pressed(0.96, 0.0, (0, 0, 0)).build()).moments == []


def test_without_a_page_the_reason_is_told() -> None:
    made = Made(records=[record(0)])
    assert who_held(made.build()).reason == "no server metrics"
