"""Rates and percentiles between looks: restarts, several engines, any bucket edges, holes."""

from __future__ import annotations

import pytest

from kvprobe.observe.dialects import read_page
from kvprobe.watch.window import MIN_LOOKS, Window
from tests.watch.pages import S, numbers, vllm, window


def test_a_rate_is_growth_over_the_time_between_looks() -> None:
    got = numbers([vllm(made=100), vllm(made=160), vllm(made=190)])["generated_tokens_per_s"]
    assert (got.value, got.n, got.window_s, got.state) == (45, 90, 2, "read")
    assert got.series == "vllm:generation_tokens_total"


def test_a_counter_survives_a_restart() -> None:
    grown = window([vllm(made=m) for m in (100, 160, 30, 40)]).growth("engine.generation_tokens_total")
    assert grown is not None
    assert (grown[0].value, grown[0].resets) == (100, 1)


def test_one_of_two_engines_restarts() -> None:
    """Of the sum (300, 120, 130) alone it could not be told."""
    pages = [vllm("0", made=a) + vllm("1", made=b) for a, b in ((100, 200), (110, 10), (120, 10))]
    looks = window(pages)
    grown = looks.growth("engine.generation_tokens_total")
    assert grown is not None
    assert grown[0].value == 20 + 10
    assert looks.restarted_s_ago() == 1


def test_a_restart_is_seen_behind_a_sum_that_grows() -> None:
    old, new = [("1", 900.0), ("+Inf", 900.0)], [("1", 4.0), ("+Inf", 4.0)]
    busy = [("1", 100.0), ("+Inf", 100.0)]
    looks = window(
        [
            vllm("0", made=100, ttft=busy) + vllm("1", made=200, ttft=old),
            vllm("0", made=900, ttft=busy) + vllm("1", made=10, ttft=new),
        ]
    )
    assert looks.restarted_s_ago() == 0
    grown = looks.growth("engine.generation_tokens_total")
    assert grown is not None
    assert grown[0].value == 800 + 10
    # 104 observations would be the sum of both lives: nothing is said instead.
    assert looks.quantile("engine.ttft_seconds", 0.5) == (None, 0)


def test_percentiles_come_from_what_a_histogram_took_in() -> None:
    old = [("0.1", 1000.0), ("0.5", 1000.0), ("+Inf", 1000.0)]
    new = [("0.1", 1000.0), ("0.5", 1008.0), ("+Inf", 1010.0)]
    got = numbers([vllm(kv=0.1, ttft=old), vllm(kv=0.1, ttft=new)])
    assert got["ttft_p50_s"].value == pytest.approx(0.1 + 0.4 * 5 / 8)
    assert got["ttft_p50_s"].n == 10
    # The two slowest lie above the last edge: no more can be said than that.
    assert (got["ttft_p95_s"].value, got["ttft_p95_s"].at_least) == (0.5, True)


def test_a_server_that_comes_back_with_other_buckets() -> None:
    pages = [
        vllm(ttft=[("1", 5.0), ("+Inf", 5.0)]),
        vllm(ttft=[("2", 1.0), ("+Inf", 1.0)]),
        vllm(ttft=[("2", 3.0), ("+Inf", 3.0)]),
    ]
    got = numbers(pages)["ttft_p50_s"]
    assert (got.value, got.n) == (1.0, 2)


def test_every_way_to_have_no_number_has_its_own_name() -> None:
    first = numbers([vllm(kv=0.5, made=1)])
    assert first["generated_tokens_per_s"].state == "not_yet"
    assert first["swapped"].state == "not_exported"
    nan = numbers(["# TYPE vllm:num_requests_waiting gauge\n" + vllm(kv="NaN", made=1)] * 2)
    assert nan["kv_usage"].state == "no_reading"
    assert nan["waiting"].state == "no_reading"
    none = numbers([vllm(hits=5, queries=10)] * 2)["prefix_hit_rate"]
    assert (none.state, none.note) == ("no_reading", "no prompt in the window")
    assert all(number.value is None for number in (*first.values(), *nan.values()) if number.state != "read")


def test_a_percentage_where_a_share_is_expected_is_not_believed() -> None:
    page = read_page(vllm(kv=42.0))
    assert page.doubts["engine.kv_usage_ratio"] == (
        "vllm:kv_cache_usage_perc says 42, which is no share between 0 and 1"
    )
    assert numbers([vllm(kv=42.0)])["kv_usage"].state == "no_reading"


@pytest.mark.parametrize(
    ("before", "after", "rate", "series"),
    [
        (vllm(hits=0, queries=100), vllm(hits=80, queries=200), 0.8, "prefix_cache_hits_total"),
        (
            "trtllm_kv_cache_reused_blocks_total 5\ntrtllm_kv_cache_missed_blocks_total 5\n",
            "trtllm_kv_cache_reused_blocks_total 8\ntrtllm_kv_cache_missed_blocks_total 6\n",
            0.75,
            "reused_blocks",
        ),
        (
            "sglang:cached_tokens_total 0\nsglang:prompt_tokens_total 0\nsglang:cache_hit_rate 0.9\n",
            "sglang:cached_tokens_total 10\nsglang:prompt_tokens_total 100\nsglang:cache_hit_rate 0.9\n",
            0.1,
            "cached_tokens",
        ),
        (
            "llamacpp:prompt_tokens_cached_total 0\nllamacpp:prompt_tokens_total 0\n",
            "llamacpp:prompt_tokens_cached_total 30\nllamacpp:prompt_tokens_total 10\n",
            0.75,
            "cached",
        ),
    ],
    ids=["vllm", "trtllm", "sglang", "llama.cpp"],
)
def test_the_hit_rate_is_a_share_of_this_windows_prompts(
    before: str, after: str, rate: float, series: str
) -> None:
    got = numbers([before, after])["prefix_hit_rate"]
    assert got.value == pytest.approx(rate)
    assert series in got.series
    assert got.window_s == 1


def test_a_rate_of_the_engines_own_says_so_and_minus_one_is_none() -> None:
    v0 = "vllm:num_requests_swapped 0\nvllm:gpu_prefix_cache_hit_rate"
    got = numbers([f"{v0} 0.4\n"] * 2)["prefix_hit_rate"]
    assert (got.value, got.note) == (0.4, "the engine's own average, not of this window")
    assert numbers([f"{v0} -1\n"] * 2)["prefix_hit_rate"].value is None


def test_the_window_forgets_what_is_old_and_keeps_a_few() -> None:
    looks = Window(span_s=10)
    for second in range(60):
        looks.add(second * S, read_page(vllm(kv=0.1)))
    assert len(looks) == 11
    for minute in range(2, 9):
        looks.add(minute * 60 * S, read_page(vllm(kv=0.1)))
    assert len(looks) == MIN_LOOKS


def test_the_size_of_the_pool_is_the_engines_own_word_first() -> None:
    info = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"%s} 1\n'
    assert numbers([info % ""])["kv_pool_tokens"].value == 1600
    assert numbers([info % ',kv_cache_size_tokens="1584"'])["kv_pool_tokens"].value == 1584
    assert numbers([info % ',kv_cache_size_tokens="None"'])["kv_pool_tokens"].value == 1600
    hostile = 'vllm:cache_config_info{block_size="\u0664",num_gpu_blocks="-1"} 1\n'
    assert numbers([hostile])["kv_pool_tokens"].state == "not_exported"
