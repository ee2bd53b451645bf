"""The questions that a replay answers: who held the pool, tails of one mean, sweeps, the smallest pool."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvprobe.errors import UsageError
from kvprobe.plan.simulate.answer import Question, answer
from kvprobe.plan.simulate.ask import Ask, resolve
from kvprobe.plan.simulate.replay import Replay
from kvprobe.plan.simulate.settings import MAX_BLOCKS
from kvprobe.plan.simulate.sweep import parse_limit


def quiet(rows: int, at_s: float) -> None:
    """No progress."""


def silent(words: str, *, passing: bool = True) -> None:
    """No words."""


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def replay(path: Path, ask: Ask, **more: object) -> Replay:
    return answer(Question(ask=ask, trace=path, **more), quiet, silent)  # type: ignore[arg-type]


ASK = Ask(
    bytes_per_token="1000",
    blocks="101",
    block_size="10",
    engine="reference",
    max_num_seqs="16",
    max_num_batched_tokens="512",
)


def even(count: int, tokens: int, out: int) -> list[dict[str, object]]:
    return [{"t": 0.05 * i, "in": tokens, "out": out} for i in range(count)]


def one_mean_two_tails(folder: Path) -> tuple[Path, Path]:
    """200 requests of 100 tokens each; and of the same mean, most of 60 tokens and a few of 860."""
    same = write(folder / "same.jsonl", even(200, 80, 20))
    rows = [
        {"t": 0.05 * i, "in": 840 if i % 20 == 10 else 40, "out": 20, "session": f"s{i}"} for i in range(200)
    ]
    return same, write(folder / "tail.jsonl", rows)


def test_two_traces_of_one_mean_differ_in_what_the_tail_does(tmp_path: Path) -> None:
    same, tail = one_mean_two_tails(tmp_path)
    ask = replace(ASK, blocks="81")
    found = replay(same, ask, beside=tail)
    other = found.beside
    assert other is not None
    assert found.trace.in_tokens_mean == other.trace.in_tokens_mean == 80
    assert found.requests.refused == 0
    assert other.requests.refused == 10  # 860 tokens do not fit into 800
    wide = replay(same, ASK, beside=tail)
    assert wide.beside is not None
    assert wide.beside.requests.refused == 0
    slow, fast = wide.beside.metrics["ttft_s"], wide.metrics["ttft_s"]
    assert slow is not None
    assert fast is not None
    assert slow.p99 > fast.p99
    assert wide.concentration is not None
    assert wide.beside.concentration is not None
    assert wide.beside.concentration.byte_seconds_share > 3 * wide.concentration.byte_seconds_share


def test_when_the_pool_runs_out_the_holders_are_named(tmp_path: Path) -> None:
    rows = [
        {"t": 0.0, "in": 700, "out": 300, "session": "long"},
        *({"t": 1.0 + 0.01 * i, "in": 90, "out": 40, "session": f"s{i}"} for i in range(8)),
    ]
    found = replay(write(tmp_path / "t.jsonl", rows), ASK)
    assert found.exhaustions.count > 0
    first = found.exhaustions.moments[0]
    assert first.holders[0].session == "long"
    assert first.holders[0].line == 1
    assert first.holders[0].tokens >= 700
    assert first.holders[0].share > 0.7
    assert first.holders[0].age_s >= 1.0
    assert found.exhaustions.first_s == first.t_s
    assert found.concentration is not None
    assert found.concentration.heaviest[0].session == "long"


def test_a_pool_that_is_never_full_names_nobody(tmp_path: Path) -> None:
    found = replay(write(tmp_path / "t.jsonl", even(5, 20, 3)), ASK)
    assert found.exhaustions.count == 0
    assert found.exhaustions.first_s is None
    assert found.preemptions.events == 0
    assert found.requests.ok == 5


def test_reservation_and_regions_hold_fewer_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [{"t": 0.0, "in": 50, "out": 50}] * 40)
    runs = {
        name: replay(path, replace(ASK, allocator=name, max_model_len="500", max_tokens="200"))
        for name in ("paged", "paged-reserve", "contiguous")
    }
    means = {name: run.concurrency.mean for name, run in runs.items()}
    assert means["paged"] > means["paged-reserve"] > means["contiguous"]
    assert runs["contiguous"].concurrency.peak == 2
    ratio = runs["contiguous"].pool.physical_over_logical
    assert ratio is not None
    assert ratio > 4
    assert runs["paged-reserve"].preemptions.events == 0


def test_a_sweep_is_a_table_with_its_knee(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", even(60, 80, 40))
    found = replay(path, ASK, sweeps=("blocks=31,61,201,801", "block-size=5,10,20"))
    blocks, sizes = found.sweeps
    assert [row.value for row in blocks.rows] == ["31", "61", "201", "801"]
    assert [row.usable_blocks for row in blocks.rows] == [30, 60, 200, 800]
    waits = [row.queue_p95_s for row in blocks.rows]
    assert waits == sorted(waits, reverse=True)  # type: ignore[type-var]
    assert blocks.knee in ("201", "801")
    assert [row.value for row in sizes.rows] == ["5", "10", "20"]
    ratios = [row.physical_over_logical or 0 for row in sizes.rows]
    assert ratios == sorted(ratios)


def test_the_smallest_pool_keeps_the_limit_and_the_next_smaller_does_not(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", even(60, 80, 40))
    found = replay(path, ASK, find_pool="queue.p95 <= 400ms").smallest
    assert found is not None
    assert found.usable_blocks is not None
    assert found.measured is not None
    assert found.measured <= 0.4
    less = replay(path, replace(ASK, blocks=str(found.usable_blocks)))
    assert less.metrics["queue_s"] is not None  # one block less than found, for the null block
    assert less.metrics["queue_s"].p95 > 0.4
    impossible = replay(path, ASK, find_pool="ttft.p50 < 1ms").smallest
    assert impossible is not None
    assert impossible.usable_blocks is None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"engine": "vlm"}, "bad_value"),
        ({"blocks": None}, "no_pool"),
        ({"pool": "1GiB"}, "no_pool"),
        ({"max_num_seqs": "0"}, "bad_value"),
        ({"max_num_batched_tokens": "8"}, "bad_value"),
        ({"allocator": "contiguous"}, "bad_value"),
        ({"preemption": "swap"}, "no_swap_space"),
        ({"swap_space": "1GiB"}, "conflict"),
        ({"gpu": "H100"}, "no_model"),
        ({"kv_dtype": "fp8"}, "conflict"),
        ({"watermark": "1"}, "bad_value"),
        ({"blocks": "1"}, "bad_pool"),
    ],
)
def test_options_that_make_no_sense_are_named(change: dict[str, str | None], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(replace(ASK, **change))  # type: ignore[arg-type]
    assert caught.value.problems[0].code == code
    assert caught.value.problems[0].fix


@pytest.mark.parametrize(
    "limit", ["ttft.p95 <= 5%", "ttft.p95 <= 2", "preempted <= 10ms", "preemptions <= 3%"]
)
def test_a_limit_in_the_wrong_unit_is_refused(limit: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_limit(limit)
    assert caught.value.problems[0].code == "bad_limit"


def test_a_search_for_a_pool_ends_at_the_largest_one(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", even(3, 80, 40))
    found = replay(path, replace(ASK, blocks=str(MAX_BLOCKS // 2)), find_pool="ttft.p50 < 1ms").smallest
    assert found is not None
    assert found.usable_blocks is None


def test_more_memory_than_there_is_is_no_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object, **more: object) -> None:
        raise MemoryError

    monkeypatch.setattr("kvprobe.plan.simulate.server._empty", full)
    with pytest.raises(UsageError) as caught:
        replay(write(tmp_path / "t.jsonl", even(3, 80, 40)), ASK)
    assert caught.value.problems[0].code == "too_large"


def test_who_waits_wanted_more_than_there_was(tmp_path: Path) -> None:
    """vLLM asks for the whole prompt: what it takes first would have had room."""
    ask = replace(ASK, engine="vllm", max_num_seqs="4", max_num_batched_tokens="64")
    found = replay(write(tmp_path / "t.jsonl", even(12, 500, 20)), ask)
    waits = [moment for moment in found.exhaustions.moments if moment.kind == "admission"]
    assert waits
    assert all(moment.wanted_blocks > moment.available_blocks for moment in waits)
