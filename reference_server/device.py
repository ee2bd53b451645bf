"""The device's memory: how much there is, who holds it, and the end of it.

On CUDA the driver knows. On a CPU a total that is asked for with `--device-memory` is enforced
here: weights, workspaces and the KV pool are taken from it by name, and what a forward pass
allocates is counted tensor by tensor while it lives. An allocation beyond the total fails, as it
would on a card. (What native kernels allocate outside of torch is not seen.)
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PHASES = ("load", "profile", "capture", "serve")


class OutOfDeviceMemory(RuntimeError):
    """An allocation that the device has no room for. Its text is the log's line."""

    def __init__(self, asked: int, memory: DeviceMemory, phase: str) -> None:
        super().__init__(
            f"out of device memory: asked {asked} B, free {memory.free} B, largest free region "
            f"{memory.free} B, total {memory.total} B, held by this process {memory.own} B, "
            f"by others {memory.others} B; phase {phase}"
        )
        self.asked = asked


class DeviceMemory(Protocol):
    """Sizes in bytes."""

    phase: str
    """One of `PHASES`."""

    @property
    def total(self) -> int: ...

    @property
    def free(self) -> int: ...

    @property
    def own(self) -> int:
        """Held by this process."""

    @property
    def others(self) -> int:
        """Held by other processes."""

    @property
    def allocated(self) -> int:
        """Of what this process holds, in use by tensors and buffers."""

    def take(self, size: int) -> None:
        """Account for a buffer that is about to be allocated; raises `OutOfDeviceMemory`."""

    def room(self, share: float, keep: int) -> int:
        """What could still be allocated of this share of the device, less `keep` bytes."""

    def keeping(self, share: float, keep: int) -> contextlib.AbstractContextManager[None]:
        """Inside, an allocation beyond `room(share, keep)` fails."""

    def give(self, size: int) -> None:
        """A buffer that was taken is free again."""

    def counting(self) -> contextlib.AbstractContextManager[Transients]:
        """Count what is allocated inside, and fail where it does not fit."""


class Transients:
    """What was alive at once, at most, of the memory allocated inside a `counting` block."""

    peak = 0


class CpuMemory:
    """A total that this process keeps to."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.own = 0
        self.others = 0
        self.phase = "load"
        self._share, self._kept = 1.0, 0

    @property
    def free(self) -> int:
        return self.room(self._share, self._kept)

    @property
    def allocated(self) -> int:
        return self.own

    def room(self, share: float, keep: int) -> int:
        ours = min(self.total - self.others, int(self.total * share))
        return max(ours - self.own - keep, 0)

    @contextlib.contextmanager
    def keeping(self, share: float, keep: int) -> Iterator[None]:
        self._share, self._kept = share, keep
        try:
            yield
        finally:
            self._share, self._kept = 1.0, 0

    def take(self, size: int) -> None:
        if size > self.free:
            raise OutOfDeviceMemory(size, self, self.phase)
        self.own += size

    def give(self, size: int) -> None:
        self.own -= size

    def take_for_others(self, size: int) -> None:
        """Another process allocates; it gets no more than there is."""
        self.others += min(size, self.free)

    @contextlib.contextmanager
    def counting(self) -> Iterator[Transients]:
        with _Counter(self) as counter:
            yield counter


class _Counter(TorchDispatchMode, Transients):  # type: ignore[no-untyped-call]
    """Takes the bytes of each new storage, and gives them back when it dies."""

    def __init__(self, memory: CpuMemory) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._memory = memory
        self._sizes: dict[int, int] = {}
        self._live = 0
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        found = out if isinstance(out, (tuple, list)) else (out,)
        fresh = [item for item in found if isinstance(item, torch.Tensor) and item.device.type == "cpu"]
        if fresh:
            # A view's storage is that of an argument: not new, wherever it came from.
            known = {item.untyped_storage()._cdata for item in _tensors((args, kwargs))}
            for item in fresh:
                storage = item.untyped_storage()
                if storage._cdata not in known and storage._cdata not in self._sizes:
                    self._born(storage)
        return out

    def _born(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self._memory.take(size)
        self._sizes[storage._cdata] = size
        self._live += size
        self.peak = max(self.peak, self._live)
        weakref.finalize(storage, self._died, storage._cdata, size)

    def _died(self, key: int, size: int) -> None:
        self._memory.give(size)
        self._sizes.pop(key, None)
        self._live -= size


def _tensors(nested: Any) -> Iterator[torch.Tensor]:
    if isinstance(nested, torch.Tensor):
        yield nested
    elif isinstance(nested, (tuple, list)):
        for item in nested:
            yield from _tensors(item)
    elif isinstance(nested, dict):
        yield from _tensors(list(nested.values()))


class CudaMemory:
    """What the driver and torch say of the current CUDA device."""

    def __init__(self) -> None:
        self.phase = "load"

    @property
    def total(self) -> int:
        return int(torch.cuda.mem_get_info()[1])

    @property
    def free(self) -> int:
        return int(torch.cuda.mem_get_info()[0])

    @property
    def own(self) -> int:
        """Of torch's allocator; the context's own few hundred MiB count as others'."""
        return int(torch.cuda.memory_reserved())

    @property
    def others(self) -> int:
        return self.total - self.free - self.own

    @property
    def allocated(self) -> int:
        return int(torch.cuda.memory_allocated())

    def room(self, share: float, keep: int) -> int:
        cached = self.own - self.allocated
        ours = min(self.free + cached, int(self.total * share) - self.allocated)
        return max(ours - keep, 0)

    @contextlib.contextmanager
    def keeping(self, share: float, keep: int) -> Iterator[None]:
        """What is kept is allocated meanwhile, so that nobody else gets it; torch then has it cached."""
        torch.cuda.set_per_process_memory_fraction(share)
        kept = torch.empty(keep, dtype=torch.uint8, device="cuda")
        try:
            yield
        finally:
            del kept

    def take(self, size: int) -> None:
        """The driver keeps the books."""

    def give(self, size: int) -> None:
        """The driver keeps the books."""

    @contextlib.contextmanager
    def counting(self) -> Iterator[Transients]:
        transients = Transients()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        yield transients
        transients.peak = max(int(torch.cuda.max_memory_allocated()) - before, 0)


def open_memory(device: str, total: int | None) -> CpuMemory | CudaMemory | None:
    """The device's memory; None for a CPU without a total, where the pool's size is given instead."""
    if device == "cuda":
        return CudaMemory()
    return None if total is None else CpuMemory(total)
