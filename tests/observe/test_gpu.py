"""NVML: the real library where there is no driver, and a small NVML of our own behind the real pynvml."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pynvml
import pytest

from kvprobe.observe.amd import AmdProbe
from kvprobe.observe.gpu import NO_DEVICE, GpuProbe
from kvprobe.observe.nvml import throttle_reasons

_READ = """
import json
from kvprobe.observe.gpu import GpuProbe
probe = GpuProbe()
reads = [probe.read([4242, 4243, 1]) for _ in range(4)]
print(json.dumps({"statement": probe.statement, "reads": reads}))
probe.close()
probe.close()
print(probe.read())
"""
GIB = 2**30


def has_driver() -> bool:
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    pynvml.nvmlShutdown()
    return True


@pytest.mark.skipif(has_driver(), reason="this machine has a driver")
def test_without_a_driver_there_is_one_statement_and_no_reading() -> None:
    probe = GpuProbe()
    assert probe.statement == NO_DEVICE
    assert probe.reason
    assert probe.read([os.getpid()]) == []
    probe.close()


@pytest.mark.skipif(not has_driver(), reason="this machine has no NVML driver")
def test_real_devices_tell_their_memory() -> None:
    probe = GpuProbe()
    assert isinstance(probe.statement, list)
    readings = {metric: value for metric, labels, value in probe.read() if labels == {"gpu": "0"}}
    probe.close()
    assert readings["gpu.memory_total_bytes"]


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the probe says when libnvidia-ml.so.1 is the one of fake_nvml.c."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("install a C compiler (Debian: gcc libc6-dev)")
    folder = tmp_path_factory.mktemp("nvml")
    source = Path(__file__).with_name("fake_nvml.c")
    library = folder / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    done = subprocess.run(
        [sys.executable, "-c", _READ],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, after_close = done.stdout.splitlines()
    assert after_close == "[]"
    said: dict[str, Any] = json.loads(first)
    return said


def values(reading: list[Any], gpu: str, mig: str | None = None) -> dict[str, float | None]:
    """Readings of one device without further labels."""
    wanted = {"gpu": gpu, **({"mig": mig} if mig is not None else {})}
    return {metric: value for metric, labels, value in reading if labels == wanted}


def test_devices_are_described(fake: dict[str, Any]) -> None:
    said = fake["statement"]
    assert said[0] == {
        "gpu": 0,
        "name": "Fake H1",
        "uuid": "GPU-1",
        "memory_total_bytes": 80 * GIB,
        "driver": "999.1",
        "mig": False,
        "xid_events": True,
    }
    assert (said[1]["name"], said[1]["memory_total_bytes"], said[1]["xid_events"]) == (None, None, False)
    assert [(d["gpu"], d.get("mig_instance"), d.get("mig")) for d in said] == [
        (0, None, False),
        (1, None, False),
        (2, None, True),
        (2, 0, None),
        (2, 2, None),
        (3, None, False),
        (4, None, False),
    ]


def test_a_device_that_offers_everything(fake: dict[str, Any]) -> None:
    assert values(fake["reads"][0], "0") == {
        "gpu.memory_total_bytes": 80 * GIB,
        "gpu.memory_used_bytes": 59 * GIB,
        "gpu.memory_free_bytes": 20 * GIB,
        "gpu.memory_reserved_bytes": GIB,
        "gpu.processes": 3,
        # One other process is known (3 GiB); 4242 and 4243 are asked for.
        "gpu.other_processes_memory_bytes": 3 * GIB,
        "gpu.utilization_ratio": pytest.approx(0.42),
        "gpu.memory_busy_ratio": pytest.approx(0.07),
        "gpu.power_w": pytest.approx(350.5),
        "gpu.power_limit_w": 700,
        "gpu.temperature_c": 61,
        "gpu.sm_clock_hz": 1.98e9,
        "gpu.memory_clock_hz": 2.619e9,
        "gpu.throttle_mask": 69,
        "gpu.ecc_corrected_total": 17,
        "gpu.ecc_uncorrected_total": 2,
    }
    of_pids = {
        labels["pid"]: value
        for metric, labels, value in fake["reads"][0]
        if metric == "gpu.process_memory_bytes" and labels["gpu"] == "0"
    }
    assert of_pids == {"4242": 5 * GIB, "4243": None}
    assert throttle_reasons(69) == ["sw_power_cap", "hw_thermal"]
    assert throttle_reasons(1) == throttle_reasons(None) == []


def test_what_a_device_does_not_support_is_null_or_absent(fake: dict[str, Any]) -> None:
    for read in fake["reads"]:
        nothing = values(read, "1")
        assert set(nothing) >= {"gpu.memory_total_bytes", "gpu.power_w", "gpu.ecc_uncorrected_total"}
        assert set(nothing.values()) == {None}
    old = values(fake["reads"][0], "4")
    assert (old["gpu.memory_used_bytes"], old["gpu.memory_reserved_bytes"]) == (60 * GIB, None)


def test_mig_instances_have_memory_of_their_own(fake: dict[str, Any]) -> None:
    instance = values(fake["reads"][0], "2", "0")
    assert instance["gpu.memory_total_bytes"] == 10 * GIB
    assert instance["gpu.memory_used_bytes"] == 6.5 * GIB
    assert "gpu.utilization_ratio" not in instance
    assert values(fake["reads"][0], "2", "1") == {}
    assert values(fake["reads"][0], "2", "2")["gpu.memory_total_bytes"] == 10 * GIB


def test_a_gpu_that_is_lost_mid_run_says_so_and_nothing_else(fake: dict[str, Any]) -> None:
    first, last = fake["reads"][0], fake["reads"][-1]
    assert values(first, "3")["gpu.memory_total_bytes"] == 80 * GIB
    assert "gpu.lost" not in values(first, "3")
    assert values(last, "3") == {"gpu.lost": 1}
    assert values(last, "0")["gpu.memory_total_bytes"] == 80 * GIB


def test_an_xid_event_is_one_reading(fake: dict[str, Any]) -> None:
    told = [(labels, value) for read in fake["reads"] for m, labels, value in read if m == "gpu.xid"]
    assert told == [({"gpu": "0", "xid": "79"}, 1.0)]


class AmdSmi(types.ModuleType):
    """amdsmi as its documentation shows it, with one GPU."""

    def __init__(self) -> None:
        super().__init__("amdsmi")
        self.shut = 0

    class AmdSmiLibraryException(Exception):
        __module__ = "amdsmi.amdsmi_exception"

    def amdsmi_init(self) -> None: ...

    def amdsmi_shut_down(self) -> None:
        self.shut += 1

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["handle"]

    def amdsmi_get_gpu_asic_info(self, _handle: str) -> dict[str, str]:
        return {"market_name": "Fake MI"}

    def amdsmi_get_gpu_device_uuid(self, _handle: str) -> str:
        return "uuid-1"

    def amdsmi_get_gpu_vram_usage(self, _handle: str) -> dict[str, int]:
        return {"vram_total": 1024, "vram_used": 512}

    def amdsmi_get_gpu_activity(self, _handle: str) -> dict[str, object]:
        return {"gfx_activity": 50, "umc_activity": "N/A"}

    def amdsmi_get_power_info(self, _handle: str) -> dict[str, object]:
        raise self.AmdSmiLibraryException

    def amdsmi_get_gpu_process_list(self, _handle: str) -> list[dict[str, object]]:
        return [{"pid": 7, "memory_usage": {"vram_mem": 99}}, {"pid": 8}]


def test_amd_where_amdsmi_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    smi = AmdSmi()
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    probe = AmdProbe()
    assert probe.devices == [
        {"gpu": "amd0", "name": "Fake MI", "uuid": "uuid-1", "memory_total_bytes": 2**30}
    ]
    read = {(metric, labels.get("pid")): value for metric, labels, value in probe.read([7, 9])}
    assert read == {
        ("gpu.memory_total_bytes", None): 2**30,
        ("gpu.memory_used_bytes", None): 2**29,
        ("gpu.memory_free_bytes", None): 2**29,
        ("gpu.utilization_ratio", None): 0.5,
        ("gpu.memory_busy_ratio", None): None,
        ("gpu.power_w", None): None,
        ("gpu.process_memory_bytes", "7"): 99,
    }
    probe.close()
    probe.close()
    assert (smi.shut, probe.read()) == (1, [])
