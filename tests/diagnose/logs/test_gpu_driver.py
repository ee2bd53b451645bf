"""Xid events, lost devices and collectives that time out: faults, never capacity."""

from __future__ import annotations

import pytest

from tests.diagnose.logs.enginekit import diagnosis, primary


@pytest.mark.parametrize(
    ("text", "cause", "confidence"),
    [
        (
            "[ 9.1] NVRM: Xid (PCI:0000:0b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the "
            "bus.",
            "gpu_hw_fault",
            "certain",
        ),
        (
            "NVRM: Xid (PCI:0000:0b:00): 94, pid=99, name=python3, Contained: SM (0x1).",
            "gpu_hw_fault",
            "certain",
        ),
        (
            "NVRM: Xid (PCI:0000:0b:00): 31, pid=99, name=python3, Ch 00000008, MMU Fault",
            "gpu_software_fault",
            "likely",
        ),
        (
            "kernel: NVRM: Xid (PCI:0000:0b:00): 45, pid=9, name=python3, Ch 01 caused by previous Xid 149",
            "gpu_hw_fault",
            "likely",
        ),
        ("Xid 48 on the second card, then the pod was gone", "gpu_hw_fault", "likely"),
        (
            "Memory access fault by GPU node-4 (Agent handle: 0x55) on address 0x7f00. Reason: Page not "
            "present.",
            "gpu_software_fault",
            None,
        ),
    ],
)
def test_codes_and_excerpts(text: str, cause: str, confidence: str | None) -> None:
    found = primary(text)
    assert found.cause == cause
    assert confidence is None or found.confidence == confidence
    ruled_out = {f.cause for f in diagnosis(text).findings if f.role == "ruled_out"}
    assert "capacity_exhausted" in ruled_out or confidence is None


def test_hardware_comes_before_what_followed_it() -> None:
    text = (
        "NVRM: Xid (PCI:0000:0b:00): 31, pid=99, name=python3, MMU Fault\nNVRM: Xid (PCI:0000:0b:00): "
        "79, pid=99, name=python3, GPU has fallen off the bus.\nNVRM: Xid (PCI:0000:0b:00): 154, GPU "
        "recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)\n"
    )
    found = primary(text)
    assert found.cause == "gpu_hw_fault"
    assert "Xid 79" in found.why


def test_off_the_bus_without_an_xid() -> None:
    text = (
        "[ 1843.3] NVRM: The NVIDIA GPU 0000:b3:00.0\n               NVRM: (PCI ID: 10de:26b5) "
        "installed in this system has\n               NVRM: fallen off the bus and is not responding to "
        "commands.\n"
    )
    assert primary(text).cause == "gpu_hw_fault"


WATCHDOG = (
    "[rank3]:[E910 10:00:00.123456789 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=77, OpType=ALLREDUCE, NumelIn=8192, NumelOut=8192, "
    "Timeout(ms)=600000) ran for 600031 milliseconds before timing out.\n"
)


def test_a_collective_timeout_with_nvml_gone_is_hardware() -> None:
    """S13: capacity advice is suppressed."""
    found = primary(WATCHDOG + "Unable to determine the device handle for GPU 0000:C1:00.0: Unknown Error\n")
    assert found.cause == "gpu_hw_fault"
    assert "capacity settings cannot help" in found.why


def test_a_collective_timeout_alone_is_not_memory() -> None:
    found = primary(WATCHDOG)
    assert (found.cause, found.confidence) == ("not_memory", "suspected")


def test_firmware_that_does_not_answer() -> None:
    text = (
        "[ 24.3] NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out, currentTimeMs 8127 timeout 5200\n"
    )
    assert primary(text).cause == "gpu_hw_fault"
