"""The slope of a backlog, from rows whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from kvprobe.evidence.records import RequestRecord
from kvprobe.summary.backlog import backlog
from tests.summary.synthetic import T0, S, record


def served(rate: float, capacity: float, seconds: float = 20.0, base_s: float = 0.2) -> list[RequestRecord]:
    """Equal distances into a server of one queue: each is done 1/capacity after the one before it."""
    rows = []
    free = 0.0
    for i in range(int(rate * seconds)):
        at = i / rate
        free = max(free, at) + 1.0 / capacity
        rows.append(record(i, sent_ms=at * 1e3, ttft_ms=(free - at + base_s) * 1e3, gap_ms=1.0, tokens=2))
    return rows


def over(rows: list[RequestRecord], seconds: float = 20.0, skip_s: float = 2.0):  # type: ignore[no-untyped-def]
    return backlog(rows, T0 + int(skip_s * S), T0 + int(seconds * S))


def test_a_server_that_keeps_up() -> None:
    found = over(served(10.0, 50.0))
    assert found is not None
    assert abs(found.growth_per_s) < 0.1
    assert found.hi_per_s < 0.5


def test_a_server_that_does_not() -> None:
    found = over(served(12.0, 5.8))
    assert found is not None
    assert found.growth_per_s == pytest.approx(6.2, rel=0.02)
    assert found.lo_per_s < 6.2 < found.hi_per_s + 0.1
    assert found.rise == pytest.approx(6.2 * 18, rel=0.02)
    assert not found.settling


def test_a_load_that_rises_to_its_level_may_be_settling() -> None:
    """Every request takes 8 s, whatever the load: for 8 s nothing is done, and nothing is wrong."""
    rows = [record(i, sent_ms=i * 100.0, ttft_ms=8_000.0, gap_ms=1.0, tokens=2) for i in range(100)]
    found = over(rows, seconds=10.0)
    assert found is not None
    assert found.lo_per_s > 0
    assert found.settling


def test_a_queue_at_the_server_is_no_settling() -> None:
    rows = [record(i, sent_ms=i * 100.0, ttft_ms=8_000.0, gap_ms=1.0, tokens=2) for i in range(100)]
    waiting = [(T0 + int(t * S), 10.0 * t) for t in np.arange(2.0, 10.0, 0.5)]
    found = backlog(rows, T0 + 2 * S, T0 + 10 * S, waiting)
    assert found is not None
    assert found.waiting_lo_per_s is not None
    assert not found.settling


def test_poisson_arrivals_at_half_the_capacity_do_not_grow() -> None:
    rng = np.random.default_rng(3)
    at, free, rows = 0.0, 0.0, []
    for i in range(400):
        at += float(rng.exponential(0.1))
        free = max(free, at) + 0.05
        rows.append(record(i, sent_ms=at * 1e3, ttft_ms=(free - at) * 1e3, gap_ms=1.0, tokens=2))
    found = over(rows, seconds=38.0)
    assert found is not None
    assert found.lo_per_s <= 0 or found.rise < 3


def test_too_few_or_no_time_is_null() -> None:
    rows = served(10.0, 50.0)
    assert backlog(rows[:7], T0, T0 + 20 * S) is None
    assert backlog(rows, T0, T0) is None
    assert backlog([], T0, T0 + S) is None
