"""The same facts in other versions' wordings, with missing parts, and with less proof than usual."""

from __future__ import annotations

import pytest

from kvprobe.diagnose.fragmentation import OomNumbers, judge
from tests.diagnose.logs import enginekit
from tests.diagnose.logs.reading import diagnose, events, finding, oom, roles, traceback

GIB = 2**30


def xpu(asked: str, total: str, allocated: str, unallocated: str = "40.00 MiB") -> str:
    """PyTorch 2.6 and later on XPU: no free clause."""
    return (
        f"torch.OutOfMemoryError: XPU out of memory. Tried to allocate {asked}. GPU 0 has a total "
        "capacity of "
        f"{total}. Of the allocated memory {allocated} is allocated by PyTorch, and {unallocated} is "
        "reserved by "
        "PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached memory."
    )


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (xpu("5.50 GiB", "47.80 GiB", "512.00 MiB"), "driver_limit_not_capacity"),
        (xpu("64.00 MiB", "15.91 GiB", "1.20 GiB"), "unknown"),
        (xpu("900.00 MiB", "15.91 GiB", "15.50 GiB"), "capacity_exhausted"),
        (
            "RuntimeError: CUDA out of memory. Tried to allocate 510.00 MiB (GPU 0; 11.91 GiB total "
            "capacity; "
            "2.10 GiB already allocated",
            "unknown",
        ),
    ],
)
def test_missing_free_bytes_are_not_zero(text: str, cause: str) -> None:
    answer = diagnose(text)
    assert answer.primary == cause
    assert "card is full" not in answer.findings[0].why
    assert "free" not in events(text, "torch_oom")[0].values


def test_what_can_have_been_free_bounds_the_rule() -> None:
    short = judge(OomNumbers(requested=3 * GIB, total=16 * GIB, allocated=14 * GIB, unallocated=0))
    assert (short.step, short.margin, short.most_free) == ("4", -GIB, 2 * GIB)
    open_ = judge(OomNumbers(requested=GIB, total=16 * GIB, allocated=14 * GIB))
    assert (open_.step, open_.most_free) == ("none", 2 * GIB)
    assert judge(OomNumbers(requested=GIB)).most_free is None


def test_a_small_margin_is_capacity_by_phase_first() -> None:
    tight = oom("180.00 MiB", 44.42, "120.00 MiB", 43.2, "100.00 MiB", process=44.2)
    loading = diagnose(f"{traceback('load_model', 'create_weights')}\n{tight}")
    assert loading.primary == "weights_plus_fixed_too_large"
    assert roles(loading)["allocator_fragmentation"] == "secondary"
    greedy = diagnose(
        "$ vllm serve /m/acme --gpu-memory-utilization 0.96 --max-model-len 4096\n"
        + oom("210.00 MiB", 44.42, "140.00 MiB", 43.2, "100.00 MiB", process=44.2)
    )
    assert greedy.primary == "gpu_memory_utilization_too_high"
    assert roles(greedy)["allocator_fragmentation"] == "secondary"


TGI = (
    "2025-07-01T10:00:00.0Z  INFO text_generation_launcher: Starting shard\n"
    "2025-07-01T10:00:05.0Z  INFO shard-manager: text_generation_launcher: Waiting for shard to be "
    "ready... rank=0\n"
)


def test_tgi_after_its_socket_is_up_no_longer_loads() -> None:
    serve = traceback("/usr/src/server/text_generation_server/server.py:serve")
    message = oom("9.25 GiB", 47.5, "6.10 GiB", 40.2, "500.00 MiB", process=41.0)
    up = "2025-07-01T10:01:00.0Z  INFO text_generation_launcher: Server started at unix:///tmp/tgi-server-0\n"
    assert diagnose(f"{TGI}{up}{serve}\n{message}").primary == "startup_activation_peak"
    assert diagnose(f"{TGI}{serve}\n{message}").primary == "weights_plus_fixed_too_large"


def mm_warning(text: int, worst: int) -> str:
    return (
        "WARNING 06-01 10:00:00 [profiling.py:222] The sequence length used for profiling "
        f"(max_num_batched_tokens / max_num_seqs = {text}) is too short to hold the multi-modal "
        "embeddings in the "
        f"worst case ({worst} tokens in total, out of which {{'image': {worst}}} are reserved for "
        "multi-modal "
        "embeddings).\n"
    )


@pytest.mark.parametrize(
    ("worst", "cause"), [(98304, "multimodal_profiling"), (5000, "startup_activation_peak")]
)
def test_worst_case_images_name_the_profiling_pass(worst: int, cause: str) -> None:
    frames = traceback("determine_num_available_blocks", "profile_run", "execute_model")
    sized = oom("7.50 GiB", 39.38, "2.10 GiB", 35.2, "1.20 GiB", process=37.2)
    assert diagnose(f"{mm_warning(4096, worst)}{frames}\n{sized}").primary == cause
    unsized = (
        "ERROR 06-01 10:00:09 [x.py:1] Exception in worker VllmWorkerProcess while processing method "
        "determine_num_available_blocks.\nERROR 06-01 10:00:09 [x.py:1] torch.OutOfMemoryError: CUDA out "
        "of memory."
    )
    assert diagnose(f"{mm_warning(4096, worst)}{unsized}").primary == cause


TRT = (
    "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, pool, stream): out of memory "
    "(/src/cpp/tensorrt_llm/runtime/tllmBuffers.h:88)\n1 0x7f00 "
    "tensorrt_llm::common::check<cudaError>(cudaError)\n"
)


@pytest.mark.parametrize(
    ("frame", "cause"),
    [
        ("tensorrt_llm::batch_manager::RuntimeBuffers::prepareStep(int)", "runtime_activation_spike"),
        ("tensorrt_llm::batch_manager::TrtGptModelX::executeStep(int)", "runtime_activation_spike"),
        ("nvinfer1::ICudaEngine::createExecutionContext(int)", "fixed_workspace_missized"),
    ],
)
def test_trtllm_tells_a_step_from_a_build(frame: str, cause: str) -> None:
    assert diagnose(f"{TRT}2 0x7f01 {frame} + 22").primary == cause


@pytest.mark.parametrize(("tps", "cause"), [(30.0, "kv_pool_pressure"), (600.0, "healthy_baseline")])
def test_sglang_after_one_retraction(tps: float, cause: str) -> None:
    retraction = (
        "[2026-03-04 12:00:00 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1, "
        "#new_token_ratio: 0.20 -> 0.31\n"
    )
    stats = "\n".join(enginekit.sglang_decode(n, 8, 0, 0.94, tps=tps) for n in range(5))
    answer = diagnose(retraction + stats)
    assert answer.primary == cause
    assert all(f.confidence == "suspected" for f in answer.findings if f.cause == "kv_pool_pressure")


def test_sglang_says_itself_which_fraction_it_needs() -> None:
    answer = diagnose(
        "$ python -m sglang.launch_server --model-path acme/big --tp 4 --mem-fraction-static 0.70\n"
        "Load weight end. elapsed=20.1 s, avail mem=18.40 GB, mem usage=60.10 GB.\n"
        "RuntimeError: Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=0.7.\n"
        "  Raise --mem-fraction-static to at least 0.7912."
    )
    assert answer.primary == "gpu_memory_utilization_too_low"
    assert "0.7912" in answer.findings[0].why


def test_exit_137_with_reason_error_is_not_called_an_oom_kill() -> None:
    text = "    Last State:     Terminated\n      Reason:       {}\n      Exit Code:    137\n"
    answer = diagnose(text.format("Error"))
    assert answer.primary == "unknown"
    assert "OOMKilled" in answer.findings[0].why
    assert diagnose(text.format("OOMKilled")).primary == "host_oom_kill"


@pytest.mark.parametrize(
    "line",
    [
        "update_slots: failed to find free space in the KV cache, retrying with smaller n_batch = 64",
        "update_slots: failed to find free space in the KV cache, retrying with smaller batch size - try "
        "increasing "
        "it via the context size or enable defragmentation, i = 0, n_batch = 256, ret = 1",
        "update_slots: failed to find free space in the KV cache, retrying with a smaller batch (see "
        "--help), "
        "n_batch=16",
    ],
)
def test_llamacpp_full_cache_in_several_wordings(line: str) -> None:
    answer = diagnose(f"0.58.913.095 W srv  {line}")
    assert (answer.primary, answer.findings[0].confidence) == ("kv_pool_pressure", "suspected")
    assert "the log ends there" in answer.findings[0].why


def v0(kv: float) -> str:
    return (
        "INFO 02-11 10:00:01 [worker.py:267] the current vLLM instance can use total_gpu_memory (23.65GiB) x "
        "gpu_memory_utilization (0.90) = 21.28GiB\n"
        f"INFO 02-11 10:00:01 [worker.py:267] model weights take {19.96 - kv:.2f}GiB; non_torch_memory "
        "takes 0.12GiB; "
        f"PyTorch activation peak memory takes 1.20GiB; the rest of the memory reserved for KV Cache is "
        f"{kv:.2f}GiB.\n"
    )


@pytest.mark.parametrize(("kv", "cause"), [(12.46, "healthy_baseline"), (0.06, "unknown")])
def test_a_v0_start_is_healthy_where_the_budget_leaves_room(kv: float, cause: str) -> None:
    assert diagnose(v0(kv)).primary == cause


def test_a_start_with_a_pool_and_then_a_crash_is_not_healthy() -> None:
    blocks = "INFO 02-11 10:00:05 [executor_base.py:111] # cuda blocks: 6380, # CPU blocks: 2048\n"
    assert diagnose(v0(12.46) + blocks).primary == "healthy_baseline"
    assert diagnose(f"{v0(12.46)}{blocks}Killed\n").primary == "host_oom_kill"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("decode: RSS 91.2 → 118.4 GiB in 20 h\nprefill: RSS 90.0 → 116.9 GiB in 20 h", "host_memory_leak"),
        ("a: worker_rss_kb 91000000 -> 99000000\nb: worker_rss_kb 90000000 -> 98500000", "host_memory_leak"),
        ("a RSS ~= 41.2 GiB\na RSS ~= 43.0 GiB\na RSS ~= 44.9 GiB\na RSS ~= 47.1 GiB", "host_memory_leak"),
        ("a RSS ~= 41.2 GiB\na RSS ~= 31.2 GiB\na RSS ~= 43.2 GiB\na RSS ~= 47.1 GiB", "unknown"),
        ("a RSS ~= 41.2 GiB\na RSS ~= 47.2 GiB", "unknown"),
    ],
)
def test_readings_of_resident_memory_in_free_text(text: str, cause: str) -> None:
    answer = diagnose(text)
    assert answer.primary == cause
    assert answer.findings[0].confidence == "suspected"


def test_a_retry_without_pipeline_copies_that_loads_is_no_failure() -> None:
    failed = (
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9100.25 MiB on device 0: cudaMalloc "
        "failed: out of "
        "memory\nggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 9542303744\n"
        "graph_reserve: failed to allocate compute buffers\n"
        "sched_reserve: compute buffer allocation failed, retrying without pipeline parallelism\n"
    )
    loaded = "main: server is listening on http://127.0.0.1:8080 - starting the main loop\n"
    assert diagnose(failed + loaded).primary == "healthy_baseline"
    assert diagnose(failed).primary == "startup_activation_peak"


@pytest.mark.parametrize(
    ("codes", "cause", "confidence"),
    [
        ((13, 62), "gpu_software_fault", "likely"),
        ((31, 79), "gpu_hw_fault", "certain"),
        ((62,), "gpu_hw_fault", "likely"),
        ((95,), "gpu_hw_fault", "certain"),
    ],
)
def test_the_first_xid_is_the_root_unless_hardware_proves_itself(
    codes: tuple[int, ...], cause: str, confidence: str
) -> None:
    text = "\n".join(f"NVRM: Xid (PCI:0000:1b:00): {c}, pid=77, name=python, x" for c in codes)
    found = finding(diagnose(text), cause)
    assert (found.role, found.confidence) == ("primary", confidence)


def test_the_pooler_warms_up_as_the_sampler_does() -> None:
    text = "CUDA out of memory occurred when warming up pooler (task=embed) with 448 dummy requests."
    assert events(text, "sampler_warmup_oom")[0].get("requests") == 448
    assert diagnose(text).primary == "gpu_memory_utilization_too_high"
