"""What the parts of a suite say together: shown, not shown, the other way round, and what cannot be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvprobe.diagnose.allocators import allocators
from kvprobe.diagnose.controls import controls
from kvprobe.diagnose.mean_ratio import mean_ratio
from kvprobe.diagnose.model import Diagnosis, Finding, Validity
from kvprobe.diagnose.part_ratio import sameness
from kvprobe.diagnose.sizing import block_sizes
from kvprobe.diagnose.suite_answer import Answer, PartView, RunView, Statement, answer, part_views
from kvprobe.diagnose.suite_judge import JudgedRun, SuiteResult, merged_diagnosis
from kvprobe.evidence.suitedir import SuiteData, SuiteRun
from kvprobe.summary.build import summarise
from kvprobe.summary.quantiles import Ratio
from tests.summary.synthetic import Made, record

USERS = 3


def made(
    *,
    n: int = 40,
    ttft_ms: float = 100.0,
    gap_ms: float = 10.0,
    cached: int = 0,
    prompt: int = 870,
    gauges: dict[str, float] | None = None,
    counters: dict[str, float] | None = None,
    config: dict[str, str] | None = None,
    spread: float = 0.05,
) -> Made:
    """`USERS` users in a closed loop, every wait alike but for a spread that repeats."""
    found = Made(workload={"name": "part"})
    clocks = [0.0] * USERS
    for i in range(n):
        user = clocks.index(min(clocks))
        wobble = 1.0 + spread * ((i * 7) % 11 - 5) / 5
        row = record(
            i,
            sent_ms=clocks[user],
            ttft_ms=ttft_ms * wobble,
            gap_ms=[gap_ms * wobble] * 31,
            prompt=prompt,
            cached=cached,
            prefix=None,
        )
        found.records.append(row)
        clocks[user] += (ttft_ms + 31 * gap_ms) * wobble + 5.0
    found.marks()
    found.counter("engine.prefix_queries_tokens_total", 0.0, float(prompt * n))
    found.counter("engine.prefix_hits_tokens_total", 0.0, float(cached * n))
    found.counter("engine.prompt_tokens_total", 0.0, float(prompt * n))
    found.fact("prefix_hit_rate_ceiling", 0.9)
    found.fact("cache_config", {"block_size": "16", **(config or {})})
    steps = int(found.span_ms() / 100)
    for name, value in {"requests_running": float(USERS), **(gauges or {})}.items():
        found.gauge(f"engine.{name}", [value] * steps, every_ms=100.0)
    for name, value in (counters or {}).items():
        found.counter(f"engine.{name}", 0.0, value)
    return found


def run(built: Made, number: int, *, valid: bool = True) -> RunView:
    data = built.build()
    return RunView(number, data, summarise(data), valid)


def part(name: str, role: str | None, *rounds: Made) -> PartView:
    return PartView(name, role, [run(m, i) for i, m in enumerate(rounds, 1)])


def said(found: Answer) -> dict[str, Statement]:
    return {s.id: s for s in found.statements}


def three(a: dict[str, Any], b: dict[str, Any], rounds: int = 2) -> dict[str, Statement]:
    a = {"gauges": {"kv_used_bytes": 5e6}, **a}
    b = {"gauges": {"kv_used_bytes": 1e7}, **b}
    return said(
        controls(
            [
                part("a", "repeated", *(made(**a) for _ in range(rounds))),
                part("b", "distinct", *(made(**b) for _ in range(rounds))),
            ]
        )
    )


def test_prefill_is_saved_and_decode_unchanged() -> None:
    found = three({"ttft_ms": 30.0, "cached": 768}, {"ttft_ms": 200.0})
    assert found["meaning"].verdict == "shown"
    assert "saves prefill, never decode" in found["meaning"].text
    assert found["prefill_saved"].verdict == "shown"
    assert "88.3 % of its prompt tokens came from the cache" in found["prefill_saved"].text
    assert found["decode_unchanged"].verdict == "shown"
    assert found["memory_shared"].verdict == "shown"
    assert "50.0 % less" in found["memory_shared"].text


def test_no_reuse_is_told_with_the_hit_rate() -> None:
    found = three({"ttft_ms": 200.0}, {"ttft_ms": 200.0})
    assert found["prefill_saved"].verdict == "not_shown"
    assert "0.0 % of its prompt tokens came from the cache, and these prompts allow 90.0 %" in (
        found["prefill_saved"].text
    )
    assert "no better TTFT" in found["meaning"].text


def test_a_hit_that_gains_nothing_is_no_missing_reuse() -> None:
    found = three({"ttft_ms": 200.0, "cached": 768}, {"ttft_ms": 200.0})
    assert found["prefill_saved"].verdict == "not_shown"
    assert "No difference is shown" in found["prefill_saved"].text


def test_faster_without_hits_is_not_the_cache() -> None:
    found = three({"ttft_ms": 30.0}, {"ttft_ms": 200.0})
    assert found["prefill_saved"].verdict == "cannot_tell"
    assert "not by prefix reuse" in found["prefill_saved"].text


def test_a_repeated_prefix_that_is_slower() -> None:
    found = three({"ttft_ms": 300.0, "cached": 768}, {"ttft_ms": 100.0})
    assert found["prefill_saved"].verdict == "opposite"
    assert "worse TTFT" in found["meaning"].text


def test_decode_that_differs_is_said() -> None:
    found = three({"ttft_ms": 30.0, "cached": 768, "gap_ms": 20.0}, {"ttft_ms": 200.0})
    assert found["decode_unchanged"].verdict == "not_shown"
    assert "2.0" in found["decode_unchanged"].text
    assert found["meaning"].text == "Prefill is saved; decode is not unchanged (below)."


def test_few_requests_say_nothing() -> None:
    found = three({"n": 9, "ttft_ms": 30.0, "cached": 768}, {"n": 9, "ttft_ms": 200.0})
    assert found["prefill_saved"].verdict == "cannot_tell"
    assert "n too small (18 and 18 requests" in found["prefill_saved"].text
    assert found["decode_unchanged"].verdict == "cannot_tell"


def test_prompts_of_other_lengths_are_not_compared() -> None:
    found = three({"ttft_ms": 30.0, "cached": 768}, {"ttft_ms": 200.0, "prompt": 1200})
    assert found["prefill_saved"].verdict == "cannot_tell"
    assert "870 and 1,200 tokens are not alike" in found["prefill_saved"].text


def test_rounds_that_contradict_each_other_prove_nothing() -> None:
    """In one round (a) is faster, in the other slower: the machine, not the cache."""
    a = part("a", "repeated", made(ttft_ms=50.0, cached=768), made(ttft_ms=200.0, cached=768))
    b = part("b", "distinct", made(ttft_ms=150.0), made(ttft_ms=150.0))
    assert said(controls([a, b]))["prefill_saved"].verdict == "not_shown"


def test_parts_that_ran_once_need_a_larger_difference() -> None:
    assert three({"ttft_ms": 100.0, "cached": 768}, {"ttft_ms": 140.0}, 1)["prefill_saved"].verdict != "shown"
    assert three({"ttft_ms": 100.0, "cached": 768}, {"ttft_ms": 140.0}, 2)["prefill_saved"].verdict == "shown"
    assert three({"ttft_ms": 50.0, "cached": 768}, {"ttft_ms": 300.0}, 1)["prefill_saved"].verdict == "shown"


def test_memory_that_is_not_exported_is_not_zero() -> None:
    found = controls([part("a", "repeated", made(cached=768)), part("b", "distinct", made())])
    assert said(found)["memory_shared"].verdict == "cannot_tell"
    assert found.rows[0]["kv_held_max_bytes"] is None


def sizes(*specs: dict[str, Any], rounds: int = 2) -> Answer:
    parts = []
    for spec in specs:
        size = spec.pop("size")
        tail = spec.pop("tail")
        built = {
            "config": {"block_size": str(size)},
            "gauges": {
                "kv_tail_empty_bytes": tail * 1e7,
                "kv_stored_bytes": 1e7,
                "kv_block_table_bytes": 8e4 / size,
                "kv_blocks_used": 1e7 / size / 1e4,
                "kv_bytes_per_token": 4096.0,
            },
            "counters": {"engine_scheduling_seconds_total": 0.02, "engine_steps_total": 1000.0},
            **spec,
        }
        parts.append(part(f"block_{size}", None, *(made(**built) for _ in range(rounds))))
    return block_sizes(parts)


def test_the_block_size_of_least_waste_is_recommended_with_its_number() -> None:
    found = sizes({"size": 8, "tail": 0.02}, {"size": 32, "tail": 0.09}, {"size": 64, "tail": 0.2})
    assert found.recommendation is not None
    assert found.recommendation.facts["block_size"].value == 8
    assert "2.1 %" in found.recommendation.text
    assert said(found)["latency"].verdict == "not_shown"
    assert found.rows[0]["scheduling_per_step_s"] == pytest.approx(2e-5)


def test_sizes_of_like_waste_go_to_the_larger_block() -> None:
    found = sizes({"size": 8, "tail": 0.020}, {"size": 16, "tail": 0.025}, {"size": 64, "tail": 0.2})
    assert found.recommendation is not None
    assert found.recommendation.facts["block_size"].value == 16


def test_a_size_that_is_surely_slower_is_not_recommended() -> None:
    found = sizes({"size": 8, "tail": 0.02, "ttft_ms": 200.0}, {"size": 32, "tail": 0.09})
    assert found.recommendation is not None
    assert found.recommendation.facts["block_size"].value == 32
    assert said(found)["latency"].verdict == "shown"


def test_sizes_that_ran_once_are_not_told_apart_by_latency() -> None:
    found = sizes({"size": 8, "tail": 0.02, "ttft_ms": 130.0}, {"size": 32, "tail": 0.09}, rounds=1)
    assert said(found)["latency"].verdict == "cannot_tell"
    assert found.recommendation is not None
    assert found.recommendation.facts["block_size"].value == 8


def test_a_size_that_loses_hits_is_not_recommended() -> None:
    found = sizes({"size": 8, "tail": 0.09, "cached": 400}, {"size": 64, "tail": 0.02, "cached": 100})
    assert found.recommendation is not None
    assert found.recommendation.facts["block_size"].value == 8
    assert "loses hits" in found.recommendation.text


def test_nothing_is_recommended_from_what_is_not_exported() -> None:
    parts = [part(f"b{size}", None, made(config={"block_size": str(size)})) for size in (8, 16)]
    found = block_sizes(parts)
    assert found.recommendation is not None
    assert found.recommendation.verdict == "cannot_tell"
    assert said(found)["waste"].verdict == "cannot_tell"


def owners(ratio: float, *, alone_ms: float = 100.0, waiting: float = 5.0) -> Answer:
    def crowd(name: str, running: float, stored: float) -> PartView:
        gauges = {
            "requests_running": running,
            "requests_waiting": waiting,
            "kv_stored_bytes": stored,
            "kv_tail_empty_bytes": 0.0,
            "kv_reserved_empty_bytes": 1e7 - stored,
        }
        config = {"allocator": name}
        return part(f"{name}_crowd", "crowd", *(made(gauges=gauges, config=config) for _ in range(2)))

    def alone(name: str, ttft_ms: float) -> PartView:
        config = {"allocator": name}
        return part(f"{name}_alone", "alone", *(made(ttft_ms=ttft_ms, config=config) for _ in range(2)))

    return allocators(
        [
            crowd("contiguous", 3.0, 2e6),
            alone("contiguous", 100.0),
            crowd("paged", 3.0 * ratio, 9e6),
            alone("paged", alone_ms),
        ]
    )


def test_more_at_once_and_no_faster_alone_is_success() -> None:
    found = owners(4.0)
    assert said(found)["capacity_paged"].verdict == "shown"
    assert "4.00x" in said(found)["capacity_paged"].text
    assert said(found)["alone_paged"].verdict == "shown"
    assert "no faster, which is success too" in said(found)["alone_paged"].text
    assert "contiguous 20.0 %, paged 90.0 %" in said(found)["use_of_held"].text
    assert found.recommendation is not None
    assert found.recommendation.facts["allocator"].value == "paged"


def test_capacity_bought_with_latency_is_not_recommended() -> None:
    found = owners(4.0, alone_ms=400.0)
    assert said(found)["alone_paged"].verdict == "not_shown"
    assert "slower" in said(found)["alone_paged"].text
    assert found.recommendation is not None
    assert found.recommendation.verdict == "not_shown"


def test_without_a_queue_the_memory_was_not_the_limit() -> None:
    found = owners(4.0, waiting=0.0)
    assert said(found)["capacity_paged"].verdict == "cannot_tell"
    assert found.recommendation is not None
    assert found.recommendation.verdict == "not_shown"


def test_as_many_at_once_is_no_gain() -> None:
    found = owners(1.0)
    assert said(found)["capacity_paged"].verdict == "not_shown"


def test_invalid_parts_and_the_order_are_noted() -> None:
    runs = [
        ("a", "repeated", run(made(cached=768), 1)),
        ("b", "distinct", run(made(), 1, valid=False)),
        ("b", "distinct", run(made(), 2)),
        ("a", "repeated", run(made(cached=768), 2)),
    ]
    found = answer("three_controls", runs)
    assert found is not None
    assert "INVALID measurement in b" in found.notes[0]
    assert "a, b, b, a: forwards and backwards" in found.notes[1]
    assert {s.verdict for s in found.statements} == {"cannot_tell"}, "validity outranks every conclusion"
    assert found.statements[0].text.startswith("Nothing is concluded: the measurement is INVALID in b.")
    assert [len(p.runs) for p in part_views(runs)] == [2, 2]
    once = answer("three_controls", runs[:2])
    assert once is not None
    assert "each once" in once.notes[1]
    assert answer(None, runs) is None


@pytest.mark.parametrize(
    ("lo", "hi", "rounds", "verdict"),
    [
        (0.95, 1.05, 2, "unchanged"),
        (1.10, 1.60, 3, "differs"),
        (0.50, 0.80, 3, "differs"),
        (1.01, 1.30, 3, "cannot_tell"),
        (1.24, 1.66, 2, "cannot_tell"),
        (1.40, 1.66, 2, "differs"),
        (1.40, 1.66, 1, "cannot_tell"),
        (None, None, 2, "cannot_tell"),
    ],
)
def test_sameness(lo: float | None, hi: float | None, rounds: int, verdict: str) -> None:
    assert sameness(Ratio(value=1.0, lo=lo, hi=hi), rounds) == verdict


def test_mean_ratio_covers_the_truth_of_constant_readings() -> None:
    import numpy as np

    found = mean_ratio(np.full(20, 6.0), np.full(30, 3.0))
    assert (found.value, found.lo, found.hi) == (2.0, 2.0, 2.0)
    assert mean_ratio(np.zeros(0), np.ones(3)).value is None


def test_a_slow_answer_to_longer_prompts_is_no_saved_memory_and_no_slower_decode() -> None:
    found = three({"ttft_ms": 30.0, "cached": 768}, {"ttft_ms": 200.0, "prompt": 1200})
    assert found["memory_shared"].verdict == "cannot_tell"
    assert found["decode_unchanged"].verdict == "cannot_tell"
    assert "not alike" in found["decode_unchanged"].text


def test_a_little_less_memory_is_no_sharing() -> None:
    nearly = {"gauges": {"kv_used_bytes": 9.9e6}}
    assert three({"cached": 768, **nearly}, {})["memory_shared"].verdict == "not_shown"
    assert "no saving is shown" in three({"cached": 768, **nearly}, {})["memory_shared"].text
    without_hits = three({"cached": 0}, {})["memory_shared"]
    assert without_hits.verdict == "cannot_tell"
    assert "not by sharing" in without_hits.text


def test_without_a_hit_rate_a_gain_is_not_said_to_be_the_caches() -> None:
    def silent(**spec: Any) -> Made:
        built = made(**spec)
        built.samples = [s for s in built.samples if "prefix" not in s.metric]
        built.records = [msgspec.structs.replace(r, cached_tokens=None) for r in built.records]
        return built

    a = part("a", "repeated", silent(ttft_ms=30.0), silent(ttft_ms=30.0))
    b = part("b", "distinct", silent(ttft_ms=200.0), silent(ttft_ms=200.0))
    found = said(controls([a, b]))["prefill_saved"]
    assert found.verdict == "shown"
    assert "that it is the cache is not shown" in found.text
    assert "Prefill saved" not in found.text


def test_distinct_prompts_that_hit_are_no_control() -> None:
    same = three({"ttft_ms": 100.0, "cached": 768}, {"ttft_ms": 100.0, "cached": 700})["prefill_saved"]
    assert same.verdict == "cannot_tell"
    assert "has no control" in same.text
    less = three({"ttft_ms": 30.0, "cached": 768}, {"ttft_ms": 100.0, "cached": 300})["prefill_saved"]
    assert less.verdict == "shown"
    assert "the gain would be larger" in less.text


def test_what_is_left_when_the_slow_ones_failed_is_no_sample() -> None:
    def failing() -> Made:
        built = made(ttft_ms=200.0, n=60)
        built.records = [
            msgspec.structs.replace(r, failure="timeout_first") if i % 5 == 0 else r
            for i, r in enumerate(built.records)
        ]
        return built

    a = part("a", "repeated", made(ttft_ms=30.0, cached=768), made(ttft_ms=30.0, cached=768))
    found = said(controls([a, part("b", "distinct", failing(), failing())]))["prefill_saved"]
    assert found.verdict == "cannot_tell"
    assert "20.0 % of the requests of b failed" in found.text


def test_lengths_that_nobody_counted() -> None:
    built = made()
    built.records = [msgspec.structs.replace(r, prompt_tokens=None) for r in built.records]
    found = said(controls([part("c", "mixed", built)]))["lengths_mixed"]
    assert found.verdict == "cannot_tell"
    assert "reports no prompt tokens" in found.text


def test_a_crowd_whose_warm_up_lasts_as_long_as_its_queue_is_still_read() -> None:
    """Under a queue the last warm-up request ends when the queue does; the memory was full all the while."""

    def crowd(name: str, running: float) -> Made:
        built = made(
            gauges={"requests_running": running, "requests_waiting": 5.0}, config={"allocator": name}
        )
        first = built.records[0]
        end = max(r.end_ns or 0 for r in built.records)
        built.records.insert(0, msgspec.structs.replace(first, request_id="w", warmup=True, end_ns=end))
        return built

    parts = [
        part(f"{n}_crowd", "crowd", crowd(n, r), crowd(n, r)) for n, r in (("contiguous", 3), ("paged", 9))
    ]
    found = said(allocators(parts))["capacity_paged"]
    assert found.verdict == "shown"
    assert "3.00x" in found.text


def test_what_spoils_a_measurement_stands_before_what_it_shows() -> None:
    def run_of(name: str, cause: str, *, valid: bool) -> Any:
        finding = Finding(
            cause=cause,
            role="primary",
            confidence="certain",
            symptom=None,
            why="so",
            evidence=[],
            check_first=[],
            remedy=[],
            would_change_my_mind=[],
        )
        validity = Validity(valid=valid, reasons=[] if valid else ["late"], warnings=[])
        diagnosis = Diagnosis(primary=cause, findings=[finding], observations=[], validity=validity)
        built = run(made(), 1)
        return JudgedRun(SuiteRun(name, None, 1, None, built.data), built.summary, diagnosis)

    result = SuiteResult(SuiteData(Path("x"), "complete", {}))
    result.runs = [
        run_of("a", "kv_pool_pressure", valid=True),
        run_of("b", "client_bound", valid=False),
    ]
    merged = merged_diagnosis(result)
    assert [f.cause for f in merged.findings] == ["client_bound", "kv_pool_pressure"]
    assert merged.primary == "client_bound"
    assert [f.role for f in merged.findings] == ["primary", "secondary"]
