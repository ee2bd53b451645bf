"""Pages on which the same quantity stands more than once, and numbers that no share can have."""

from __future__ import annotations

import math

import pytest

from kvprobe.observe.dialects import Absent, Page, read_page


def values(page: Page) -> dict[str, float]:
    return {metric: value for metric, labels, value in page.readings if not labels}


def test_expert_parallel_ranks_of_one_engine_are_copies() -> None:
    line = 'sglang:num_running_reqs{tp_rank="%d",pp_rank="0",moe_ep_rank="%d",dp_rank="%d"} 4\n'
    lines = [line % (rank, rank, rank // 2) for rank in range(4)]
    assert values(read_page("".join(lines))) == {"engine.requests_running": 8}


def test_the_priorities_of_sglang_are_parts_of_its_total() -> None:
    """With priority scheduling the total has an empty label; without it there is no such label."""
    name = "sglang:num_queue_reqs"
    parts = f'{name}{{priority="1",tp_rank="0"}} 3\n{name}{{priority="2",tp_rank="0"}} 1\n'
    page = read_page(f'{parts}{name}{{priority="",tp_rank="0"}} 4\n')
    assert values(page) == {"engine.requests_waiting": 4}
    assert page.names == {"engine.requests_waiting": name}
    assert values(read_page(f'{name}{{tp_rank="0"}} 4\n')) == {"engine.requests_waiting": 4}


BLOCKS = 'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="%s"} %s\n'


@pytest.mark.parametrize(
    "page",
    [
        BLOCKS % ("used", "300") + BLOCKS % ("max", "100"),
        BLOCKS % ("used", "+Inf") + BLOCKS % ("max", "100"),
        "sglang:num_used_tokens -5\nsglang:max_total_num_tokens 100\n",
        "vllm:kv_cache_usage_perc +Inf\n",
    ],
)
def test_a_share_that_is_none_is_not_believed_wherever_it_comes_from(page: str) -> None:
    read = read_page(page)
    assert read.look("engine.kv_usage_ratio") is Absent.NO_READING
    assert math.isnan(values(read)["engine.kv_usage_ratio"])
    assert "no share" in read.doubts["engine.kv_usage_ratio"]


@pytest.mark.parametrize(
    ("line", "canonical"),
    [
        ("vllm:time_in_queue_requests_sum 3\n", "engine.queue_seconds_sum"),
        ("vllm:model_forward_time_milliseconds_sum 3\n", "engine.model_forward_milliseconds_sum"),
        ("llamacpp:prompt_tokens_seconds 3\n", "engine.prompt_tokens_per_s"),
        ("llamacpp:predicted_tokens_seconds 3\n", "engine.generation_tokens_per_s"),
        ("dynamo_frontend_output_sequence_tokens_sum 3\n", "engine.generation_tokens_total"),
        ("dynamo_router_queue_pending_requests 3\n", "engine.router_requests_waiting"),
        ('nv_trt_llm_request_metrics{request_type="context"} 3\n', "engine.requests_in_context_phase"),
        (
            'nv_trt_llm_inflight_batcher_metrics{inflight_batcher_specific_metric="generation_requests"} 3\n',
            "engine.requests_in_generation_phase",
        ),
        ("nv_inference_compute_output_duration_us 3\n", "engine.triton_compute_output_us_total"),
    ],
)
def test_names_of_the_engines_that_are_seldom_seen(line: str, canonical: str) -> None:
    assert values(read_page(line)) == {canonical: 3}


def test_of_a_counter_and_a_sum_that_tell_the_same_one_counts() -> None:
    both = "dynamo_frontend_output_sequence_tokens_sum 3\ndynamo_frontend_output_tokens_total 5\n"
    assert values(read_page(both)) == {"engine.generation_tokens_total": 5}
    queued = "vllm:time_in_queue_requests_sum 3\nvllm:request_queue_time_seconds_sum 5\n"
    assert values(read_page(queued)) == {"engine.queue_seconds_sum": 5}
