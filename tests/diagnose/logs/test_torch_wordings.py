"""One message in every wording since 1.0, with numbers of our own."""

from __future__ import annotations

import pytest

from tests.diagnose.logs.reading import diagnose, first

GIB, MIB = 2**30, 2**20


def _near(value: int, gib: float) -> bool:
    return abs(value - gib * GIB) < MIB


def test_1_0_cached_below_allocated_is_the_unallocated_part() -> None:
    oom = first(
        "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 2; 15.75 GiB total "
        "capacity; 12.00 GiB "
        "already allocated; 256.00 MiB free; 3.00 GiB cached)",
        "torch_oom",
    )
    assert oom["reserved_unallocated"] == 3 * GIB
    assert oom["device"] == 2


def test_1_3_cached_above_allocated_is_the_total() -> None:
    oom = first(
        "RuntimeError: CUDA out of memory. Tried to allocate 1.50 GiB (GPU 0; 15.75 GiB total "
        "capacity; 12.00 GiB "
        "already allocated; 256.00 MiB free; 15.00 GiB cached)",
        "torch_oom",
    )
    assert oom["reserved_unallocated"] == 3 * GIB


def test_1_4_to_2_0_reserved_includes_allocated() -> None:
    oom = first(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.30 GiB (GPU 1; 47.54 GiB total "
        "capacity; 40.10 GiB already allocated; 2.20 GiB free; 44.60 GiB reserved in total by "
        "PyTorch) If reserved "
        "memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.",
        "torch_oom",
    )
    assert _near(oom["requested"], 3.3)
    assert _near(oom["reserved_unallocated"], 4.5)
    assert _near(oom["total"], 47.54)
    assert "own_process" not in oom


def test_2_1_with_its_typo_and_processes() -> None:
    oom = first(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 0 has a "
        "total capacty of "
        "23.69 GiB of which 12.00 MiB is free. Process 901 has 3.00 GiB memory in use. Process 902 "
        "has 1.00 GiB memory "
        "in use. Including non-PyTorch memory, this process has 19.50 GiB memory in use. Of the "
        "allocated memory 18.90 "
        "GiB is allocated by PyTorch, and 40.00 MiB is reserved by PyTorch but unallocated.",
        "torch_oom",
    )
    assert oom["others"] == 4 * GIB
    assert [p["pid"] for p in oom["others_list"]] == [901, 902]
    assert _near(oom["own_process"], 19.5)


def test_in_a_container_ours_is_the_process_that_can_hold_what_is_reserved() -> None:
    oom = first(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 0 has a total "
        "capacity of 23.69 "
        "GiB of which 12.00 MiB is free. Process 5 has 2.50 GiB memory in use. Process 7 has 21.10 "
        "GiB memory in use. Of "
        "the allocated memory 20.00 GiB is allocated by PyTorch, with 80.00 MiB allocated in private "
        "pools (e.g., CUDA "
        "Graphs), and 300.00 MiB is reserved by PyTorch but unallocated.",
        "torch_oom",
    )
    assert _near(oom["own_process"], 21.1)
    assert _near(oom["others"], 2.5)
    assert oom["private_pools"] == 80 * MIB


def test_a_fraction_of_the_process() -> None:
    oom = first(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 79.10 GiB "
        "of which 60.00 GiB is free. Including non-PyTorch memory, this process has 18.00 GiB memory "
        "in use. 19.77 GiB "
        "allowed; Of the allocated memory 17.40 GiB is allocated by PyTorch, and 900.00 MiB is "
        "reserved by PyTorch but "
        "unallocated.",
        "torch_oom",
    )
    assert _near(oom["allowed"], 19.77)


@pytest.mark.parametrize(("word", "backend"), [("HIP", "hip"), ("XPU", "xpu"), ("NPU", "npu")])
def test_other_back_ends(word: str, backend: str) -> None:
    oom = first(
        f"torch.OutOfMemoryError: {word} out of memory. Tried to allocate 1.00 GiB. GPU 0 has a "
        "total capacity of 31.98 "
        "GiB of which 500.00 MiB is free. Of the allocated memory 30.00 GiB is allocated by PyTorch, "
        "and 100.00 MiB is "
        "reserved by PyTorch but unallocated. Please use `empty_cache` to release all unoccupied "
        "cached memory.",
        "torch_oom",
    )
    assert oom["backend"] == backend
    assert _near(oom["allocated"], 30)


@pytest.mark.parametrize("unit", ["GB", "GiB"])
def test_metal_counts_other_allocations_as_its_own(unit: str) -> None:
    text = (
        f"RuntimeError: MPS backend out of memory (MPS allocated: 20.00 {unit}, other allocations: "
        f"6.00 {unit}, max "
        f"allowed: 27.20 {unit}). Tried to allocate 2.00 {unit} on private pool. Use "
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0"
    )
    oom = first(text, "torch_oom")
    assert (oom["mps_allocated"], oom["mps_other"]) == (20 * GIB, 6 * GIB)
    answer = diagnose(text)
    assert answer.primary == "capacity_exhausted"
    assert "28.0 GiB" in answer.findings[0].why


def test_a_message_that_a_paste_broke() -> None:
    oom = first(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. GPU 0 has a total\n"
        "capacity of 23.69 GiB of which 700.00 MiB is free. Including non-PyTorch memory, this process\n"
        "has 22.90 GiB memory in use. Of the allocated memory 22.00 GiB is allocated by PyTorch, and\n"
        "400.00 MiB is reserved by PyTorch but unallocated.\n",
        "torch_oom",
    )
    assert _near(oom["total"], 23.69)
    assert oom["reserved_unallocated"] == 400 * MIB


@pytest.mark.parametrize("size", ["17179869183.99 GiB", "17179869184.00 GiB"])
def test_a_size_that_wrapped_round_is_no_demand(size: str) -> None:
    answer = diagnose(
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {size}. GPU 0 has a total "
        "capacity of 47.53 GiB of which 20.00 GiB is free."
    )
    assert answer.primary == "engine_accounting_bug"
    assert answer.findings[0].confidence == "certain"
    assert {f.cause: f.role for f in answer.findings}["not_memory"] == "secondary"


def test_only_the_first_words_of_the_message() -> None:
    answer = diagnose("RuntimeError: CUDA out of memory.")
    assert answer.primary in ("capacity_exhausted", "unknown")
    assert answer.findings[0].confidence == "suspected"


def test_the_report_that_failed_is_an_out_of_memory_of_unknown_size() -> None:
    answer = diagnose(
        'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":9, '
        "please "
        "report a bug to PyTorch."
    )
    assert answer.primary == "capacity_exhausted"


def test_the_asynchronous_back_end_in_a_table() -> None:
    text = (
        "torch.cuda.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 20.10 GiB\nRequested               : 3.20 GiB\n"
        "Device limit            : 23.60 GiB\nFree (according to CUDA): 18.00 MiB\n"
    )
    oom = first(text, "torch_oom")
    assert _near(oom["requested"], 3.2)
    assert _near(oom["pool_allocated"], 20.1)
    assert "allocated" not in oom
    assert diagnose(text).primary == "capacity_exhausted"


def test_the_allocators_own_warning_in_plain_bytes() -> None:
    oom = first(
        "[rank1]:[W801 10:00:00.1 CUDACachingAllocator.cpp:3933] memory allocation failed with OOM "
        "on device 3\n"
        "  while trying to allocate 805306368 bytes (free: 402653184, total: 85095874560).\n",
        "torch_oom",
    )
    assert (oom["requested"], oom["free"], oom["device"]) == (805306368, 402653184, 3)


def test_npu_with_its_current_active_clause() -> None:
    oom = first(
        "RuntimeError: NPU out of memory. Tried to allocate 22.00 MiB (NPU 6; 60.97 GiB total "
        "capacity; 50.24 GiB already "
        "allocated; 50.24 GiB current active; 19.79 MiB free; 51.00 GiB reserved in total by PyTorch)",
        "torch_oom",
    )
    assert _near(oom["total"], 60.97)
    assert _near(oom["free"], 19.79 / 1024)
    assert _near(oom["reserved_unallocated"], 0.76)
