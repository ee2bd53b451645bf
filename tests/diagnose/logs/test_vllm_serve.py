"""vLLM while it serves: what the stats and preemption lines prove, and what they do not."""

from __future__ import annotations

from tests.diagnose.logs.reading import diagnose, events, finding, first, observations, oom, traceback


def v1(
    second: int, *, running: int, waiting: int, usage: float, generation: float = 800.0, extra: str = ""
) -> str:
    return (
        f"(APIServer pid=1) INFO 01-05 10:{second // 60:02d}:{second % 60:02d} [loggers.py:257] "
        "Engine 000: Avg prompt "
        f"throughput: 210.0 tokens/s, Avg generation throughput: {generation:.1f} tokens/s, Running: "
        f"{running} reqs, "
        f"Waiting: {waiting} reqs, {extra}GPU KV cache usage: {usage:.1f}%, Prefix cache hit rate: 3.0%"
    )


def v0(second: int, *, running: int, pending: int, usage: float) -> str:
    return (
        f"INFO 05-07 10:00:{second:02d} metrics.py:334] Avg prompt throughput: 900.0 tokens/s, Avg "
        "generation throughput: "
        f"640.0 tokens/s, Running: {running} reqs, Swapped: 0 reqs, Pending: {pending} reqs, GPU KV "
        "cache usage: "
        f"{usage:.1f}%, CPU KV cache usage: 0.0%."
    )


def preempted(
    second: int, count: int, *, mode: str = "RECOMPUTE", spelling: str = "total_num_cumulative_preemption"
) -> str:
    return (
        f"WARNING 05-07 10:00:{second:02d} scheduler.py:1057] Sequence group cmpl-{second} is preempted by "
        f"PreemptionMode.{mode} mode because there is not enough KV cache space. This can affect the "
        "end-to-end "
        "performance. Increase gpu_memory_utilization or tensor_parallel_size to provide more KV "
        "cache memory. "
        f"{spelling}={count}"
    )


def test_s10_fragmentation_decides_but_the_budget_is_the_root() -> None:
    text = (
        f"{traceback('run_busy_loop', 'execute_model')}\n"
        f"{oom('50.00 MiB', 23.56, '21.75 MiB', 22.40, '275.00 MiB', process=23.53)}"
    )
    answer = diagnose(text)
    assert answer.primary == "gpu_memory_utilization_too_high"
    assert "the root is the budget" in answer.findings[0].why
    assert "95.1 % of the card" in answer.findings[0].why
    pieces = finding(answer, "allocator_fragmentation")
    assert pieces.role == "secondary"
    assert "needs 50.0 MiB, has 297 MiB in pieces, 21.8 MiB in one piece" in pieces.why


def test_s12_the_first_cause_and_not_its_echoes() -> None:
    wrapper = (
        "(APIServer pid=1) ERROR 10-20 10:00:09 [async_llm.py:480] "
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore "
        "encountered an issue. See stack trace (above) for the root cause."
    )
    ranks = "\n".join(
        f"(Worker_TP{n} pid={40 + n}) ERROR 10-20 10:00:0{n} [multiproc_executor.py:700] "
        "RuntimeError: CUDA error: an "
        "illegal memory access was encountered"
        for n in range(4)
    )
    answer = diagnose(f"{ranks}\n{wrapper}\n")
    assert answer.primary == "gpu_software_fault"
    assert answer.findings[0].evidence[0].line == 1
    assert [f.role for f in answer.findings].count("primary") == 1


def test_s12_an_echo_alone_is_unknown_and_says_what_to_collect() -> None:
    answer = diagnose(
        "ERROR 06-01 10:00:00 async_llm_engine.py:56] Engine background task failed\n"
        "vllm.engine.async_llm_engine.AsyncEngineDeadError: Background loop has errored already."
    )
    assert answer.primary == "unknown"
    assert any("traceback" in r for r in answer.findings[0].remedy)


def test_s15_concurrency_is_in_requests_of_the_longest_kind() -> None:
    blocks = first(
        "INFO 01-01 10:00:00 gpu_executor.py:122] # GPU blocks: 127626, # CPU blocks: 2048\n"
        "INFO 01-01 10:00:00 gpu_executor.py:126] Maximum concurrency for 2048 tokens per request: 997.08x",
        "pool_size",
    )
    assert blocks["block_size"] == 16
    assert round(blocks["tokens"] / 2048, 2) == 997.08
    small = first(
        "INFO 01-01 10:00:00 gpu_executor.py:122] # GPU blocks: 1381, # CPU blocks: 2048\n"
        "INFO 01-01 10:00:00 gpu_executor.py:126] Maximum concurrency for 2048 tokens per request: 10.79x",
        "pool_size",
    )
    assert round(small["tokens"] / 2048, 2) == 10.79


def test_s15_the_worst_case_is_said_as_such() -> None:
    seen = observations(
        "INFO 04-24 16:33:13 [kv_cache_utils.py:634] GPU KV cache size: 37,760 tokens, Maximum "
        "concurrency for 8,192 "
        "tokens per request: 4.61x"
    )
    assert seen
    assert "8,192" in seen[0].text


def test_s16_two_lines_that_contradict_each_other() -> None:
    seen = observations(
        "INFO 04-24 16:33:13 [kv_cache_utils.py:634] GPU KV cache size: 290,864 tokens\n"
        "INFO 04-24 16:33:13 [kv_cache_utils.py:637] Maximum concurrency for 32,768 tokens per "
        "request: 33.04x"
    )
    assert any("1,082,655" in o.text for o in seen)


def test_s18_the_count_is_in_the_line_not_the_lines() -> None:
    text = "\n".join(
        [
            "INFO 05-07 09:59:00 gpu_executor.py:122] # GPU blocks: 2000, # CPU blocks: 2048",
            preempted(1, 1),
            v0(2, running=70, pending=30, usage=99.2),
            preempted(20, 51),
            v0(22, running=64, pending=41, usage=99.6),
            preempted(40, 101),
        ]
    )
    answer = diagnose(text)
    assert answer.primary == "kv_pool_pressure"
    assert "101 preemptions" in answer.findings[0].why
    assert any("32,000 KV tokens / p95" in r for r in answer.findings[0].remedy)


def test_s18_both_spellings_and_both_modes() -> None:
    text = preempted(1, 7, mode="SWAP", spelling="total_cumulative_preemption_cnt")
    event = first(text, "preemption")
    assert (event["mode"], event["total"]) == ("SWAP", 7)


def test_few_long_requests_are_another_cause_than_many() -> None:
    lines = [
        preempted(1, 1),
        v0(2, running=2, pending=3, usage=99.2),
        v0(9, running=2, pending=3, usage=99.9),
    ]
    assert diagnose("\n".join(lines)).primary == "logical_kv_too_large"


def test_the_v0_hit_rate_stands_in_the_next_line() -> None:
    text = (
        v0(2, running=7, pending=0, usage=44.0)
        + "\nINFO 05-07 10:00:02 metrics.py:350] Prefix cache hit rate: GPU: 61.20%, CPU: 0.00%"
    )
    stats = first(text, "engine_stats")
    assert stats["prefix_hit_rate"] == 0.612
    assert stats["kv_usage"] == 0.44


def test_v1_stats_with_every_field() -> None:
    line = v1(5, running=12, waiting=4, usage=91.5, extra="Preemptions: 3, ")
    stats = first(line, "engine_stats")
    assert (stats["running"], stats["waiting"], stats["preemptions"]) == (12, 4, 3)
    cpu = first(line.replace("GPU KV", "CPU KV"), "engine_stats")
    assert cpu["kv_usage"] == stats["kv_usage"]


def test_s19_full_and_streaming_is_not_stuck() -> None:
    streaming = "\n".join(v1(10 * n, running=38, waiting=9, usage=98.0, generation=850.0) for n in range(6))
    assert diagnose(streaming).primary == "kv_pool_pressure"


def test_s20_usage_that_stays_with_nothing_running() -> None:
    busy = [v1(10 * n, running=9, waiting=0, usage=97.0) for n in range(3)]
    idle = [v1(30 + 10 * n, running=0, waiting=0, usage=96.5, generation=0.0) for n in range(6)]
    assert diagnose("\n".join([*busy, *idle])).primary == "kv_pool_leak"


def test_s24_no_finding_promises_speed_of_a_smaller_cache() -> None:
    text = "\n".join([preempted(1, 51), v0(2, running=70, pending=30, usage=99.2)])
    texts = [t for f in diagnose(text).findings for t in [f.why, *f.remedy]]
    assert any("fp8" in t for t in texts)
    assert not any("faster" in t or "speed" in t for t in texts if "fp8" in t)


def test_s25_lora_buffers_above_the_rank_in_use() -> None:
    answer = diagnose('vllm serve acme/m --enable-lora --max-lora-rank 64 --max-num-seqs 8\n{\n  "r": 16,\n}')
    assert answer.primary == "reservation_policy_waste"
    assert "75.0 %" in answer.findings[0].why


def test_a_quiet_server_is_healthy() -> None:
    text = "\n".join(v1(10 * n, running=6, waiting=0, usage=48.0 + n) for n in range(4))
    answer = diagnose(text)
    assert answer.primary == "healthy_baseline"
    assert answer.findings == []


def test_a_request_above_the_context_is_no_fault_of_memory() -> None:
    answer = diagnose(
        "ValueError: This model's maximum context length is 4096 tokens. However, you requested 6100 "
        "tokens (5844 in the "
        "messages, 256 in the completion). Please reduce the length of the messages or completion."
    )
    assert answer.primary == "context_limit_truncation"
    assert "6,100 tokens against 4,096" in answer.findings[0].why


def test_every_frame_is_kept_once_and_ranks_are_folded() -> None:
    message = oom("96.00 MiB", 39.38, "44.00 MiB", 38.4, "30.00 MiB", process=39.2)
    rank = "(Worker_TP{n} pid={n}) ERROR 03-01 10:00:0{n} [multiproc_executor.py:700] "
    text = "\n".join(rank.format(n=n) + message.replace("GPU 0", f"GPU {n}") for n in range(8))
    found = events(text, "torch_oom")
    assert len(found) == 1
    assert found[0].repeats == 8


def test_garbled_output_of_a_small_cache_is_its_error_and_the_warning_alone_is_not() -> None:
    start = "vllm serve acme/m --kv-cache-dtype fp8 --max-model-len 8192"
    assert diagnose(f'{start}\n"content": "the plan is{"!" * 40}"').primary == "kv_quant_error"
    warned = (
        "WARNING 01-01 10:00:00 [kv_cache.py:90] Using KV cache scaling factor 1.0 for fp8_e4m3. "
        "This may cause "
        "accuracy issues."
    )
    served = "\n".join(v1(10 * n, running=3, waiting=0, usage=40.0) for n in range(3))
    assert diagnose(f"{start}\n{warned}\n{served}").primary == "healthy_baseline"


def test_an_image_above_the_encoder_cache() -> None:
    answer = diagnose(
        "The decoder prompt contains a(n) image item with length 7300, which exceeds the "
        "pre-allocated encoder cache size "
        "5120. Please reduce the input size or increase the encoder cache size by setting "
        "--limit-mm-per-prompt at startup."
    )
    assert answer.primary == "fixed_workspace_missized"
    assert "7,300" in answer.findings[0].why


def test_swap_that_ran_full() -> None:
    answer = diagnose(
        "RuntimeError: Aborted due to the lack of CPU swap space. Please increase the swap space to "
        "avoid this error."
    )
    assert answer.primary == "kv_pool_pressure"
