"""Sentences of engines, runtimes, systems and loaders that name their own trouble."""

from __future__ import annotations

import pytest

from tests.diagnose.logs.reading import diagnose, finding, oom, traceback

SERVED = "[2026-02-03 04:05:{n:02d} TP0] Decode batch. #running-req: 3, #token: 900, token usage: 0.11, "
SERVED += "gen throughput (token/s): 80.0, #queue-req: 0\n"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("AssertionError: KV cache is full! There is a bug in memory estimation.", "engine_accounting_bug"),
        (
            "AssertionError: Committed KV cache already freed (self.kv_committed_len=31)",
            "engine_accounting_bug",
        ),
        (
            "AssertionError: Mem Leak Detected! total_tokens=901 vs self.max_total_num_tokens=950",
            "kv_pool_leak",
        ),
        ("AssertionError: Can not alloc mamba cache", "request_slot_limit"),
        ("ValueError: No space left for only one request in this pool", "logical_kv_too_large"),
        ("ValueError: Out of memory! No free blocks are available.", "kv_pool_pressure"),
        ("utils.errors.OutOfPages: Out of pages: needed 9, got 1", "kv_pool_pressure"),
        (
            "[TensorRT-LLM][ERROR] Assertion failed: Can't allocate new blocks for window size 2048. "
            "No free blocks left. (/src/kvCacheManager.cpp:77)",
            "kv_pool_pressure",
        ),
        (
            "[TensorRT-LLM][ERROR] Assertion failed: Impossible to fit any sequence in kvCache (/x.cpp:7)",
            "max_model_len_exceeds_pool",
        ),
        (
            "ValueError: Some modules are dispatched on the CPU or the disk. Make sure",
            "weights_plus_fixed_too_large",
        ),
        (
            "ValueError: Too large swap space. 41.00 GiB out of the 30.50 GiB total CPU memory",
            "host_memory_exhausted",
        ),
        ("ray.exceptions.ObjectStoreFullError: Failed to put object 77", "host_memory_exhausted"),
        ("memory allocation of 3221225472 bytes failed", "host_memory_exhausted"),
        ("fatal error: runtime: out of memory: cannot allocate 8388608-byte block", "host_memory_exhausted"),
        ("MPSGaph does not support tensor dims larger than INT_MAX", "driver_limit_not_capacity"),
        (
            "ggml_metal_add_buffer: buffer 'data' size 91 is larger than buffer maximum of 80",
            "driver_limit_not_capacity",
        ),
        (
            "Unable to determine the device handle for GPU0000:41:00.0: Unknown Error",
            "gpu_hw_fault",
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:83] err == 0. DefaultCPUAllocator: can't allocate "
            "memory: you tried to allocate 18446744073709500000 bytes",
            "engine_accounting_bug",
        ),
        (
            "AssertionError: Job requires 70 pages (only 64 available) and cannot be enqueued.",
            "logical_kv_too_large",
        ),
        ("Out of memory error on GPU 1. Cannot allocate 640.0MB memory on GPU 1", "capacity_exhausted"),
        ("UR error: UR_RESULT_ERROR_OUT_OF_HOST_MEMORY", "driver_limit_not_capacity"),
        ("5512.batch  OUT_OF_MEMORY  0:125", "host_oom_kill"),
        ("=>> PBS: job killed: mem 7100000kb exceeded limit 7000000kb", "host_oom_kill"),
        ("Memory limit of 8192 MiB exceeded with 8230 MiB used.", "host_oom_kill"),
        ("Unexpected: vk::x falling back to the CPU: insufficient memory", "unknown"),
        ("RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED", "library_handle_alloc_failed"),
        ("/src/mem.cpp:9: non-zero status: 7 nvshmem_malloc failed out of memory", "nccl_or_runtime_buffers"),
        ("srun: error: n7: task 2: Out Of Memory", "host_oom_kill"),
        ("Warning  SystemOOM  3m  kubelet  System OOM encountered, victim process: python3", "host_oom_kill"),
        ("The request queue is full.", "queue_limit"),
        ("Warning  FailedScheduling  0/4 nodes are available: 4 Insufficient nvidia.com/gpu.", "not_memory"),
        ("main: error: prompt is too long (7100 tokens, max 4090)", "context_limit_truncation"),
        (
            "[TensorRT-LLM][ERROR] Prompt length (7100) exceeds maximum input length (4096).",
            "context_limit_truncation",
        ),
        (
            "ValueError: You passed 7100 input tokens and requested 90 output tokens. However, the "
            "model's context length is only 4096 tokens",
            "context_limit_truncation",
        ),
    ],
)
def test_one_line_that_says_it(text: str, cause: str) -> None:
    assert diagnose(text + "\n").primary == cause


def test_what_the_engine_outlived_is_no_cause() -> None:
    text = SERVED.format(n=1) + "ValueError: Failed to allocate token prealloc indices\n"
    text += "".join(SERVED.format(n=n) for n in range(2, 9))
    assert diagnose(text).primary != "kv_pool_pressure"


def test_no_worker_that_was_killed_is_no_kill() -> None:
    line = "(raylet) {n} Workers (tasks / actors) killed due to memory pressure (OOM), 3 Workers crashed\n"
    assert diagnose(line.format(n=0)).primary == "unknown"
    assert diagnose(line.format(n=2)).primary == "host_oom_kill"


@pytest.mark.parametrize(
    "prefix", ["user: warning: ", "kern  :err   : [ 4000.000100] ", "user  :warn  : [Feb03 04:05] "]
)
def test_the_facility_of_a_kernel_line_is_no_speaker_of_a_chat(prefix: str) -> None:
    text = (
        f"{prefix}Out of memory: Killed process 77 (python3) total-vm:9000kB, anon-rss:7000kB, file-rss:0kB\n"
    )
    assert diagnose(text).primary == "host_oom_kill"


def test_free_above_the_request_is_step_3_in_every_phase() -> None:
    message = oom("18.00 MiB", 23.6, "28.00 MiB", 20.7, "900.00 MiB")
    frames = traceback("/opt/lib/transformers/generation/utils.py:generate")
    for text in (message, f"{frames}\n{message}"):
        answer = diagnose(text + "\n")
        assert answer.primary == "driver_limit_not_capacity"
        assert answer.findings[0].confidence == "suspected"


def test_a_cache_made_at_once_is_not_called_fragmented_surely() -> None:
    frames = traceback("/opt/lib/exllamav2/cache.py:__init__")
    full = diagnose(f"{frames}\n" + oom("140.00 MiB", 23.6, "0 bytes", 22.3, "500.00 MiB") + "\n")
    assert full.primary == "weights_plus_fixed_too_large"
    assert finding(full, "allocator_fragmentation").role == "secondary"
    roomy = diagnose(f"{frames}\n" + oom("300.00 MiB", 23.6, "90.00 MiB", 17.0, "5.90 GiB") + "\n")
    assert (roomy.primary, roomy.findings[0].confidence) == ("allocator_fragmentation", "likely")
