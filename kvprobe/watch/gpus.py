"""The GPUs beside targets of this machine."""

from __future__ import annotations

from kvprobe.observe.gpu import GpuProbe
from kvprobe.observe.nvml import throttle_reasons
from kvprobe.watch.model import GpuView


class Gpus:
    """Reads the GPUs; `note` says why there is nothing to read."""

    def __init__(self, *, local: bool) -> None:
        self._probe = GpuProbe() if local else None
        self._names: dict[tuple[str, str | None], str | None] = {}
        self.note: str | None = "no target runs on this machine"
        if self._probe is not None:
            said = self._probe.statement
            self.note = f"{said}: {self._probe.reason}" if isinstance(said, str) else None
            for device in said if isinstance(said, list) else ():
                mig = device.get("mig_instance")
                self._names[(str(device["gpu"]), None if mig is None else str(mig))] = device.get("name")

    def read(self) -> list[GpuView] | None:
        """Every GPU and MIG instance; null where there is none."""
        if self._probe is None or self.note is not None:
            return None
        at: dict[tuple[str, str | None], dict[str, float | None]] = {key: {} for key in self._names}
        for metric, labels, value in self._probe.read():
            if set(labels) <= {"gpu", "mig"}:
                at.setdefault((labels["gpu"], labels.get("mig")), {})[metric] = value
        return [
            GpuView(
                gpu=gpu,
                mig=mig,
                name=self._names.get((gpu, mig)),
                memory_used_bytes=found.get("gpu.memory_used_bytes"),
                memory_total_bytes=found.get("gpu.memory_total_bytes"),
                utilization_ratio=found.get("gpu.utilization_ratio"),
                throttled_by=throttle_reasons(found.get("gpu.throttle_mask")),
                lost=found.get("gpu.lost") == 1.0,
            )
            for (gpu, mig), found in at.items()
        ]

    def close(self) -> None:
        """Give the driver back."""
        if self._probe is not None:
            self._probe.close()
