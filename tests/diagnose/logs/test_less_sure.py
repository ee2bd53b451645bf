"""What a log does not prove is said less surely, or not at all."""

from __future__ import annotations

import pytest

from tests.diagnose.logs.reading import diagnose, events, finding, oom, traceback

STATS = (
    "INFO 03-04 05:06:0{n} [loggers.py:127] Engine 000: Avg prompt throughput: 12.0 tokens/s, Avg generation "
    "throughput: 410.5 tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, "
    "GPU KV cache usage: {usage}%, Prefix cache hit rate: 11.0%\n"
)
TABLE = "|  0%   41C    P2    88W / 300W |  23120MiB / 24564MiB |     97%      Default |\n"
PEAK = "INFO 01-02 03:04:05 worker.py:200] the current vLLM instance can use total_gpu_memory ({total}GiB) x "
FULL_CARD = oom("210.00 MiB", 23.55, "40.00 MiB", 23.0, "50.00 MiB", process=23.4)
NO_ROOM = (
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when\n"
)


@pytest.mark.parametrize(("usage", "waiting"), [("97.4", 3), ("62.0", 11), ("99.0", 0)])
def test_one_strained_line_is_neither_healthy_nor_ill(usage: str, waiting: int) -> None:
    assert diagnose(STATS.format(n=1, running=2, waiting=waiting, usage=usage)).primary == "unknown"


def test_one_quiet_line_is_enough_for_healthy() -> None:
    assert diagnose(STATS.format(n=1, running=4, waiting=0, usage="41.0")).primary == "healthy_baseline"


def test_a_table_of_a_full_card_beside_an_unsized_failure() -> None:
    answer = diagnose(f"{TABLE}RuntimeError: CUDA error: out of memory\n")
    assert answer.primary == "other_process_on_gpu"
    assert answer.findings[0].confidence == "suspected"
    assert "22.6 GiB of 24.0 GiB" in answer.findings[0].why


def test_a_table_of_an_empty_card_says_nothing() -> None:
    empty = TABLE.replace("23120MiB", "    4MiB")
    assert diagnose(f"{empty}RuntimeError: CUDA error: out of memory\n").primary == "capacity_exhausted"


def test_pieces_on_a_full_card_without_a_place_are_suspected() -> None:
    answer = diagnose(oom("70.00 MiB", 31.73, "30.00 MiB", 31.0, "300.00 MiB", process=31.6) + "\n")
    assert finding(answer, "allocator_fragmentation").confidence == "suspected"


def test_a_refusal_on_a_nearly_full_card_may_be_a_race() -> None:
    answer = diagnose(oom("20.00 MiB", 39.4, "90.00 MiB", 37.0, "1.50 GiB", process=39.2) + "\n")
    assert answer.primary == "driver_limit_not_capacity"
    assert answer.findings[0].confidence == "suspected"


def test_a_display_is_not_what_fills_a_card() -> None:
    other = " Process 4711 has 300.00 MiB memory in use."
    answer = diagnose(oom("90.00 MiB", 7.78, "40.00 MiB", 7.2, "6.00 MiB", process=7.4, others=other) + "\n")
    assert answer.primary == "capacity_exhausted"


def test_weights_within_the_card_but_over_the_budget() -> None:
    text = (
        "INFO 01-02 03:04:05 model_runner.py:900] Loading model weights took 8.1000 GB\n"
        + PEAK.format(total="16.00")
        + "gpu_memory_utilization (0.55) = 8.80GiB\n"
        + NO_ROOM
    )
    answer = diagnose(text)
    assert answer.primary == "gpu_memory_utilization_too_low"
    assert answer.findings[0].confidence == "suspected"


def test_a_missing_package_that_the_start_outlived_is_a_warning() -> None:
    warning = "WARNING 01-02 03:04:05 [ops.py:20] Failed to import from x._C: No module named 'x._C'\n"
    served = STATS.format(n=2, running=4, waiting=0, usage="31.0") * 2
    assert diagnose(warning + served).primary in ("healthy_baseline", "kv_pool_idle")
    assert diagnose(warning).primary == "not_memory"


def test_an_adapter_above_the_configured_rank_is_not_memory() -> None:
    answer = diagnose("ValueError: LoRA rank 128 is greater than max_lora_rank 32.\n")
    assert answer.primary == "not_memory"


def test_a_buffer_that_metal_refuses() -> None:
    answer = diagnose("RuntimeError: Invalid buffer size: 96.40 GiB\n")
    assert answer.primary == "driver_limit_not_capacity"


def test_waking_up_told_by_an_answer() -> None:
    line = '{"error":{"message":"Call to wake_up method failed: CUDA Error: out of memory at <path>:88"}}'
    assert diagnose(f"{line}\n").primary == "other_process_on_gpu"


def test_a_line_of_code_stands_for_its_frame() -> None:
    text = "    marlin_qweight = ops.gptq_marlin_repack(b_q_weight=packed,\n" + oom(
        "112.00 MiB", 23.65, "33.00 MiB", 23.2, "40.00 MiB", process=23.6
    )
    answer = diagnose(f"(EngineCore_DP0 pid=9) {text}\n")
    assert answer.primary == "loading_peak"


def test_a_size_that_a_screen_broke_is_not_read_by_halves() -> None:
    line = (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 640.00 MiB (GPU 0; 79.17 GiB "
        "total capacity; 76.50 GiB already allocated; 212.00 MiB free; "
        "76.90 GiB reserved in total by PyTorch)"
    )
    for width in (78, 80, 100, 120):
        broken = "\n".join(line[i : i + width] for i in range(0, len(line), width))
        assert diagnose(broken + "\n").primary == "capacity_exhausted", width


def test_an_excerpt_that_begins_behind_its_first_words() -> None:
    line = FULL_CARD.split("CUDA out of memory. ", 1)[1]
    answer = diagnose(f"{line}\n")
    assert answer.primary == "capacity_exhausted"
    assert len(events(f"{FULL_CARD}\n", "torch_oom")) == 1


def test_a_kernel_without_room_on_the_chip_in_the_newer_wording() -> None:
    line = (
        "OutOfMemoryError: out of resource: triton_mm Required: 270336 Hardware limit:232448 Reducing block"
    )
    answer = diagnose(f"{line}\n")
    assert answer.primary == "not_memory"
    assert "270,336" in answer.findings[0].why


def test_a_workspace_named_in_the_second_half_of_a_broken_message() -> None:
    answer = diagnose(
        "... batch_prefill_tmp_v\n ... only 4096 bytes available in AlignedAllocator. Increase\n"
    )
    assert answer.primary == "fixed_workspace_missized"


def test_a_pool_in_place_and_a_traceback_without_its_error_is_unknown() -> None:
    start = (
        "INFO 01-02 03:04:05 executor_base.py:108] # cuda blocks: 20110, # CPU blocks: 2048\n"
        "INFO 01-02 03:04:05 executor_base.py:113] Maximum concurrency for 8192 tokens per request: 39.28x\n"
    )
    cut = 'Traceback (most recent call last):\n  File "/srv/train.py", line 9, in <module>\n    build()\n'
    assert diagnose(start + cut).primary == "unknown"


def test_an_engine_beside_another_is_no_leftover() -> None:
    loaded = "INFO 01-02 03:04:05 [gpu_model_runner.py:1] Model loading took 30.1 GiB and 9.1 seconds\n"
    taken = (
        "ValueError: Free memory on device cuda:0 (40.00/79.10 GiB) on startup is less than desired "
        "GPU memory utilization (0.6, 47.46 GiB). Decrease GPU memory utilization or reduce GPU memory "
        "used by other\n"
    )
    again = (
        "INFO 01-02 03:05:00 [core.py:1] Initializing a V1 LLM engine (v0.11.0) with config: model='a/b'\n"
    )
    assert diagnose(loaded + taken).primary == "other_process_on_gpu"
    assert diagnose(loaded + again + taken).primary == "leftover_process"


def test_unified_memory_is_not_certainly_another_process() -> None:
    text = oom("900.00 MiB", 119.6, "200.00 MiB", 60.0, "300.00 MiB", process=61.5)
    answer = diagnose(f"{text}\n")
    assert answer.findings[0].confidence == "suspected"


def test_layers_that_are_quantised_one_by_one() -> None:
    frames = traceback(
        "/opt/v/site-packages/transformers/modeling_utils.py:from_pretrained",
        "/opt/v/site-packages/transformers/quantizers/quantizer_bnb_4bit.py:create_quantized_param",
    )
    answer = diagnose(f"{frames}\n{FULL_CARD}\n")
    assert answer.findings[0].confidence == "suspected"


def test_the_first_words_of_the_asynchronous_back_end_alone() -> None:
    answer = diagnose("torch.OutOfMemoryError: Allocation on device \n\nGot an OOM, unloading all models.\n")
    assert answer.primary == "capacity_exhausted"
    assert answer.findings[0].confidence == "suspected"


def test_an_error_below_frames_that_a_terminal_broke() -> None:
    prefix = "(RayWorkerWrapper pid=71) ERROR 03-04 05:06:07 worker_base.py:581] "
    answer = diagnose(
        f'{prefix}  File "/opt/env/lib/python3.11/site-packages/vllm-0.8.0\n'
        '+g1a2b3c4.egg/vllm/model_executor/models/acme.py", line 61, in load_weights \n'
        f"{prefix}    param = table[name] \n{prefix}KeyError: 'layers.7.gate.scale' \n"
    )
    assert answer.primary == "not_memory"


def test_a_warm_up_of_kernels_fails_beside_the_pool() -> None:
    frames = traceback("/opt/v/site-packages/vllm/model_executor/warmup/some_gemm_warmup.py:_warmup")
    answer = diagnose(f"{frames}\n{FULL_CARD}\n")
    assert answer.primary == "gpu_memory_utilization_too_high"
    assert "kernels' warm-up" in answer.findings[0].why


def test_a_few_free_mib_on_a_full_card_do_not_outrank_the_phase() -> None:
    line = oom("60.00 MiB", 23.64, "71.00 MiB", 22.9, "300.00 MiB", process=23.4)
    frames = traceback("/opt/v/site-packages/vllm/model_executor/model_loader/loader.py:load_model")
    told = diagnose(f"{frames}\n{line}\n")
    assert told.primary == "weights_plus_fixed_too_large"
    assert told.findings[0].confidence == "suspected"
    assert diagnose(f"{line}\n").primary == "driver_limit_not_capacity"


def test_a_path_that_a_terminal_broke_keeps_its_engine() -> None:
    line = oom("50.00 MiB", 23.56, "21.75 MiB", 22.4, "275.00 MiB", process=23.5)
    answer = diagnose(
        f'  File "/x/vllm/v1/worker/gpu_model_run\nner.py", line 2031, in execute_model\n{line}\n'
    )
    assert answer.primary == "gpu_memory_utilization_too_high"


def test_a_broken_frame_without_its_mark_counts_beside_a_marked_one() -> None:
    mark = "(VllmWorker rank=1 pid=12) "
    line = oom("2.25 GiB", 14.58, "1.04 GiB", 12.9, "100.00 MiB", process=13.5)
    answer = diagnose(
        f'{mark}  File "/x/vllm/worker/worker.py", line 229, in determine_num_available_blocks\n'
        '  File "/x/vllm/model_executor/models/clip.py", line 80, in forward\n'
        f"{mark}{line}\n"
    )
    assert answer.primary == "multimodal_profiling"


def test_a_pass_with_limited_images_is_not_surely_text() -> None:
    line = oom("4.70 GiB", 31.74, "3.50 GiB", 27.4, "30.00 MiB", process=28.2)
    frames = traceback("/x/vllm/worker/model_runner.py:profile_run")
    told = diagnose(f"{frames}\n{line}\n")
    assert told.findings[0].confidence == "likely"
    limited = diagnose(f'llm = LLM(model=path, limit_mm_per_prompt={{"image": 4}})\n{frames}\n{line}\n')
    assert limited.findings[0].confidence == "suspected"


@pytest.mark.parametrize(
    "line",
    [
        "gpu-box:11:11 [0] init.cc:416 NCCL WARN Cuda failure 'operation not supported'",
        "ERROR 01-02 03:04:05 worker.py:1] RuntimeError: NCCL error: invalid usage (see NCCL_DEBUG)",
    ],
)
def test_communication_that_fails_for_another_reason(line: str) -> None:
    assert diagnose(f"{line}\n").primary == "not_memory"


def test_groups_that_are_swapped_are_more_than_they_seem() -> None:
    stats = "".join(
        f"INFO 01-02 03:04:{s:02d} metrics.py:349] Avg prompt throughput: 0.0 tokens/s, Avg generation "
        "throughput: 6100.0 tokens/s, Running: 2 reqs, Swapped: 0 reqs, Pending: 40 reqs, GPU KV cache "
        f"usage: {u}%, CPU KV cache usage: 0.0%.\n"
        for s, u in ((5, 71.0), (10, 93.0), (15, 99.1))
    )
    swapped = (
        "WARNING 01-02 03:04:16 scheduler.py:1483] Sequence group 7 is preempted by PreemptionMode.SWAP mode "
        "because there is not enough KV cache space.\n"
    )
    assert diagnose(stats + swapped).primary == "kv_pool_pressure"


def test_the_engine_process_of_v0_serves_once_it_has_started() -> None:
    line = oom("6.30 GiB", 79.25, "1.20 GiB", 77.0, "400.00 MiB", process=78.0)
    mark = "ERROR 04-06 00:44:23 [engine.py:160] "
    above = f"{mark}OutOfMemoryError('{line}')\n{mark}Traceback (most recent call last):\n"
    frame = '  File "/x/vllm/engine/multiprocessing/engine.py", line 158, in start\n'
    assert diagnose(above + mark + frame).primary == "runtime_activation_spike"


def test_more_than_any_budget_allows_is_weights_where_no_budget_is_told() -> None:
    mark = "(EngineCore_DP0 pid=71) ERROR 12-24 08:50:35 [core.py:866] "
    line = oom("90.00 MiB", 139.72, "60.00 MiB", 139.3, "12.00 MiB", process=139.6)
    answer = diagnose(f"{mark}{line}\n")
    assert answer.primary == "weights_plus_fixed_too_large"
    assert answer.findings[0].confidence == "suspected"


def test_a_refused_context_whose_line_is_cut_off() -> None:
    answer = diagnose(
        "ValueError: To serve at least one request with the models's max seq len (98304), (7.50 GiB KV cach\n"
    )
    assert answer.primary == "max_model_len_exceeds_pool"
    assert "7.50 GiB" in answer.findings[0].why


def test_pieces_with_much_to_spare_decide_while_loading_too() -> None:
    """Step 5a without an engine that makes a pool: the weights would fit in what there is."""
    found = diagnose(
        "Traceback (most recent call last):\n"
        '  File "/opt/lib/python3.12/site-packages/accelerate/big_modeling.py", line 501, in dispatch_model\n'
        "    attach_hooks(model)\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total "
        "capacity of 47.40 GiB of which 8.50 MiB is free. Including non-PyTorch memory, this process has "
        "47.39 GiB memory in use. Of the allocated memory 42.10 GiB is allocated by PyTorch, and 4.80 GiB "
        "is reserved by PyTorch but unallocated."
    )
    assert found.primary == "allocator_fragmentation"


def test_a_context_that_is_clamped_cuts_no_prompt() -> None:
    found = diagnose(
        'time=2025-05-02T10:00:00.000Z level=WARN source=server.go:140 msg="requested context size too '
        'large for model" num_ctx=16384 num_parallel=1 n_ctx_train=4096\n'
    )
    assert found.primary in ("unknown", "healthy_baseline")


def test_a_queue_in_every_reading_is_not_health() -> None:
    line = (
        "INFO 03-04 10:00:{at}0 [loggers.py:248] Engine 000: Avg prompt throughput: 15000.0 tokens/s, "
        "Avg generation throughput: 21.5 tokens/s, Running: {n} reqs, Waiting: {w} reqs, "
        "GPU KV cache usage: {u}.0%, Prefix cache hit rate: 0.0%\n"
    )
    found = diagnose("".join(line.format(at=i, n=8 + 4 * i, w=70 - 4 * i, u=15 + 9 * i) for i in range(5)))
    assert found.primary not in ("healthy_baseline", "kv_pool_idle")


def test_one_full_reading_with_a_long_queue_is_a_suspicion() -> None:
    found = diagnose(
        "INFO 03-04 10:00:00 [loggers.py:127] Engine 000: Avg prompt throughput: 0.0 tokens/s, "
        "Avg generation throughput: 5100.0 tokens/s, Running: 190 reqs, Waiting: 310 reqs, "
        "GPU KV cache usage: 99.8%, Prefix cache hit rate: 0.4%\n"
    )
    assert (found.primary, found.findings[0].confidence) == ("kv_pool_pressure", "suspected")
