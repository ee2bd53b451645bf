"""What the engine shows of itself: the engine thread writes it after each step, scrapes read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reference_server.kv.allocator import Usage
from reference_server.kv.preemption import SwapUsage

if TYPE_CHECKING:
    from reference_server.device import DeviceMemory


class EngineState:
    """Sizes in bytes where the name says so, else counts."""

    steps = 0
    running = 0
    waiting = 0
    running_max = 0
    usage_ratio_max = 0.0
    unreachable_blocks = 0
    """As of the last statistics line: counting walks the cache."""
    pool_bytes = 0
    """Of the K and V tensors, scales and null block included."""
    bytes_read = 0
    """By forward passes: weights once a pass, KV data as attention reads it."""
    forward_tokens = 0
    """That went through the model: each as often as it did."""
    busy_s = 0.0
    """Time in forward passes."""
    scheduling_s = 0.0
    """Time in the scheduler: what comes next, and blocks for it."""
    device: DeviceMemory | None = None
    model_config: dict[str, object] | None = None
    """The model's shape in the words of a config.json."""

    def __init__(self, usage: Usage, bytes_per_token: int, block_bytes: int, block_tokens: int) -> None:
        self.usage = usage
        self.bytes_per_token = bytes_per_token
        self.block_bytes = block_bytes
        self.block_tokens = block_tokens
        self.swap = SwapUsage()

    def slot_bytes(self, slots: int) -> int:
        """Bytes of so many token slots. (Not `bytes_per_token` where kinds of layers share a pool.)"""
        return slots * self.block_bytes // self.block_tokens

    @property
    def largest_free_bytes(self) -> int:
        return self.usage.largest_free_blocks * self.block_bytes

    @property
    def backed_bytes(self) -> int:
        """Of the pool's bytes, those allocated on the device now, the null block among them."""
        backed = self.usage.blocks_backed
        return self.pool_bytes if backed is None else (backed + 1) * self.block_bytes

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Bytes read a second of forward passes."""
        return self.bytes_read / self.busy_s if self.busy_s else 0.0
