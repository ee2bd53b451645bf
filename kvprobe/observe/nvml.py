"""NVIDIA's GPUs of this machine through NVML (package nvidia-ml-py, import name pynvml).

A reading that a device does not offer (MIG, vGPU, old boards) is null, never 0; a call that a device
once answered with "not supported" is not made again. `gpu.utilization_ratio` is NVML's: the share of time
in which any kernel ran, which says nothing about how full the GPU was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

GpuReading = tuple[str, dict[str, str], float | None]

_REASONS = (
    (4, "sw_power_cap"),
    (8, "hw_slowdown"),
    (16, "sync_boost"),
    (32, "sw_thermal"),
    (64, "hw_thermal"),
    (128, "hw_power_brake"),
    (512, "board_limit"),
    (1024, "reliability"),
)
"""nvmlClocksEventReasons that slow a GPU down; idle (1) and clocks set by the user (2, 256) do not count."""
_MAX_EVENTS = 64
"""Xid events taken in one look."""


@dataclass(frozen=True, slots=True)
class _Device:
    handle: Any
    labels: dict[str, str]
    parent: bool = True
    """False for a MIG instance, which has memory and processes and shares the rest with its GPU."""


class NvmlProbe:
    """Reads every NVML device; without a driver `devices` is empty and `reason` says why."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[_Device] = []
        self._events: Any = None
        self._refused: set[tuple[str, str]] = set()
        self._lost: set[str] = set()
        self.reason: str | None = None
        self.devices: list[dict[str, Any]] = []
        """What each GPU and MIG instance is."""
        self._open()

    def read(self, pids: Iterable[int] = ()) -> list[GpuReading]:
        """(metric, labels, value) of every device; `pids` get their own memory where NVML tells it.

        A GPU that fell off the bus reads `gpu.lost` 1 and nothing else from then on.
        """
        wanted = frozenset(pids)
        readings: list[GpuReading] = []
        for device in self._devices:
            if device.labels["gpu"] not in self._lost:
                own = [*self._memory(device), *self._processes(device, wanted)]
                readings += [*own, *self._state(device)] if device.parent else own
            if device.parent and device.labels["gpu"] in self._lost:
                readings.append(("gpu.lost", device.labels, 1.0))
        return [*readings, *self._xids()]

    def close(self) -> None:
        """Give NVML back; a second call does nothing."""
        if self._nvml is None:
            return
        if self._events is not None:
            self._ask("nvmlEventSetFree", self._events)
        self._ask("nvmlShutdown")
        self._nvml, self._events, self._devices = None, None, []

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
                self._devices.append(_Device(handle, {"gpu": str(index)}))
                self._devices += self._mig_instances(index, handle)
        watched = self._watch_xids()
        self.devices = [self._describe(device, watched) for device in self._devices]

    def _mig_instances(self, index: int, handle: Any) -> Iterator[_Device]:
        mode = self._ask("nvmlDeviceGetMigMode", handle)
        if not mode or mode[0] != 1:
            return
        for number in range(self._ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            instance = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
            if instance is not None:  # places without an instance answer "not found"
                yield _Device(instance, {"gpu": str(index), "mig": str(number)}, parent=False)

    def _describe(self, device: _Device, watched: set[str]) -> dict[str, Any]:
        handle = device.handle
        memory = self._ask("nvmlDeviceGetMemoryInfo", handle)
        gpu = device.labels["gpu"]
        described: dict[str, Any] = {
            "gpu": int(gpu),
            "name": _text(self._ask("nvmlDeviceGetName", handle)),
            "uuid": _text(self._ask("nvmlDeviceGetUUID", handle)),
            "memory_total_bytes": _number(memory, "total"),
            "driver": _text(self._ask("nvmlSystemGetDriverVersion")),
        }
        if device.parent:
            described["mig"] = any(d.labels["gpu"] == gpu and not d.parent for d in self._devices)
            described["xid_events"] = gpu in watched
        else:
            described["mig_instance"] = int(device.labels["mig"])
        return described

    def _memory(self, device: _Device) -> Iterator[GpuReading]:
        """`used` leaves out what the driver reserves for itself, where NVML tells it apart (version 2)."""
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        memory = self._of(device, "nvmlDeviceGetMemoryInfo", version) if version is not None else None
        reserved = _number(memory, "reserved")
        if memory is None:
            memory = self._of(device, "nvmlDeviceGetMemoryInfo")
        yield "gpu.memory_total_bytes", device.labels, _number(memory, "total")
        yield "gpu.memory_used_bytes", device.labels, _number(memory, "used")
        yield "gpu.memory_free_bytes", device.labels, _number(memory, "free")
        yield "gpu.memory_reserved_bytes", device.labels, reserved

    def _processes(self, device: _Device, wanted: frozenset[int]) -> Iterator[GpuReading]:
        found = self._of(device, "nvmlDeviceGetComputeRunningProcesses")
        if found is None:
            return
        memory = {p.pid: _number(p, "usedGpuMemory") for p in found}
        yield "gpu.processes", device.labels, float(len(memory))
        mine = wanted & memory.keys()
        for pid in sorted(mine):
            yield "gpu.process_memory_bytes", {**device.labels, "pid": str(pid)}, memory[pid]
        # Who is not found may be under another number here (a container): then nobody is "other".
        if mine:
            rest = [value for pid, value in memory.items() if pid not in mine]
            known = [value for value in rest if value is not None]
            whole = sum(known) if len(known) == len(rest) else None
            yield "gpu.other_processes_memory_bytes", device.labels, whole

    def _state(self, device: _Device) -> Iterator[GpuReading]:
        labels, nvml = device.labels, self._nvml
        rates = self._of(device, "nvmlDeviceGetUtilizationRates")
        yield "gpu.utilization_ratio", labels, _scaled(_number(rates, "gpu"), 1e-2)
        yield "gpu.memory_busy_ratio", labels, _scaled(_number(rates, "memory"), 1e-2)
        for metric, call, argument, scale in (
            ("gpu.power_w", "nvmlDeviceGetPowerUsage", None, 1e-3),
            ("gpu.power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", None, 1e-3),
            ("gpu.temperature_c", "nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU, 1.0),
            ("gpu.sm_clock_hz", "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM, 1e6),
            ("gpu.memory_clock_hz", "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM, 1e6),
        ):
            given = () if argument is None else (argument,)
            yield metric, labels, _scaled(self._of(device, call, *given), scale)
        mask = self._of(device, "nvmlDeviceGetCurrentClocksEventReasons")
        if mask is None:
            mask = self._of(device, "nvmlDeviceGetCurrentClocksThrottleReasons")
        yield "gpu.throttle_mask", labels, _scaled(mask, 1.0)
        for kind, error in (
            ("corrected", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ("uncorrected", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        ):
            count = self._of(device, "nvmlDeviceGetTotalEccErrors", error, nvml.NVML_VOLATILE_ECC)
            yield f"gpu.ecc_{kind}_total", labels, _scaled(count, 1.0)

    def _watch_xids(self) -> set[str]:
        """The GPUs whose Xid events will be told; the driver offers them to some users and boards only."""
        self._events = self._ask("nvmlEventSetCreate")
        if self._events is None:
            return set()
        watched = set()
        for device in self._devices:
            if device.parent:
                wanted = self._nvml.nvmlEventTypeXidCriticalError
                try:
                    self._nvml.nvmlDeviceRegisterEvents(device.handle, wanted, self._events)
                except self._nvml.NVMLError:
                    continue  # told as `xid_events: false`
                watched.add(device.labels["gpu"])
        if not watched:
            self._ask("nvmlEventSetFree", self._events)
            self._events = None
        return watched

    def _xids(self) -> Iterator[GpuReading]:
        for _ in range(_MAX_EVENTS if self._events is not None else 0):
            event = self._ask("nvmlEventSetWait_v2", self._events, 0)
            if event is None:  # nothing is left ("timeout")
                return
            yield "gpu.xid", {"gpu": self._index_of(event.device), "xid": str(int(event.eventData))}, 1.0

    def _index_of(self, handle: Any) -> str:
        index = self._ask("nvmlDeviceGetIndex", handle)
        return "unknown" if index is None else str(index)

    def _of(self, device: _Device, function: str, *arguments: Any) -> Any:
        """Ask about a device; remembers what it does not support, and that it is gone."""
        key = (f"{function}{arguments}", f"{device.labels}")
        if key in self._refused:
            return None
        call: Callable[..., Any] | None = getattr(self._nvml, function, None)
        if call is None:
            return None
        try:
            return call(device.handle, *arguments)
        except self._nvml.NVMLError as exc:
            code = getattr(exc, "value", None)
            if code in (self._nvml.NVML_ERROR_NOT_SUPPORTED, self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                self._refused.add(key)
            elif code == self._nvml.NVML_ERROR_GPU_IS_LOST:
                self._lost.add(device.labels["gpu"])
            return None

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Call NVML; null for what the device, the driver or this pynvml does not offer."""
        call: Callable[..., Any] | None = getattr(self._nvml, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except self._nvml.NVMLError:
            return None


def throttle_reasons(mask: float | None) -> list[str]:
    """The names in a `gpu.throttle_mask` that mean a GPU runs slower than it could."""
    if mask is None or not 0 < mask < 2**53:
        return []
    return [name for bit, name in _REASONS if int(mask) & bit]


def _number(struct: Any, name: str) -> float | None:
    value = getattr(struct, name, None)
    return None if value is None else float(value)


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None
