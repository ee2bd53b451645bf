"""What hosts, batch systems, small run times and guards say; and what a log does not prove."""

from __future__ import annotations

import pytest

from tests.diagnose.logs.enginekit import diagnosis, primary, vllm_stats

GIB = 2**30


@pytest.mark.parametrize(
    "text",
    [
        "slurmstepd: error: Detected 2 oom_kill events in StepId=77001.0. Some of the step tasks have been "
        "OOM Killed.",
        "slurmstepd: error: Detected 4 oom-kill event(s) in StepId=9182.batch cgroup. Some of your processes "
        "may have been killed by the cgroup out-of-memory handler.",
        "StoppedReason: OutOfMemoryError: Container killed due to memory usage",
        "[ERROR] [launch.py:321:sigkill_handler] ['/usr/bin/python3', 'serve.py'] exits with return "
        "code = -9",
        "[2031-02-03 04:05:06 +0000] [7] [ERROR] Worker (pid:912) was sent SIGKILL! Perhaps out of memory?",
        "2031-02-03 04:05:06,000 INFO exited: engine (terminated by SIGKILL; not expected)",
        "kernel: memory: usage 8388608kB, limit 8388608kB, failcnt 77",
        "Memory on the node (IP: 10.0.0.9, ID: ab) where the task (task ID: cd, name=head, pid=88, memory "
        "used=1.31TB) was running was 1.52TB / 1.58TB (0.962025), which exceeds the memory usage "
        "threshold of "
        "0.95. Ray killed this worker (ID: ef) because it was the most recently scheduled task",
    ],
)
def test_the_host_killed_it(text: str) -> None:
    assert primary(text + "\n").cause == "host_oom_kill"


def test_a_supervisor_that_gave_up_is_no_want_of_memory() -> None:
    text = (
        "[2031-02-03 04:05:00 +0000] [7] [CRITICAL] WORKER TIMEOUT (pid:912)\n"
        "[2031-02-03 04:05:30 +0000] [7] [ERROR] Worker (pid:912) was sent SIGKILL! Perhaps out of memory?\n"
    )
    assert diagnosis(text).primary != "host_oom_kill"


def test_a_container_below_its_limit_was_not_killed_for_it() -> None:
    assert diagnosis("memory: usage 4000000kB, limit 8388608kB, failcnt 0\n").primary == "unknown"


def test_mlock_is_a_warning() -> None:
    text = (
        "warning: failed to mlock 91234304-byte buffer (after previously locking 0 bytes): Cannot allocate "
        "memory\nmain: server is listening on http://127.0.0.1:8080 - starting the main loop\n"
    )
    assert diagnosis(text).primary == "healthy_baseline"


def test_unequal_cards_of_sglang() -> None:
    found = primary(
        "ValueError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
        "pre_model_load_memory=12.5, local_gpu_memory=47.25, local_gpu_memory * 0.9=42.525\n"
    )
    assert found.cause == "other_process_on_gpu"
    assert "12.5 GiB" in found.why
    assert "47.2 GiB" in found.why


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "ggml_new_object: not enough space in the context's memory pool (needed 20971520, available "
            "10485760)",
            "fixed_workspace_missized",
        ),
        (
            "ggml_aligned_malloc: insufficient memory (attempted to allocate 40960.00 MB)",
            "host_memory_exhausted",
        ),
        (
            "[TensorRT-LLM][ERROR] Assertion failed: Can't allocate new blocks. No free blocks left. "
            "(/app/cpp/batch_manager/kvCacheManager.cpp:301)",
            "kv_pool_pressure",
        ),
        (
            "[TensorRT-LLM][ERROR] Assertion failed: mUsed.empty() "
            "(/app/cpp/batch_manager/kvCacheManager.cpp:99)",
            "engine_accounting_bug",
        ),
        (
            "[TRT] [E] 4: Internal error: plugin node X/layers/0/attention requires 9663676416 bytes of "
            "scratch "
            "space, but only 6442450944 is available.",
            "fixed_workspace_missized",
        ),
        (
            "Error: Model loading was stopped due to insufficient system resources. Under the current "
            "settings, "
            "this model requires approximately NaN undefined of memory, and continuing to load it",
            "engine_accounting_bug",
        ),
        (
            "Error: Model loading was stopped due to insufficient system resources. Under the current "
            "settings, "
            "this model requires approximately 91.50 GB of memory, and continuing to load it",
            "host_memory_exhausted",
        ),
        (
            "bfc_arena.cc:376 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to "
            "allocate "
            "memory for requested buffer of size 2147483648",
            "capacity_exhausted",
        ),
        ("RuntimeError: CUDA failed with error out of memory", "capacity_exhausted"),
        ("RuntimeError: CUDA Error 2, out of memory", "capacity_exhausted"),
        (
            "[METAL] Command buffer execution failed: Caused GPU Timeout Error "
            "(00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
            "gpu_software_fault",
        ),
    ],
)
def test_small_run_times(text: str, cause: str) -> None:
    assert primary(text + "\n").cause == cause


@pytest.mark.parametrize(
    "text",
    [
        "INFO: if you see an error about running out of memory, lower the batch size",
        "WARNING This option may cause errors such as CUDA out-of-memory on small cards",
        "ggml_cuda_host_malloc: failed to allocate 512.00 MiB of pinned memory: out of memory",
    ],
)
def test_advice_is_no_failure(text: str) -> None:
    assert diagnosis(text + "\n").primary == "unknown"


def test_an_unsized_failure_is_only_suspected() -> None:
    assert primary("RuntimeError: CUDA Error 2, out of memory\n").confidence == "suspected"


def test_a_cuda_call_of_ggml_that_failed_for_another_reason() -> None:
    found = primary(
        "CUDA error: an unsupported value or parameter was passed to the function\n"
        "  current device: 1, in function ggml_cuda_mul_mat at /src/ggml-cuda.cu:1999\n"
    )
    assert (found.cause, found.confidence) == ("gpu_software_fault", "suspected")
    assert "ggml_cuda_mul_mat" in found.why


def test_a_launcher_tells_afterwards_that_the_start_failed() -> None:
    oom = (
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB (GPU 0; 23.69 GiB "
        "total "
        "capacity; 23.20 GiB already allocated; 12.00 MiB free; 23.69 GiB allowed; 23.24 GiB reserved "
        "in total "
        "by PyTorch)\n"
    )
    assert primary(oom).cause == "capacity_exhausted"
    assert primary(oom + "Error: ShardCannotStart\n").cause == "weights_plus_fixed_too_large"


def _llama_kv(asked_mib: float, weights_mib: float, *, context: str = "") -> str:
    return (
        f"load_tensors:        CUDA0 model buffer size = {weights_mib:.2f} MiB\n{context}"
        f"ggml_backend_cuda_buffer_type_alloc_buffer: allocating {asked_mib:.2f} MiB on device 0: cudaMalloc "
        "failed: out of memory\nllama_kv_cache_init: failed to allocate buffer for kv cache\n"
    )


def test_a_small_cache_that_fails_tells_of_the_weights() -> None:
    large = primary(_llama_kv(9000, 12000, context="llama_context: n_ctx         = 65536\n"))
    assert (large.cause, large.confidence) == ("max_model_len_exceeds_pool", "likely")
    small = primary(_llama_kv(300, 22000, context="llama_context: n_ctx         = 4096\n"))
    assert (small.cause, small.confidence) == ("weights_plus_fixed_too_large", "suspected")
    assert primary(_llama_kv(9000, 12000)).confidence == "suspected"


def test_s28_groups_with_blocks_of_their_own() -> None:
    text = "INFO 01-02 03:04:05 [kv_cache_utils.py:9] KV cache groups block_sizes=[96, 1536, 48]\n"
    text += "\n".join(vllm_stats(n, 3, 0, 4.0, hit=0.0) for n in range(4)) + "\n"
    found = primary(text)
    assert found.cause == "prefix_block_granularity"
    assert "LCM(96, 1536, 48) = 1,536 tokens" in found.why


def _lookups(load: int) -> str:
    return "".join(
        f"[2031-02-03 04:05:0{n},321] LMCache INFO: Reqid: chat-{n}, Total tokens 3000, LMCache hit "
        f"tokens: 2816, "
        f"need to load: {load} (vllm_v1_adapter.py:739:lmcache)\n"
        for n in range(4)
    )


def test_s33_an_offload_that_finds_what_the_gpu_holds() -> None:
    found = primary(_lookups(2))
    assert (found.cause, found.confidence) == ("prefix_hit_but_slow", "suspected")
    assert "12,000" in found.why
    assert diagnosis(_lookups(2500)).primary == "unknown"


def test_reference_lines_of_a_start_that_fails() -> None:
    port = (
        "kvprobe serve: port 8001 on 127.0.0.1 is in use; choose another with --port, or 0 for a free one\n"
    )
    assert primary(port).cause == "not_memory"
    small = "kvprobe serve: --kv-memory is too small: 4096 B are less than two blocks of 65536 B\n"
    assert primary(small).cause == "max_model_len_exceeds_pool"


def test_a_host_pool_that_is_refused() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/x/sglang/srt/mem_cache/memory_pool_host.py", line 87, '
        "in __init__\nValueError: Not enough host memory available. Requesting 61.00 GB but only have "
        "19.50 GB "
        "free. Please reduce the size of the hierarchical cache.\n"
    )
    assert (primary(text).cause, primary(text).confidence) == ("host_memory_exhausted", "likely")
    nvmap = "NvMapMemAllocInternalTagged: 1075072515 error 12\nNvMapMemHandleAlloc: error 0\n"
    assert (primary(nvmap).cause, primary(nvmap).confidence) == ("host_memory_exhausted", "suspected")


def test_signals_that_no_memory_limit_sends() -> None:
    line = "ERROR text_generation_launcher: Shard process was signaled to shutdown with signal {} rank=0\n"
    assert primary(line.format(7)).cause == "host_memory_exhausted"
    assert primary(line.format(9)).cause == "host_oom_kill"
    assert primary(line.format(4)).cause == "not_memory"


def test_a_probe_alone_is_no_memory() -> None:
    pod = "  Normal   Killing   41s   kubelet   Container llm failed liveness probe, will be restarted\n"
    assert (primary(pod).cause, primary(pod).confidence) == ("not_memory", "suspected")


def test_limits_and_contexts_of_other_front_ends() -> None:
    limit = (
        "[GPU] Exceeded max size of memory object allocation: requested 4831838208 bytes, but max alloc size "
        "supported by device is 1073741824 bytes.\n"
    )
    assert primary(limit).cause == "driver_limit_not_capacity"
    window = "ValueError: Requested tokens (2285) exceed context window of 2048\n"
    assert primary(window).cause == "context_limit_truncation"
    lost = "Native API failed. Native API returns: 20 (UR_RESULT_ERROR_DEVICE_LOST)\n"
    assert primary(lost).cause == "gpu_software_fault"


def test_shared_memory_is_no_disk() -> None:
    line = (
        "Failed to increase the shared memory pool size for key 'triton_python_backend_shm_region_2' to "
        "67108864 "
        "bytes. If you are running Triton inside docker, use '--shm-size' flag to control the shared memory "
        "region size. Error: No space left on device\n"
    )
    assert primary(line).cause == "host_memory_exhausted"


def test_a_guard_that_refuses_a_prompt() -> None:
    line = (
        "2031-06-24 18:30:02,188 - omlx.server - ERROR - [-] - Prefill would require ~61.2 GB peak "
        "(current 57.5 "
        "GB + KV+SDPA 3.7 GB) but metal_cap ceiling is 59.9 GB.\n"
    )
    assert (primary(line).cause, primary(line).confidence) == ("host_memory_exhausted", "suspected")
