"""An out-of-memory without a phase: what its numbers tell, and how little they prove."""

from __future__ import annotations

import pytest

from tests.diagnose.logs.reading import diagnose, finding, oom, roles

V1_PREFIX = "(Worker_TP1 pid=771) ERROR 04-02 11:20:31 [multiproc_executor.py:822] "
FULL = oom("150.00 MiB", 47.40, "60.00 MiB", 46.1, "50.00 MiB", process=47.3)


def test_a_wording_without_free_bytes_on_an_empty_xpu_is_the_drivers_limit() -> None:
    answer = diagnose(
        "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 6.00 GiB. GPU 0 has a total capacity "
        "of 23.91 GiB. Of the allocated memory 12.00 MiB is allocated by PyTorch, and 8.00 MiB is "
        "reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied cached "
        "memory.\n"
    )
    assert answer.primary == "driver_limit_not_capacity"
    assert answer.findings[0].confidence == "likely"
    assert "23.9 GiB" in answer.findings[0].why


def test_a_wording_without_free_bytes_on_a_full_xpu_is_not() -> None:
    answer = diagnose(
        "RuntimeError: XPU out of memory. Tried to allocate 1.20 GiB (GPU 0; 15.91 GiB total capacity; "
        "15.02 GiB already allocated; 15.40 GiB reserved in total by PyTorch)\n"
    )
    assert answer.primary == "capacity_exhausted"
    assert answer.findings[0].confidence == "suspected"


def test_a_message_cut_before_its_free_bytes_proves_nothing() -> None:
    answer = diagnose("CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 23.65 GiB total\n")
    assert answer.findings[0].confidence == "suspected"


def test_one_allocation_of_a_third_of_the_card_is_a_transient() -> None:
    answer = diagnose(oom("8.40 GiB", 23.64, "3.10 GiB", 18.9, "300.00 MiB", process=20.4) + "\n")
    assert answer.primary == "runtime_activation_spike"
    assert answer.findings[0].confidence == "suspected"


def test_graph_pools_say_that_the_pool_was_in_place() -> None:
    line = FULL.replace(
        "allocated by PyTorch,", "allocated by PyTorch, with 240.00 MiB allocated in private pools,"
    )
    answer = diagnose(f"{V1_PREFIX}{line}\n")
    assert answer.primary == "gpu_memory_utilization_too_high"
    assert answer.findings[0].confidence == "suspected"


def test_more_allocated_than_the_budget_allows_was_not_the_pool() -> None:
    command = "vllm serve acme/model --gpu-memory-utilization 0.85 --max-model-len 4096\n"
    answer = diagnose(f"{command}{V1_PREFIX}{FULL}\n")
    assert answer.primary == "weights_plus_fixed_too_large"
    assert answer.findings[0].confidence == "suspected"


def test_a_dummy_sampler_run_is_known_by_its_source_line() -> None:
    answer = diagnose(
        "(EngineCore_DP0 pid=71)                    sampling_metadata=dummy_metadata)\n"
        f"(EngineCore_DP0 pid=71) {FULL}\n"
    )
    assert answer.primary == "gpu_memory_utilization_too_high"
    assert "warm-up" in answer.findings[0].why


def test_pieces_stand_behind_the_root_of_the_same_message() -> None:
    line = oom("64.00 MiB", 15.92, "20.00 MiB", 15.6, "90.00 MiB", process=15.8)
    answer = diagnose(f"{V1_PREFIX}{line}\n")
    assert answer.primary == "gpu_memory_utilization_too_high"
    assert roles(answer)["allocator_fragmentation"] == "secondary"


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: [enforce fail at CPUAllocator.cpp:56] posix_memalign(&data, gAlignment, nbytes) "
        "== 0. 12 vs 0",
        "RuntimeError: [enforce fail at alloc_cpu.cpp:116] err == 0. DefaultCPUAllocator: can't allocate "
        "memory: you tried to allocate 40802189312 bytes. Error code 12 (Cannot allocate memory)",
    ],
)
def test_host_allocations(line: str) -> None:
    assert diagnose(f"{line}\n").primary == "host_memory_exhausted"


def test_a_handle_in_other_words() -> None:
    answer = diagnose("Check failed: err == CUBLAS_STATUS_SUCCESS (3 vs. 0) : Create cublas handle failed\n")
    assert finding(answer, "library_handle_alloc_failed").role == "primary"
