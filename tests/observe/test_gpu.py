"""NVML: the real library where there is no driver, and a small NVML of our own behind the real pynvml."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from kvprobe.observe.gpu import NO_DEVICE, GpuProbe

_READ = """
import json
from kvprobe.observe.gpu import GpuProbe
probe = GpuProbe()
print(json.dumps({"statement": probe.statement, "readings": probe.read([4242, 4243, 1])}))
probe.close()
probe.close()
print(probe.read())
"""


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


def test_devices_are_described(fake: dict[str, Any]) -> None:
    first, second = fake["statement"]
    assert first == {
        "gpu": 0,
        "name": "Fake H1",
        "uuid": "GPU-1",
        "memory_total_bytes": 80 * 2**30,
        "driver": "999.1",
    }
    assert (second["name"], second["memory_total_bytes"]) == (None, None)


def test_what_a_device_does_not_support_is_null(fake: dict[str, Any]) -> None:
    readings = {
        (metric, labels["gpu"], labels.get("pid")): value for metric, labels, value in fake["readings"]
    }
    assert readings == {
        ("gpu.memory_total_bytes", "0", None): 80 * 2**30,
        ("gpu.memory_used_bytes", "0", None): 60 * 2**30,
        ("gpu.memory_free_bytes", "0", None): 20 * 2**30,
        ("gpu.utilization_ratio", "0", None): 0.42,
        ("gpu.process_memory_bytes", "0", "4242"): 5 * 2**30,
        ("gpu.process_memory_bytes", "0", "4243"): None,
        ("gpu.memory_total_bytes", "1", None): None,
        ("gpu.memory_used_bytes", "1", None): None,
        ("gpu.memory_free_bytes", "1", None): None,
        ("gpu.utilization_ratio", "1", None): None,
    }
