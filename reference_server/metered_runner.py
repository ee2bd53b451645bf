"""A runner whose forward passes are counted against the device's total."""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from typing import Any

from reference_server.device import CpuMemory
from reference_server.scheduler import Scheduled


class MeteredRunner:
    """Everything else is the runner's own."""

    def __init__(self, runner: Any, memory: CpuMemory) -> None:
        self._inner = runner
        self._memory = memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, work: Sequences[Scheduled]) -> list[int | None]:
        """Raises `OutOfDeviceMemory` where a pass needs more than is free."""
        with self._memory.counting():
            sampled: list[int | None] = self._inner.run(work)
        return sampled
