"""Counters of several engines on one page: each is taken by itself."""

from __future__ import annotations

from kvprobe.evidence.samples import Sample
from kvprobe.summary.activity import increase

METRIC = "engine.preemptions_total"


def look(t_ns: int, **engines: float) -> list[Sample]:
    """One scrape: the sum, and where several engines stand on the page each of them."""
    made = [Sample(t_ns=t_ns, metric=METRIC, labels={}, value=sum(engines.values()))]
    if len(engines) > 1:
        of = METRIC.replace("engine.", "engines.", 1)
        made += [Sample(t_ns=t_ns, metric=of, labels={"engine": e}, value=v) for e, v in engines.items()]
    return made


def test_one_engine_restarts_and_the_others_go_on() -> None:
    """1,000 and 500; the second begins anew. The sum fell by 440, and 60 + 10 came in."""
    found = increase([*look(1, a=1_000, b=500), *look(2, a=1_050, b=10), *look(3, a=1_060, b=10)], METRIC)
    assert found is not None
    assert (found.value, found.resets, found.readings) == (50 + 10 + 10, 1, 3)


def test_a_restart_that_the_sum_hides() -> None:
    found = increase([*look(1, a=1_000, b=500), *look(2, a=2_000, b=100)], METRIC)
    assert found is not None
    assert (found.value, found.resets) == (1_000 + 100, 1)


def test_an_engine_that_joins_counts_from_zero_and_one_that_leaves_adds_nothing() -> None:
    found = increase([*look(1, a=100), *look(2, a=110, b=5), *look(3, a=120)], METRIC)
    assert found is not None
    assert (found.value, found.resets) == (10 + 5 + 5, 0)
    left = increase([*look(1, a=100, b=500), *look(2, a=120)], METRIC)
    assert left is not None
    assert (left.value, left.resets) == (0, 1)


def test_one_engine_as_before() -> None:
    found = increase([*look(1, a=7), *look(2, a=9), *look(3, a=4)], METRIC)
    assert found is not None
    assert (found.value, found.resets) == (2 + 4, 1)
    assert increase(look(1, a=7), METRIC) is None
