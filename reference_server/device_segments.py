"""The contiguous allocators' memory on a device with a total: allocated for a region, freed after it.

What a forward pass needs at most is kept out of reach while a segment is allocated, so that it is the
allocation that fails and not the next pass. Such a failure is the device's own: on CUDA torch's
`OutOfMemoryError`, on a CPU that of the total which is enforced there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch

from reference_server.attention.backend import AttentionBackend
from reference_server.attention.segments import SegmentedStore, SegmentShape
from reference_server.attention.select import make_attention
from reference_server.device import DeviceMemory, OutOfDeviceMemory
from reference_server.errors import ConfigError
from reference_server.kv.backed import BackedRegions
from reference_server.prepare import Prepared

log = logging.getLogger(__name__)

EXACT_SEGMENTS = 16
"""Into how many segments `contiguous-exact` cuts what fits: fewer hold on to more, more are more calls."""
LINE_LENGTH = 64
"""How many times as long as the device's memory the line of slots is: first fit then never runs out of
line, only of memory."""
MOST_SLOTS = 2**31 - 1
"""Slots are numbered in 32 bits by the kernels."""


class DeviceSegments:
    """`Segments` of a store on a device."""

    def __init__(
        self, store: SegmentedStore, memory: DeviceMemory, *, share: float, activation_peak: int
    ) -> None:
        self._store, self._memory = store, memory
        self._share, self._peak = share, activation_peak
        self.segment_bytes = store.block_bytes * store.segments.blocks
        memory.take(store.nbytes)
        self._before = memory.allocated

    @property
    def present(self) -> set[int]:
        return self._store.present

    def allocate(self, index: int) -> bool:
        try:
            with self._memory.keeping(self._share, self._kept()):
                self._memory.take(self.segment_bytes)
                self._allocate_taken(index)
        except (OutOfDeviceMemory, torch.OutOfMemoryError) as error:
            log.debug("the device refused a segment of %d B: %s", self.segment_bytes, error)
            return False
        return True

    def release(self, index: int) -> None:
        self._store.release(index)
        self._memory.give(self.segment_bytes)

    def room(self) -> int:
        return self._memory.room(self._share, self._kept()) // self.segment_bytes

    def try_all(self, count: int) -> int:
        """How many of `count` segments the device has room for at once; they are freed again."""
        there = [index for index in range(1, count + 1) if self.allocate(index)]
        for index in there:
            self.release(index)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return len(there)

    def _allocate_taken(self, index: int) -> None:
        try:
            self._store.allocate(index)
        except RuntimeError:
            self._memory.give(self.segment_bytes)
            raise

    def _kept(self) -> int:
        """For passes: their peak, less what they have left behind in buffers of theirs."""
        segments = len(self._store.present) * self.segment_bytes
        return max(self._peak - max(self._memory.allocated - self._before - segments, 0), 0)


@dataclass(frozen=True, slots=True)
class BackedPool:
    """Attention over segments, and the line of slots that they stand behind."""

    attention: AttentionBackend[Any]
    regions: BackedRegions

    @property
    def num_blocks(self) -> int:
        """That fit at once, the null block among them."""
        return self.regions.total + 1


def wants_segments(ready: Prepared) -> bool:
    """Whether regions are allocated one by one. (The ailment of a line in pieces needs the whole line.)"""
    config = ready.config
    return config.in_regions and config.pool_from_device and "fragmented" not in config.ailments


def make_backed_pool(
    ready: Prepared, num_blocks: int, activation_peak: int, *, scale_factor: float = 1.0
) -> BackedPool:
    """Room for `num_blocks` slots, the null block among them, of which nothing is allocated yet."""
    config, memory = ready.config, ready.memory
    assert memory is not None
    slots, count = _cut(num_blocks - 1, config.allocator, config.max_model_len)
    shape = SegmentShape(slots, min(LINE_LENGTH * count, MOST_SLOTS // slots - 1) + 1)
    attention = make_attention(config, ready.model.config, 1, scale_factor=scale_factor, segments=shape)
    store = attention.store
    assert isinstance(store, SegmentedStore)
    segments = DeviceSegments(
        store, memory, share=config.gpu_memory_utilization, activation_peak=activation_peak
    )
    found = segments.try_all(count)
    if not found:
        raise ConfigError(
            f"the device has no room for one segment of the KV pool: {segments.segment_bytes} B; "
            f"free {memory.free} B of {memory.total} B"
        )
    regions = BackedRegions(segments, segment_slots=slots, count=found, most=shape.most - 1)
    return BackedPool(attention, regions)


def _cut(slots: int, allocator: str, longest: int) -> tuple[int, int]:
    """Slots of a segment and how many segments: one is one region, where all are of one size."""
    if allocator == "contiguous":
        size = min(longest, slots)
        return size, slots // size
    count = min(EXACT_SEGMENTS, slots)
    return slots // count, count
