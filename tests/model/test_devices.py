"""GPUs by name: spellings, ambiguity, sizes, and the table's own consistency."""

from __future__ import annotations

import pytest

from kvprobe.errors import UsageError
from kvprobe.model.devices import device, known_devices, next_larger

GIB = 1 << 30


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("H100", "H100 SXM 80GB"),
        ("h100-80gb", "H100 SXM 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM 80GB"),
        ("H100 PCIe", "H100 PCIe 80GB"),
        ("H100 NVL", "H100 NVL 94GB"),
        ("A100-80GB", "A100 SXM 80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM 40GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4060", "RTX 4060"),
        ("RTX 4060 Ti 16GB", "RTX 4060 Ti 16GB"),
        ("l4", "L4"),
        ("L40S", "L40S"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100 32GB"),
        ("AMD Instinct MI300X", "MI300X"),
        ("h200", "H200 SXM 141GB"),
        ("B200", "B200 180GB"),
        ("DGX Spark", "DGX Spark"),
        ("RTX PRO 6000", "RTX PRO 6000 Blackwell"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    assert device(spelling).name == name


@pytest.mark.parametrize(
    ("name", "choice"), [("A100", "A100 SXM 40GB"), ("V100", "V100 16GB"), ("RTX 6000", "Ada")]
)
def test_ambiguous_names_are_refused_with_the_choices(name: str, choice: str) -> None:
    with pytest.raises(UsageError) as caught:
        device(name)
    assert caught.value.problems[0].code == "ambiguous_gpu"
    assert choice in str(caught.value.problems[0].fix)


@pytest.mark.parametrize(
    ("text", "size"), [("80GiB", 80 * GIB), ("80GB", 80 * 10**9), ("39.5 GiB", 79 * GIB // 2)]
)
def test_sizes(text: str, size: int) -> None:
    assert device(text).memory_bytes == size


@pytest.mark.parametrize("text", ["80", "0GiB", "", "   ", "foo", "H1000", "x" * 10_000, "-5GiB", "1e3GiB"])
def test_what_is_no_gpu_is_refused_with_a_fix(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        device(text)
    assert caught.value.problems[0].fix
    assert len(str(caught.value)) < 300


def test_reported_and_marketed_memory_are_told_apart() -> None:
    forty = device("A100 40GB")
    assert forty.memory_bytes == 79 * GIB // 2
    assert forty.marketed == "40 GB"
    assert "engines print" in forty.memory_source
    assert "not known" in device("Gaudi 3").memory_source


def test_table() -> None:
    devices = known_devices()
    assert len({found.name for found in devices}) == len(devices) > 80
    for found in devices:
        assert device(found.name) is found
        assert 4 * GIB < found.memory_bytes < 400 * GIB
        assert found.source
        assert found.bandwidth_bytes_per_s is None or 1e11 < found.bandwidth_bytes_per_s < 1e13
        for dtype, peak in found.peak_flops.items():
            assert dtype in ("bf16", "fp8", "fp4")
            assert 1e13 < peak < 2e16
        if "bf16" in found.peak_flops and "fp8" in found.peak_flops:
            assert found.peak_flops["bf16"] <= found.peak_flops["fp8"]


def test_next_larger() -> None:
    up = next_larger(device("H100").memory_bytes)
    assert up is not None
    assert up.name == "H200 SXM 141GB"
    assert next_larger(500 * GIB) is None


@pytest.mark.parametrize(
    "name", ["H800", "A100 PCIe 80GB", "RTX 4060", "RTX 4070 Ti", "L40", "GH200 96GB", "MI308X", "DGX Spark"]
)
def test_totals_of_siblings_are_no_certain_numbers(name: str) -> None:
    assert "not checked" in device(name).memory_source


@pytest.mark.parametrize(
    ("name", "printed_gib"),
    [
        ("L40S", 44.42),
        ("H200", 139.81),
        ("L4", 22.03),
        ("A10G", 22.06),
        ("B200", 178.35),
        ("H100 PCIe", 79.11),
        ("RTX A5000", 23.57),
        ("MI355X", 287.98),
        ("MI325X", 255.98),
    ],
)
def test_totals_that_logs_print(name: str, printed_gib: float) -> None:
    found = device(name)
    assert round(found.memory_bytes / GIB, 2) == printed_gib
    assert "engines print" in found.memory_source
