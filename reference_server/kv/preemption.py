"""How a waiting sequence comes by memory, and what becomes of one that has to give its own up.

The scheduler asks for admission and for eviction and does not know what they do. Both stand here,
because what eviction leaves behind (nothing, or a copy elsewhere) is what admission starts from.
"""

from __future__ import annotations

from typing import Protocol

from reference_server.kv.allocator import Allocator
from reference_server.sequence import Sequence


class PreemptionManager(Protocol):
    """Gives memory to waiting sequences and takes it from running ones."""

    name: str

    def admit(self, sequence: Sequence, most_new: int) -> bool:
        """Memory for all that is stored already and for up to `most_new` tokens beyond it.

        Sets `num_computed` to what is stored. False, and nothing changed, when there is no room.
        """

    def evict(self, sequence: Sequence) -> None:
        """Free a running sequence's memory; afterwards it waits like a new one."""

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence, running or waiting, for good."""


class RecomputePreemption:
    """Forget the KV data. The tokens stay, generated ones too, and are computed again.

    Full blocks that nobody overwrites in the meantime are found again as prefix hits.
    """

    name = "recompute"

    def __init__(self, allocator: Allocator) -> None:
        self._allocator = allocator

    def admit(self, sequence: Sequence, most_new: int) -> bool:
        stored = self._allocator.begin(sequence)
        if not self._allocator.extend(sequence, min(len(sequence.tokens), stored + most_new)):
            self._allocator.release(sequence)
            return False
        sequence.num_computed = stored
        return True

    def evict(self, sequence: Sequence) -> None:
        self._allocator.release(sequence)
        sequence.num_computed = 0

    def drop(self, sequence: Sequence) -> None:
        self._allocator.release(sequence)
