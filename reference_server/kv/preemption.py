"""What happens to a sequence that has to give its memory up. The scheduler does not know."""

from __future__ import annotations

from typing import Protocol

from reference_server.kv.allocator import Allocator
from reference_server.sequence import Sequence


class PreemptionManager(Protocol):
    """Takes a running sequence's memory, so that it can be scheduled anew later."""

    name: str

    def evict(self, sequence: Sequence) -> None:
        """Free the sequence's memory; afterwards it waits like a new one."""


class RecomputePreemption:
    """Forget the KV data. The tokens stay, generated ones too, and are computed again.

    Full blocks that nobody overwrites in the meantime are found again as prefix hits.
    """

    name = "recompute"

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def evict(self, sequence: Sequence) -> None:
        self._allocator.release(sequence)
        sequence.num_computed = 0
