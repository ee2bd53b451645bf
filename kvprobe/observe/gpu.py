"""The GPUs of this machine through NVML (package nvidia-ml-py, import name pynvml).

A machine without a driver is a statement, made once; a reading that a device does not offer (MIG,
vGPU, old boards) is null, never 0. `utilization_ratio` is NVML's: the share of time in which any
kernel ran, which says nothing about how full the GPU was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

NO_DEVICE = "no NVML device"

GpuReading = tuple[str, dict[str, str], float | None]


class GpuProbe:
    """Reads every NVML device; without a driver it has none and `statement` says so."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._nvml: Any = None
        self.statement: str | list[dict[str, Any]] = NO_DEVICE
        self.reason: str | None = None
        """Why there is no device, in NVML's words."""
        self._open()

    def read(self, pids: Iterable[int] = ()) -> list[GpuReading]:
        """(metric, labels, value) of every device; `pids` get their own memory where NVML tells it."""
        wanted = frozenset(pids)
        readings: list[GpuReading] = []
        for index, handle in enumerate(self._handles):
            labels = {"gpu": str(index)}
            memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
            rates = self._ask("nvmlDeviceGetUtilizationRates", handle)
            readings += [
                ("gpu.memory_total_bytes", labels, _number(memory, "total")),
                ("gpu.memory_used_bytes", labels, _number(memory, "used")),
                ("gpu.memory_free_bytes", labels, _number(memory, "free")),
                ("gpu.utilization_ratio", labels, _ratio(_number(rates, "gpu"))),
            ]
            for process in self._ask("nvmlDeviceGetComputeRunningProcesses", handle) or ():
                if process.pid in wanted:
                    of_process = {**labels, "pid": str(process.pid)}
                    value = _number(process, "usedGpuMemory")
                    readings.append(("gpu.process_memory_bytes", of_process, value))
        return readings

    def close(self) -> None:
        """Give NVML back; a second call does nothing."""
        if self._nvml is not None:
            self._ask("nvmlShutdown")
            self._nvml, self._handles = None, []

    def _open(self) -> None:
        try:
            import pynvml
        except ImportError as exc:
            self.reason = str(exc)
            return
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as exc:
            self.reason = str(exc)
            return
        self._nvml = pynvml
        for index in range(self._ask("nvmlDeviceGetCount") or 0):
            handle = self._ask("nvmlDeviceGetHandleByIndex", index)
            if handle is not None:
                self._handles.append(handle)
        if self._handles:
            self.statement = [self._describe(index, handle) for index, handle in enumerate(self._handles)]

    def _describe(self, index: int, handle: Any) -> dict[str, Any]:
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        return {
            "gpu": index,
            "name": _text(self._ask("nvmlDeviceGetName", handle)),
            "uuid": _text(self._ask("nvmlDeviceGetUUID", handle)),
            "memory_total_bytes": _number(memory, "total"),
            "driver": _text(self._ask("nvmlSystemGetDriverVersion")),
        }

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Call NVML; null for what the device, the driver or this pynvml does not offer."""
        call: Callable[..., Any] | None = getattr(self._nvml, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None


def _number(struct: Any, name: str) -> float | None:
    value = getattr(struct, name, None)
    return None if value is None else float(value)


def _ratio(percent: float | None) -> float | None:
    return None if percent is None else percent / 100.0


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None
