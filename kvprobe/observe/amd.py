"""AMD's GPUs of this machine through amdsmi, which ROCm brings along and no package index does.

Where it is not installed nothing is said: most machines have no AMD GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kvprobe.observe.nvml import GpuReading

_MIB = 2**20


class AmdProbe:
    """Reads every GPU that amdsmi knows; `devices` is empty where there is none."""

    def __init__(self) -> None:
        self._smi: Any = None
        self._handles: list[Any] = []
        self.devices: list[dict[str, Any]] = []
        self._open()

    def read(self, pids: Iterable[int] = ()) -> list[GpuReading]:
        """(metric, labels, value) of every device, under the names of NVML's readings."""
        wanted = frozenset(pids)
        readings: list[GpuReading] = []
        for index, handle in enumerate(self._handles):
            labels = {"gpu": f"amd{index}"}
            total, used = self._memory(handle)
            activity = self._ask("amdsmi_get_gpu_activity", handle)
            power = self._ask("amdsmi_get_power_info", handle)
            readings += [
                ("gpu.memory_total_bytes", labels, total),
                ("gpu.memory_used_bytes", labels, used),
                ("gpu.memory_free_bytes", labels, None if total is None or used is None else total - used),
                ("gpu.utilization_ratio", labels, _scaled(_entry(activity, "gfx_activity"), 1e-2)),
                ("gpu.memory_busy_ratio", labels, _scaled(_entry(activity, "umc_activity"), 1e-2)),
                ("gpu.power_w", labels, _entry(power, "current_socket_power", "average_socket_power")),
                *self._processes(handle, labels, wanted),
            ]
        return readings

    def close(self) -> None:
        """Give amdsmi back; a second call does nothing."""
        if self._smi is not None:
            self._ask("amdsmi_shut_down")
        self._smi, self._handles = None, []

    def _open(self) -> None:
        try:
            import amdsmi  # type: ignore[import-not-found, unused-ignore]

            amdsmi.amdsmi_init()
        except Exception:
            # Its import loads a library and asks the kernel: any of that fails in ways of its own where
            # there is no AMD GPU, and none of them is news.
            return
        self._smi = amdsmi
        self._handles = list(self._ask("amdsmi_get_processor_handles") or ())
        for index, handle in enumerate(self._handles):
            asic = self._ask("amdsmi_get_gpu_asic_info", handle)
            name = asic.get("market_name") if isinstance(asic, dict) else None
            total, _ = self._memory(handle)
            uuid = self._ask("amdsmi_get_gpu_device_uuid", handle)
            self.devices.append(
                {"gpu": f"amd{index}", "name": name, "uuid": uuid, "memory_total_bytes": total}
            )

    def _memory(self, handle: Any) -> tuple[float | None, float | None]:
        """(total, used) in bytes."""
        usage = self._ask("amdsmi_get_gpu_vram_usage", handle)  # MiB
        return _scaled(_entry(usage, "vram_total"), _MIB), _scaled(_entry(usage, "vram_used"), _MIB)

    def _processes(self, handle: Any, labels: dict[str, str], wanted: frozenset[int]) -> Iterator[GpuReading]:
        for process in self._ask("amdsmi_get_gpu_process_list", handle) or ():
            if isinstance(process, dict) and process.get("pid") in wanted:
                memory = process.get("memory_usage")
                value = _entry(memory, "vram_mem") if isinstance(memory, dict) else None
                yield "gpu.process_memory_bytes", {**labels, "pid": str(process["pid"])}, value

    def _ask(self, function: str, *arguments: Any) -> Any:
        call: Callable[..., Any] | None = getattr(self._smi, function, None)
        if call is None:
            return None
        try:
            return call(*arguments)
        except Exception as exc:
            if type(exc).__module__.partition(".")[0] != "amdsmi":
                raise
            return None


def _entry(answer: Any, *names: str) -> float | None:
    """The first of `names` that holds a number; amdsmi writes "N/A" where there is none."""
    for name in names:
        value = answer.get(name) if isinstance(answer, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    return None


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by
