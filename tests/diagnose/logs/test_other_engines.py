"""TGI, TensorRT-LLM, LMDeploy, MLX, MLC-LLM, ExLlama, NCCL."""

from __future__ import annotations

import pytest

from tests.diagnose.logs.enginekit import diagnosis, primary

GIB = 2**30


@pytest.mark.parametrize(
    ("tokens", "cause"), [(8192, "startup_activation_peak"), (300, "weights_plus_fixed_too_large")]
)
def test_tgi_warm_up(tokens: int, cause: str) -> None:
    """S14."""
    text = (
        "2026-01-02T03:04:05.123456Z  INFO text_generation_router: router/src/main.rs:211: Warming up model\n"
        f'Error: Warmup(Generation("Not enough memory to handle {tokens} prefill tokens. You need to '
        f"decrease "
        '`--max-batch-prefill-tokens`"))\n'
    )
    found = primary(text)
    assert found.cause == cause
    assert f"{tokens:,}" in found.why


def test_trtllm_takes_what_is_free_on_purpose() -> None:
    text = (
        f"[TensorRT-LLM][INFO] Allocate {64 * GIB} bytes for k/v cache. \n[TensorRT-LLM][INFO] Using "
        f"131072 tokens in paged KV cache.\n"
    )
    found = primary(text)
    assert found.cause == "reservation_by_design"
    assert "524,288 bytes a token" in found.why


def test_trtllm_buffers_before_and_after_the_pool() -> None:
    failed = (
        "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMallocAsync(ptr, n, mCudaStream->get()): "
        "out of memory (/src/tensorrt_llm/runtime/tllmBuffers.h:112)\n"
    )
    pool = "[TensorRT-LLM][INFO] Max tokens in paged KV cache: 90000. Allocating 41287680000 bytes.\n"
    assert primary(failed).cause == "fixed_workspace_missized"
    assert primary(pool + failed).cause == "gpu_memory_utilization_too_high"


def test_trtllm_pool_below_one_sequence() -> None:
    text = (
        "[TensorRT-LLM][ERROR] maxTokensInPagedKvCache must be large enough to process at least 1 "
        "sequence to completion (i.e. must be larger than beam_width * tokensPerBlock * "
        "maxBlocksPerSeq)\n"
    )
    assert primary(text).cause == "max_model_len_exceeds_pool"


def test_lmdeploy_names_the_file() -> None:
    form = (
        "RuntimeError: [TM][ERROR] CUDA runtime error: out of memory /opt/lmdeploy/src/turbomind/utils/{}\n"
    )
    assert primary(form.format("memory_utils.cu:32")).cause == "weights_plus_fixed_too_large"
    assert primary(form.format("allocator.h:233")).cause == "gpu_memory_utilization_too_high"


def test_mlx_limits_are_the_drivers() -> None:
    text = (
        "RuntimeError: [metal::malloc] Attempting to allocate 41736917632 bytes which is greater than "
        "the maximum allowed buffer size of 30150672384 bytes.\n"
    )
    found = primary(text)
    assert (found.cause, found.confidence) == ("driver_limit_not_capacity", "certain")
    assert "28.1 GiB" in found.why
    assert primary("RuntimeError: [metal::malloc] Resource limit (499000) exceeded.").cause == found.cause


@pytest.mark.parametrize(
    ("free", "weights", "temporary", "cause"),
    [
        (19_300.0, 51.0, 107.0, "engine_accounting_bug"),
        (20_500.0, 6_000.0, 15_000.0, "gpu_memory_utilization_too_low"),
        (20_500.0, 6_000.0, 40_000.0, "startup_activation_peak"),
        (20_500.0, 39_000.0, 500.0, "weights_plus_fixed_too_large"),
    ],
)
def test_mlc_by_its_own_sum(free: float, weights: float, temporary: float, cause: str) -> None:
    text = (
        f"TVMError: Insufficient GPU memory error: The available single GPU memory is {free} MB, which "
        f"is less than the sum of model weight size ({weights} MB) and temporary buffer size "
        f"({temporary} MB).\n"
    )
    assert primary(text).cause == cause


def test_exllama_without_sizes_is_only_suspected() -> None:
    assert primary("RuntimeError: Insufficient VRAM in split for model and cache").confidence == "suspected"


def test_nccl_buffers_and_shared_memory() -> None:
    device = primary("host:39:49 [2] enqueue.cc:43 NCCL WARN Cuda failure 'out of memory'\n")
    shared = primary(
        "host:39:49 [0] misc/shmutils.cc:129 NCCL WARN Error while creating shared memory segment "
        "/dev/shm/nccl-a1 (size 33030528), error: No space left on device (28)\n"
    )
    assert device.cause == shared.cause == "nccl_or_runtime_buffers"
    assert "31.5 MiB" in shared.why
    assert "/dev/shm" in shared.why


def test_a_full_disk_is_not_memory() -> None:
    assert primary("OSError: [Errno 28] No space left on device: '/models/tmp'").cause in {
        "not_memory",
        "unknown",
    }


def test_a_block_larger_than_the_prefix() -> None:
    """S26 and S27."""
    stats = "\n".join(
        f"INFO 05-06 09:00:{n}0 [loggers.py:248] Engine 000: Avg prompt throughput: 30.0 tokens/s, Avg "
        f"generation throughput: 50.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: 2.0%, "
        f"Prefix cache hit rate: 0.0%"
        for n in range(5)
    )
    start = (
        "INFO 05-06 08:59:00 [interface.py:281] Setting attention block size to 784 tokens to ensure "
        "that attention page size is >= mamba page size.\n"
    )
    found = primary(start + stats)
    assert found.cause == "prefix_block_granularity"
    assert "784" in found.why
    assert diagnosis(stats).primary != "prefix_block_granularity"


def test_a_hit_rate_that_falls_while_the_pool_fills() -> None:
    """S34."""
    text = "\n".join(
        f"INFO 05-06 09:{n:02d}:00 [loggers.py:248] Engine 000: Avg prompt throughput: 30.0 tokens/s, Avg "
        f"generation throughput: 50.0 tokens/s, Running: {8 + n} reqs, Waiting: 0 reqs, GPU KV cache usage: "
        f"{40 + 5 * n}.0%, Prefix cache hit rate: {82 - 6 * n}.0%"
        for n in range(11)
    )
    assert primary(text).cause == "prefix_evicted"


def test_tgi_while_serving_is_a_budget_that_left_too_little() -> None:
    """S14: the warm-up had passed."""
    text = (
        "2026-01-02T03:04:05.123456Z ERROR batch{batch_size=1}:prefill{id=1 size=1}: text_generation_client: "
        "router/client/src/lib.rs:33: Server error: CUDA out of memory. Tried to allocate 210.00 MiB. GPU 0 "
        "has a "
        "total capacity of 39.39 GiB of which 205.94 MiB is free. Process 86 has 39.19 GiB memory in use. "
        "Of the "
        "allocated memory 37.20 GiB is allocated by PyTorch, and 1.50 GiB is reserved by PyTorch but "
        "unallocated.\n"
    )
    found = diagnosis(text)
    assert found.primary == "gpu_memory_utilization_too_high"
    assert "allocator_fragmentation" in {f.cause for f in found.findings if f.role == "secondary"}
