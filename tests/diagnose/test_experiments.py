"""What experiments say: they make a cause a step surer or less sure, and rule out what was only suspected."""

from __future__ import annotations

from typing import Any

import pytest

from kvprobe.diagnose.experiments import separating
from kvprobe.run.investigate import wanted_by
from tests.diagnose.test_judge import no_hits, replace
from tests.diagnose.test_live_rules import ALL, POOL, causes, diagnose, flat, load
from tests.summary.synthetic import Made


def asked(made: Made, name: str, **result: Any) -> Made:
    return made.fact("experiment", {"name": name, "result": result})


def pair(hit: float, expected: float = 192) -> dict[str, Any]:
    return {
        "hit_tokens": hit,
        "expected_tokens": expected,
        "prompt_tokens": 200,
        "ttft_cold_s": 0.2,
        "ttft_warm_s": 0.1,
    }


def split() -> Made:
    made = no_hits()
    made.fact("prompt_layout", {"shared_prefix_tokens": 544, "ceiling_as_sent": 0.74, "block_size": 16})
    made.counter("engine.kv_blocks_cached", 0.0, ALL + 380)
    made.counter("engine.kv_blocks_used", 0.0, 0.0)
    made.counter("engine.kv_blocks_total", 20_000.0, 20_000.0)
    return made.counter("engine.kv_blocks_evicted_total", 0.0, 0.0)


def test_a_repeat_that_misses_too_speaks_for_a_split_key() -> None:
    found = diagnose(asked(split(), "repeat", **pair(0)))
    assert found.primary == "prefix_disabled_by_request"
    assert any("0 of 192" in e.text for e in found.findings[0].evidence)


def test_a_repeat_that_hits_makes_a_split_key_less_sure() -> None:
    found = diagnose(asked(split(), "repeat", **pair(192)))
    assert (found.primary, found.findings[0].confidence) == ("prefix_disabled_by_request", "suspected")


def test_two_that_hit_rule_it_out() -> None:
    made = asked(asked(split(), "repeat", **pair(192)), "aligned", **pair(192))
    assert "prefix_disabled_by_request" not in causes(diagnose(made))


def queued(**result: Any) -> Any:
    made = flat(load(), requests_running=4.0, requests_waiting=3.0, kv_usage_ratio=0.2)
    config = {k: v for k, v in POOL.items() if k != "max_num_seqs"}
    return diagnose(
        asked(replace(made, "cache_config", config), "burst", requests=12, looks=9, failed=0, **result)
    )


def test_a_burst_that_all_runs_at_once_speaks_against_a_limit() -> None:
    found = queued(running_max=12.0, running_with_queue=[], waiting_max=0.0, kv_usage_max=0.1)
    assert [f.confidence for f in found.findings if f.cause == "queue_limit"] in ([], ["suspected"])


@pytest.mark.parametrize("usage", [0.0, 0.2])
def test_a_look_at_rest_decides_about_a_leak(usage: float) -> None:
    made = flat(load(), kv_usage_ratio=0.1)
    made.counter("engine.requests_running", 0.0, 0.0)
    made.counter("engine.requests_waiting", 0.0, 0.0)
    made.counter("engine.kv_blocks_used", 0.0, 800.0)
    made.counter("engine.kv_blocks_total", 4095.0, 4095.0)
    before = diagnose(made)
    assert [(f.cause, f.confidence) for f in before.findings] == [("kv_pool_leak", "suspected")]
    last = {"engine.kv_usage_ratio": usage, "engine.requests_running": 0.0}
    after = diagnose(asked(made, "at_rest", first=last, last=last, pause_s=1.0))
    assert causes(after) == (["kv_pool_leak"] if usage else [])
    if usage:
        assert after.findings[0].confidence == "likely"


def test_an_experiment_that_came_to_nothing_says_nothing() -> None:
    made = split().fact("experiment", {"name": "repeat", "result": None})
    assert diagnose(made).findings == diagnose(split()).findings


def test_experiments_are_chosen_by_the_causes_that_remain() -> None:
    assert wanted_by(diagnose(split())) == ["repeat", "aligned"]
    assert wanted_by(diagnose(load())) == []


def test_the_separating_experiment_is_named() -> None:
    assert "one prompt sent twice" in (separating("prefix_evicted", ["prefix_disabled_by_request"]) or "")
    assert separating("prefix_evicted", []) is None
