"""Pages as a diagnosis takes them, and pages that are there to harm."""

from __future__ import annotations

import pytest

from kvprobe.observe.dialects import read_page
from kvprobe.observe.logs.from_metrics import events_of


def hit_rate(text: str) -> float | None:
    events = events_of(read_page(text), "page")
    told = events[0].values.get("prefix_hit_rate") if events else None
    return None if told is None else float(told.value)


@pytest.mark.parametrize(
    ("page", "rate"),
    [
        ("vllm:prefix_cache_queries_total 200\nvllm:prefix_cache_hits_total 50\n", 0.25),
        ("trtllm_kv_cache_reused_blocks_total 30\ntrtllm_kv_cache_missed_blocks_total 10\n", 0.75),
        ('sglang:prompt_tokens_total 100\nsglang:cached_tokens_total{cache_source="device"} 30\n'
         'sglang:cached_tokens_total{cache_source="host"} 10\n', 0.4),
        ("lmdeploy:prompt_tokens_total 100\nlmdeploy:cached_tokens_total 60\n", 0.6),
        # An average that nobody explains, nothing asked, more found than asked, and none told.
        ("sglang:cache_hit_rate 0.9\nsglang:num_running_reqs 1\n", None),
        ("lmdeploy:prompt_tokens_total 0\nlmdeploy:cached_tokens_total 0\n", None),
        ("sglang:prompt_tokens_total 10\nsglang:cached_tokens_total 30\nsglang:num_running_reqs 1\n", None),
        ("sglang:prompt_tokens_total 10\nsglang:num_running_reqs 1\n", None),
    ],
)  # fmt: skip
def test_hit_rates_of_a_saved_page(page: str, rate: float | None) -> None:
    assert hit_rate(page) == rate


def test_ranks_of_one_engine_are_copies_and_groups_add_up() -> None:
    lines = [
        f'sglang:{name}{{dp_rank="{rank // 2}",tp_rank="{rank}"}} {value}\n'
        for rank in range(4)
        for name, value in (("num_running_reqs", 3 + rank // 2), ("token_usage", 0.2 + 0.4 * (rank // 2)))
    ]
    page = read_page("".join(lines))
    assert page.look("engine.requests_running") == 3 + 4
    assert page.look("engine.kv_usage_ratio") == pytest.approx(0.4)
    engines = {labels["engine"]: value for name, labels, value in page.parts if "running" in name}
    assert engines == {"0": 3, "1": 4}
    one = "".join(f'sglang:num_running_reqs{{tp_rank="{rank}"}} 5\n' for rank in range(8))
    assert read_page(one).look("engine.requests_running") == 5


def test_a_page_of_very_many_engines_is_read() -> None:
    """Forty thousand label sets: work that grew with their square would not end."""
    page = read_page("".join(f'vllm:num_requests_running{{engine="{i}"}} 1\n' for i in range(40_000)))
    assert page.look("engine.requests_running") == 40_000
    assert len(page.parts) == 40_000
