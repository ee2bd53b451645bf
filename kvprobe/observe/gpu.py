"""The GPUs of this machine: NVIDIA's through NVML, AMD's through amdsmi where it is installed.

A machine without a driver is a statement, made once; a reading that a device does not offer is null,
never 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvprobe.observe.amd import AmdProbe
from kvprobe.observe.nvml import GpuReading, NvmlProbe

NO_DEVICE = "no NVML device"


class GpuProbe:
    """Reads every GPU; without a driver there is none and `statement` says so."""

    def __init__(self) -> None:
        self._nvml, self._amd = NvmlProbe(), AmdProbe()
        devices = [*self._nvml.devices, *self._amd.devices]
        self.statement: str | list[dict[str, Any]] = devices or NO_DEVICE
        self.reason: str | None = None if devices else self._nvml.reason
        """Why there is no device, in NVML's words."""

    def read(self, pids: Iterable[int] = ()) -> list[GpuReading]:
        """(metric, labels, value) of every device; `pids` get their own memory where it is told."""
        wanted = frozenset(pids)
        return [*self._nvml.read(wanted), *self._amd.read(wanted)]

    def close(self) -> None:
        """Give the drivers back; a second call does nothing."""
        self._nvml.close()
        self._amd.close()
