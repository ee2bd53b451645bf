"""Failures without sizes, and errors that only look like a lack of memory."""

from __future__ import annotations

import pytest

from tests.diagnose.logs.reading import diagnose, finding, oom, traceback


@pytest.mark.parametrize(
    ("line", "cause", "confidence"),
    [
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            "library_handle_alloc_failed",
            "likely",
        ),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
            "library_handle_alloc_failed",
            "suspected",
        ),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "library_handle_alloc_failed", "suspected"),
        (
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "gpu_software_fault",
            "likely",
        ),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu_hw_fault", "certain"),
        ("RuntimeError: CUDA error: device-side assert triggered", "not_memory", "suspected"),
        (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device",
            "not_memory",
            "likely",
        ),
        (
            "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 163840, "
            "Hardware limit: 101376. "
            "Reducing block sizes or `num_stages` may help.",
            "not_memory",
            "certain",
        ),
        (
            "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:88",
            "other_process_on_gpu",
            "suspected",
        ),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
            "allocate memory: you tried "
            "to allocate 234881024 bytes. Error code 12 (Cannot allocate memory)",
            "host_memory_exhausted",
            "certain",
        ),
        (
            "OSError: The paging file is too small for this operation to complete. (os error 1455)",
            "host_memory_exhausted",
            "likely",
        ),
        (
            "RuntimeError: Current platform can NOT allocate memory block with size larger than 4GB! "
            "Tried to allocate 6.00 "
            "GiB",
            "driver_limit_not_capacity",
            "certain",
        ),
        (
            "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. "
            "Your Tesla T4 GPU has "
            "compute capability 7.5.",
            "not_memory",
            "likely",
        ),
        (
            "ValueError: Total number of attention heads (40) must be divisible by tensor parallel size (6).",
            "not_memory",
            "likely",
        ),
    ],
)
def test_one_line(line: str, cause: str, confidence: str) -> None:
    answer = diagnose(line)
    assert (answer.primary, answer.findings[0].confidence) == (cause, confidence)
    assert answer.findings[0].evidence[0].line == 1


@pytest.mark.parametrize(
    ("frames", "cause"),
    [
        (("init_device", "set_device"), "other_process_on_gpu"),
        (("capture_model", "/opt/venv/lib/torch/cuda/graphs.py:capture_end"), "cudagraph_memory"),
        (("load_model", "process_weights_after_loading", "gptq_marlin_repack"), "loading_peak"),
    ],
)
def test_without_sizes_the_place_tells(frames: tuple[str, ...], cause: str) -> None:
    assert diagnose(f"{traceback(*frames)}\nRuntimeError: CUDA error: out of memory").primary == cause


def test_a_workspace_in_one_line_and_in_several() -> None:
    one = (
        "RuntimeError: Error in function 'aligned_alloc' at flashinfer/allocator.h:49: Buffer "
        "overflow when allocating "
        "memory for batch_prefill_tmp_v with size 283115520 and alignment 16, but only 268435456 "
        "bytes available in "
        "AlignedAllocator. Increase the workspace buffer size."
    )
    several = (
        one.replace(" with size", "\n  with size")
        .replace(" but only", "\n  but only")
        .replace("memory for", "memory for")
    )
    for text in (one, several):
        answer = diagnose(text)
        assert answer.primary == "fixed_workspace_missized"
        assert answer.findings[0].confidence == "certain"
        assert "270 MiB needed, 256 MiB available" in answer.findings[0].why


def test_a_traceback_that_ends_in_a_missing_module() -> None:
    answer = diagnose(f"{traceback('main', 'run')}\nModuleNotFoundError: No module named 'acme_kernels'")
    assert answer.primary == "not_memory"


def test_a_memory_error_before_it_wins() -> None:
    answer = diagnose(
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`\n"
        f"{traceback('main')}\nKeyError: 'engine'"
    )
    assert answer.primary == "library_handle_alloc_failed"


def test_readings_that_only_rise_are_suspected_and_no_more() -> None:
    table = "| 30%   42C    P2    90W / 350W |  {used}MiB / 24576MiB |      0%      Default |\n" + "-\n" * 20
    answer = diagnose("".join(table.format(used=10000 + 2500 * n) for n in range(5)))
    leak = finding(answer, "device_memory_leak")
    assert leak.confidence == "suspected"


def test_eight_cards_of_one_table_are_no_growth() -> None:
    rows = "".join(
        f"| 30%   42C    P2    90W / 350W |  {10000 + 2000 * n}MiB / 81559MiB |      0%      Default "
        "|\n| N/A |\n"
        for n in range(8)
    )
    assert all(f.cause != "device_memory_leak" for f in diagnose(rows).findings)


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        ("/x/vllm/v1/core/block_pool.py:free_blocks", "AssertionError"),
        ("/x/vllm/core/block/naive_block.py:_free_block_id", "KeyError: 4711"),
        (
            "/x/vllm/core/block_manager.py:free",
            "ValueError: Double free! PhysicalTokenBlock(3) is already freed.",
        ),
    ],
)
def test_a_failed_check_of_the_engines_own_blocks(frame: str, error: str) -> None:
    answer = diagnose(f"{traceback('step', frame)}\n{error}")
    assert answer.primary == "engine_accounting_bug"


def test_memory_of_this_process_outside_pytorch() -> None:
    answer = diagnose(oom("96.00 MiB", 23.64, "40.00 MiB", 16.2, "20.00 MiB", process=23.5))
    assert answer.primary == "runtime_context_overhead"
    assert answer.findings[0].confidence == "suspected"
    assert "7.28 GiB" in answer.findings[0].why
